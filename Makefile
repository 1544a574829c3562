# The same commands locally and in CI. `make` alone lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# TensorFlow and torch are large, and slow the main run down by being there.
ADAPTERS := .venv-adapters
LOWEST := .venv-lowest
# Two workers: a test drives 8 virtual devices, so more would only share the same cores.
JOBS   ?= 2
PYTEST = $(BIN)/python $(MEASURE) -m pytest -q -n $(JOBS)
# `$(call install,FOLDER,WHAT)`: by uv, which takes a tenth of the time, or by pip where uv fails.
pip = $(1)/bin/python -m pip install --quiet --disable-pip-version-check
uv = $(1)/bin/uv pip install --quiet --python $(1)/bin/python
install = { $(pip) uv && $(uv) $(2); } || $(pip) $(2)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-lowest test-adapters checks lint format types layers doctest unit \
        unit-all unit-rest coverage costs docs docs-serve bench bench-smoke clean

help:  ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo  ## Install what the demo needs and run it
	$(BIN)/replicax demo

test: checks unit  ## All checks, and the quick tier of the tests: 8 to 12 minutes

test-all: MEASURE := -m coverage run
test-all: checks unit-all coverage bench-smoke  ## The same with every test, and which lines of src they ran

test-lowest: $(LOWEST)/.installed  ## The quick tier with the lowest versions of all libraries
	$(LOWEST)/bin/python -m pytest -q -n $(JOBS) --dist worksteal tests -m "not cluster"
	$(LOWEST)/bin/python -m pytest -q -n $(JOBS) --dist loadfile tests -m cluster

test-adapters: $(ADAPTERS)/.installed  ## Test datasets of TensorFlow and torch, in .venv-adapters
	$(ADAPTERS)/bin/python -m pytest -q tests_adapters

checks: $(VENV)/.installed-dev  ## lint, types, layers and doctest, side by side
	$(MAKE) --no-print-directory --output-sync -j 2 types lint layers doctest

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
	$(PYTEST) --doctest-modules src

# Tests that start clusters mostly wait, so more of them run at once, by file: they share clusters.
CLUSTER_JOBS ?= 3
PYTEST_CLUSTER = $(BIN)/python $(MEASURE) -m pytest -q -n $(CLUSTER_JOBS) --dist loadfile tests -m cluster
unit: $(VENV)/.installed-dev  ## Run the quick tier of the tests
	$(PYTEST) --dist worksteal tests -m "not cluster"
	$(PYTEST_CLUSTER)

# In parts, each in new processes: compiled programs pile up in a process, and the more there are
# the slower it gets.
PARTS := contracts strategies input
TIER := --full
unit-all: $(VENV)/.installed-dev  ## Run every test
	for part in $(PARTS); do \
	  $(PYTEST) $(TIER) --dist worksteal tests/$$part -m "not cluster" || exit 1; \
	done
	$(PYTEST_CLUSTER) $(TIER)
	$(PYTEST) $(TIER) --dist worksteal tests -m "not cluster" $(PARTS:%=--ignore=tests/%) \
	  --ignore=tests/random_programs
	$(PYTEST) $(TIER) --dist worksteal tests/random_programs

unit-rest: TIER = --rest $(if $(UNTIL),-rs --until $(UNTIL))
unit-rest: unit-all  ## Run the tests that the quick tier leaves out, up to the time UNTIL if given

# Worker processes count, too. Packages first, then the files of which most lines never ran.
coverage:  ## Say which share of each package the last make test-all has run
	$(BIN)/coverage combine --quiet
	@for package in src/replicax/*/; do \
	  printf '%-32s %3s%%\n' $$package $$($(BIN)/coverage report --include="$$package*" --format=total); \
	done
	$(BIN)/coverage report --skip-covered --sort=cover --show-missing > .coverage/report.txt
	@head -n 30 .coverage/report.txt; echo "All lines that never ran: .coverage/report.txt"

costs: TIER := --full --costs
costs: unit-all  ## Run every test and write tests/costs.json, by which the quick tier chooses

docs: $(VENV)/.installed-docs  ## Build the documentation site in build/site; a warning is an error
	JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.jax_cache $(BIN)/python -m sphinx -W --keep-going -j 2 -c website docs build/site

PORT ?= 8000
docs-serve: docs  ## Build the site and show it at 127.0.0.1:8000, or another PORT
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site $(PORT)

bench: $(ADAPTERS)/.installed  ## Measure Replicax beside hand-written JAX and other libraries
	$(ADAPTERS)/bin/python -m benchmarks $(BENCH)

bench-smoke: $(VENV)/.installed-dev  ## Measure a few short cases; fails only on gross loss
	$(BIN)/python -m benchmarks --smoke --rounds 5 --output .bench-smoke

clean:  ## Remove the environment, caches and build products
	rm -rf $(VENV) $(ADAPTERS) $(LOWEST) .pytest_cache .ruff_cache .import_linter_cache .jax_cache .coverage .bench-smoke build dist
	find src tests tests_adapters benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python $(ADAPTERS)/bin/python $(LOWEST)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Replicax needs Python 3.11 or newer, $(PYTHON) is older. Use: make PYTHON=<python>" >&2; exit 1; }
	$(PYTHON) -m venv $(patsubst %/bin/python,%,$@)
	$@ -m pip install --quiet --disable-pip-version-check 'pip>=25.1'  # knows dependency groups

$(VENV)/.installed-demo: pyproject.toml | $(BIN)/python
	$(call install,$(VENV),-e '.[demo]')
	touch $@

# dev contains demo, so one installation serves both.
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(call install,$(VENV),--group dev -e '.[all]')
	touch $(VENV)/.installed-demo $@

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	$(call install,$(VENV),--group docs)
	touch $@

# By pip in any case: it also takes a CPU build of torch that lies in a folder of wheels.
$(ADAPTERS)/.installed: pyproject.toml | $(ADAPTERS)/bin/python
	$(call pip,$(ADAPTERS)) --group dev --group bench -e '.[all]'
	touch $@

# Only uv knows how to choose the lowest versions.
$(LOWEST)/.installed: pyproject.toml | $(LOWEST)/bin/python
	$(call pip,$(LOWEST)) uv
	$(call uv,$(LOWEST)) --resolution lowest-direct --group test -e '.[all]'
	touch $@
