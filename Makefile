# make train     install, then train the tiny preset on this machine
# make test      linters, types, layers, and the tests that are not marked slow
# make test-all  goldens, and the slow tests too
# make plan      what a run needs of machines that are not at hand, e.g. make plan CONFIG=configs/alfworld.py:qwen2.5-7b
#                TOPOLOGY=v5e:4x8 ARGS=--search; the compilers for them are put into a folder of their own
# make goldens   computes the goldens of import and export anew, with torch in an environment of its own (.venv-torch),
#                which python launch/benchmark.py --suite=train measures torch's step with
#
# PYTHON=/path/to/python  the interpreter to build the environment with (found by itself otherwise: 3.12, then 3.11)
# PYTHON311=/path/to/python  the Python 3.11 to build torch's environment with (found by itself otherwise)
# VENV=folder             the environment, .venv by default
# CONFIG=file:preset      the settings to train with; ARGS='--config.seed=1' adds flags to train, or options to pytest

VENV ?= .venv
CONFIG ?= configs/alfworld.py
ARGS ?=
BIN := $(VENV)/bin
TORCH_VENV := .venv-torch
COMPILERS := .compilers
TOPOLOGY ?= v5e:4x8
PYTHON311 ?= $(firstword $(shell for p in python3.11 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.11.*/bin/python; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo "$$p"; done))

.PHONY: train plan test test-all goldens lint install install-dev
.DEFAULT_GOAL := train

train: install
	$(BIN)/python launch/train.py --config=$(CONFIG) $(ARGS)

plan: install $(COMPILERS)/.installed
	PYTHONPATH=$(COMPILERS) $(BIN)/python launch/plan.py --config=$(CONFIG) --topology=$(TOPOLOGY) $(ARGS)

$(COMPILERS)/.installed: requirements-plan.txt $(VENV)/.installed
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --target $(COMPILERS) -r requirements-plan.txt
	@touch $@

test: lint
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest -m 'not slow' $(ARGS)

# goldens first: it makes torch's environment, which a slow test of launch/benchmark.py compares updates with
test-all: lint
	@$(MAKE) --no-print-directory goldens
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest $(ARGS)

goldens:
	@if [ -z '$(PYTHON311)' ]; then \
		echo 'No Python 3.11 is found, which the CPU build of torch needs, so the network was checked against the stored goldens only: name one with make PYTHON311=/path/to/python.'; \
	elif ! $(MAKE) --no-print-directory $(TORCH_VENV)/.installed; then \
		echo 'The CPU build of torch cannot be installed (see above), so the network was checked against the stored goldens only: set PIP_EXTRA_INDEX_URL to the CPU index that pytorch.org names.'; \
	else \
		JAX_PLATFORMS=cpu $(TORCH_VENV)/bin/python -m pytest tests/models/test_goldens.py tests/models/test_export.py; \
	fi

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy rsipo_jax launch
	$(BIN)/mypy configs
	$(BIN)/lint-imports

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/.installed: requirements.txt pyproject.toml launch/setup.sh
	@PYTHON='$(PYTHON)' sh launch/setup.sh $(VENV) requirements.txt
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt requirements-assets.txt
	$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements-assets.txt
	@touch $@

$(TORCH_VENV)/.installed: requirements-parity.txt requirements.txt requirements-dev.txt requirements-assets.txt
	'$(PYTHON311)' -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r requirements-parity.txt
	$(TORCH_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements-assets.txt
	@touch $@
