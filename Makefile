# Every target makes the virtual environment that it needs; nothing has to be installed by hand but Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart test lint format models clean

quickstart: $(VENV)/.runtime  ## Install TrainPilot and show what it does, on this machine
	$(BIN)/trainpilot quickstart

test: $(VENV)/.dev  ## Run the tests
	$(BIN)/python -m pytest

lint: $(VENV)/.dev  ## Formatting, style, types and import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

models: $(VENV)/.runtime  ## Fit the reference predictors from the reference dataset again
	rm -rf models/cpu
	$(BIN)/trainpilot fit --dataset datasets/reference --out models/cpu

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "TrainPilot needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[dev,plots]'
	touch $@ $(VENV)/.runtime
