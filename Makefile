# The same commands locally and in CI. `make` alone lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# TensorFlow and torch are large, and slow the main run down by being there.
ADAPTERS := .venv-adapters
# Two workers: a test drives 8 virtual devices, so more would only share the same cores.
JOBS   ?= 2
PARTS  := contracts strategies input

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-adapters lint format types layers doctest unit bench bench-smoke clean

help:  ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo  ## Install what the demo needs and run it
	$(BIN)/replicax demo

test: lint types layers doctest unit bench-smoke  ## Everything that CI runs

test-adapters: $(ADAPTERS)/.installed  ## Test datasets of TensorFlow and torch, in .venv-adapters
	$(ADAPTERS)/bin/python -m pytest -q tests_adapters

lint: $(VENV)/.installed-dev  ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev  ## Fix what the style check can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev  ## Check the types of src
	$(BIN)/basedpyright --pythonpath $(BIN)/python

layers: $(VENV)/.installed-dev  ## Check that imports go down the layers only
	$(BIN)/lint-imports

doctest: $(VENV)/.installed-dev  ## Run the examples in the docstrings of src
	$(BIN)/python -m pytest -q --doctest-modules src

# In parts, each in new processes: compiled programs pile up in a process, and the more there are
# the slower it gets. Tests that start clusters of their own come last and alone.
unit: $(VENV)/.installed-dev  ## Run all tests
	for part in $(PARTS); do \
	  $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal tests/$$part || exit 1; \
	done
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal tests \
	  $(patsubst %,--ignore=tests/%,$(PARTS) multiprocess)
	$(BIN)/python -m pytest -q tests/multiprocess

bench: $(ADAPTERS)/.installed  ## Measure Replicax beside hand-written JAX and other libraries
	$(ADAPTERS)/bin/replicax bench $(BENCH)

bench-smoke: $(VENV)/.installed-dev  ## Measure a few short cases; fails only on gross loss
	$(BIN)/replicax bench --smoke --rounds 5 --output .bench-smoke

clean:  ## Remove the environment, caches and build products
	rm -rf $(VENV) $(ADAPTERS) .pytest_cache .ruff_cache .import_linter_cache .jax_cache .bench-smoke build dist
	find src tests tests_adapters benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python $(ADAPTERS)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Replicax needs Python 3.11 or newer, $(PYTHON) is older. Use: make PYTHON=<python>" >&2; exit 1; }
	$(PYTHON) -m venv $(patsubst %/bin/python,%,$@)

$(VENV)/.installed-demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	touch $@

# dev contains demo, so one installation serves both.
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(VENV)/.installed-demo $@

$(ADAPTERS)/.installed: pyproject.toml | $(ADAPTERS)/bin/python
	$(ADAPTERS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,bench]'
	touch $@
