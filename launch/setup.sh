#!/bin/sh
# Builds the Python environment of this repository: sh launch/setup.sh VENV REQUIREMENTS
#
# Uses $PYTHON if set, else Python 3.12 where one is found (its JAX is several times faster in bfloat16 on CPUs), else
# 3.11. alfworld's engine brings two packages that are compiled here: PyPI's cmake stands in where cmake is absent, and
# where no C++ compiler is found everything but that engine is installed.
set -eu

venv=$1
requirements=$2

say() { printf '%s\n' "$*"; }
stop() {
    printf '%s\n' "$*" >&2
    exit 1
}

# A version manager puts commands on PATH that exist and do not run, so a candidate must prove itself.
usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for version in 3.12 3.11; do
        for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
            if usable "$candidate"; then
                say "$candidate"
                return
            fi
        done
    done
    if usable python3; then say python3; fi
}

if [ -n "${PYTHON:-}" ]; then
    usable "$PYTHON" || stop "PYTHON=$PYTHON does not run, or is no Python 3.11 or newer with the venv module: name another."
    python=$PYTHON
else
    python=$(find_python)
    [ -n "$python" ] || stop "No Python 3.11 or 3.12 with the venv module is found: install one (Debian: apt install python3-venv), or name it with make PYTHON=/path/to/python."
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check -qq "$@"; }

say "Installing into $venv with $("$venv/bin/python" --version); this takes two to four minutes."

without_engine="$venv/requirements-without-textworld.txt"
grep -Ev '^(alfworld|textworld)==' "$requirements" >"$without_engine"

missing=
for tool in make cc c++; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    pip install -r "$without_engine"
    say "No C++ compiler is found (missing:$missing), so env.engine=textworld is left out and all else works: to add it, install one (Debian: apt install build-essential; macOS: xcode-select --install) and delete $venv."
else
    PATH="$(cd "$venv" && pwd)/bin:$PATH" # the builds call `python`, which not every machine has
    if ! cmake --version >/dev/null 2>&1; then
        pip install cmake==4.4.5
        # The program itself: the command that the package installs cannot run inside pip's isolated builds.
        PATH="$("$venv/bin/python" -c 'import cmake; print(cmake.CMAKE_BIN_DIR)'):$PATH"
    fi
    export PATH
    if ! pip install -r "$requirements" 2>"$venv/engine.log"; then
        pip install -r "$without_engine"
        say "alfworld's engine does not compile here, so env.engine=textworld is left out and all else works: $venv/engine.log says why."
    fi
fi
pip install --no-deps -e .
