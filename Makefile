# Two commands do all the set-up: `make demo` and `make test`. `make test DEVICE=cuda` runs the numerical tests on a GPU,
# with a Python that has torch, pytest and hypothesis; it installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Small models are faster with one thread a process; pytest runs two processes.
export OMP_NUM_THREADS ?= 1

# Tests of what is computed on a device; the others look at files, words, pages and statistics.
NUMERICAL := $(addprefix tests/,base/test_round.py base/test_state.py base/test_streams.py base/test_task.py \
	base/test_weights.py engines gpu maths methods studies/test_references.py system/test_cuda.py training \
	claims/test_theorems.py claims/test_panacea_theory.py)

# Four processes share the device, where pytest can.
WORKERS ?= $(shell $(PYTHON) -c 'import xdist; print("-n 4")' 2>/dev/null)

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
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/mypy

ifeq ($(DEVICE),)
test: lint
	$(BIN)/python -m pytest -n 2 -m 'not slow'
else
test:
	DEVICE=$(DEVICE) PYTHONPATH="src:tests$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m pytest $(WORKERS) -m 'not slow' \
		$(NUMERICAL)
endif

test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 -m slow

# Digits, both splits, all methods, five seeds: the tables of docs/when-collaboration-pays.md.
benchmark: $(READY)
	$(BIN)/python benchmarks/digits.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .hypothesis
