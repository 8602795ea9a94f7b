# make train     install, then train the tiny preset on this machine
# make test      linters, types, layers, and the tests that are not marked slow
# make test-all  the slow tests too
#
# PYTHON=/path/to/python  the interpreter to build the environment with (found by itself otherwise: 3.12, then 3.11)
# VENV=folder             the environment, .venv by default
# CONFIG=file:preset      the settings to train with; ARGS='--config.seed=1' adds flags to train, or options to pytest

VENV ?= .venv
CONFIG ?= configs/alfworld.py
ARGS ?=
BIN := $(VENV)/bin

.PHONY: train test test-all lint install install-dev
.DEFAULT_GOAL := train

train: install
	$(BIN)/python launch/train.py --config=$(CONFIG) $(ARGS)

test: lint
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest -m 'not slow' $(ARGS)

test-all: lint
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest $(ARGS)

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

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements-dev.txt
	@touch $@
