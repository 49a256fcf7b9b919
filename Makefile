PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: venv test lint demo bench soak model clean

venv: $(VENV)/.made

$(VENV)/.made: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[spark,embedded,dev]'
	touch $@

test: venv
	$(BIN)/python -m pytest

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
