# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Small models are faster with one thread a process; pytest runs two processes.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow lint benchmark clean
.DEFAULT_GOAL := demo

$(READY): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/fedkin demo

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 -m slow

# Digits, both splits, all methods, five seeds: the tables of docs/when-collaboration-pays.md.
benchmark: $(READY)
	$(BIN)/python benchmarks/digits.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .hypothesis
