# The interpreter that makes the virtual environment; 3.10 or newer.
PYTHON ?= python3
# How long `make soak` runs.
SECONDS ?= 600
# What `make roundtrip` writes and reads back.
DELTAS ?= 1000000
CATALOGS ?= 50000

VENV := .venv
BIN := $(VENV)/bin

.PHONY: venv test lint demo bench soak roundtrip model clean

venv: $(VENV)/.made

$(VENV)/.made: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[spark,embedded,cli,dev]'
	touch $@

test: venv
	$(BIN)/python -m pytest

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: venv
	$(BIN)/python -c "from lake_spark.spark.demo import demo; demo('./demo-lake')"

bench: venv
	$(BIN)/python -m bench --quick

soak: venv
	$(BIN)/python tests/soak.py --seconds $(SECONDS)

roundtrip: venv
	$(BIN)/python tests/roundtrip.py --deltas $(DELTAS) --catalogs $(CATALOGS)

model: venv
	$(BIN)/python tests/interleavings.py

clean:
	rm -rf $(VENV) build dist
