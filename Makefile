# The same commands locally and in CI. `make` alone lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Two workers: a test drives 8 virtual devices, so more would only share the same cores.
JOBS   ?= 2

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format types layers doctest unit bench clean

help:  ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo  ## Install what the demo needs and run it
	$(BIN)/replicax demo

test: lint types layers doctest unit  ## Everything that CI runs

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

unit: $(VENV)/.installed-dev  ## Run all tests
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile

bench: $(VENV)/.installed-dev  ## Measure the cost of dispatching a step
	$(BIN)/python benchmarks/dispatch.py

clean:  ## Remove the environment, caches and build products
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache build dist
	find src tests benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Replicax needs Python 3.11 or newer, $(PYTHON) is older. Use: make PYTHON=<python>" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	touch $@

# dev contains demo, so one installation serves both.
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(VENV)/.installed-demo $@
