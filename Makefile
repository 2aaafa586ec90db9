# `make` lists the targets. Everything is installed into $(VENV); nothing outside this folder is touched.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PIP_INSTALL := $(PIP) install --quiet --progress-bar off
QUICKSTART_STAMP := $(VENV)/.installed-quickstart
DOCS_STAMP := $(VENV)/.installed-docs
DEV_STAMP := $(VENV)/.installed-dev

PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

# TensorFlow keeps the graphs of what was compiled, about 100 MB a test that trains. A process for each folder gives the
# memory back.
TEST_PARTS ?= $(filter-out tests/reference/ tests/__pycache__/,$(wildcard tests/*/)) 'tests/test_*.py'

# What the second backend runs again: what computes with tensors in ways of its own. `make test-jax JAX_TESTS=tests`
# runs everything.
JAX_TESTS ?= tests/checkpoints/test_formats.py tests/checkpoints/test_hugging_face.py tests/compat tests/conformance \
	tests/layers tests/models tests/serving tests/training tests/tasks/test_bidirectional_lm.py \
	tests/tasks/test_callbacks.py tests/tasks/test_fit.py tests/tasks/test_resuming.py

# Tests build the same tiny models again and again: JAX compiles each once for all of them.
JAX_CACHE := JAX_COMPILATION_CACHE_DIR='$(CURDIR)/.pytest_cache/jax' JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

export TF_CPP_MIN_LOG_LEVEL ?= 2

.DEFAULT_GOAL := help
.PHONY: help quickstart install test lint test-tf test-jax wheel-check docs bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { \
		echo "lmzoo needs Python 3.11, 3.12 or 3.13, and '$(PYTHON)' is not one of them: make PYTHON=/path/to/python3.12"; exit 1; }
	@echo "== creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(QUICKSTART_STAMP): pyproject.toml | $(BIN)/python
	@echo "== installing lmzoo into $(VENV) (a few minutes the first time)"
	@$(PIP_INSTALL) --editable '.[examples]'
	@touch $@

$(DOCS_STAMP): pyproject.toml | $(BIN)/python
	@echo "== installing lmzoo and the tools of the site into $(VENV) (a few minutes the first time)"
	@$(PIP_INSTALL) --editable '.[docs]'
	@touch $@

# torch comes first and alone: a pinned version that is already there is not looked up again.
$(DEV_STAMP): pyproject.toml | $(BIN)/python
	@echo "== installing torch into $(VENV)"
	@$(PIP_INSTALL) torch==2.13.0
	@echo "== installing lmzoo with its development tools into $(VENV) (a few minutes the first time)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@PIP_CONSTRAINT='$(CURDIR)/.ci/seqeval-build.txt' $(PIP_INSTALL) --use-pep517 seqeval==1.2.2 || \
		echo "seqeval could not be built: the tests that compare with it are skipped"
	@touch $@ $(QUICKSTART_STAMP) $(DOCS_STAMP)

quickstart: $(QUICKSTART_STAMP)  ## fill a mask, fine-tune a classifier, save it, serve it (at most 5 minutes)
	@TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python examples/quickstart.py

install: $(DEV_STAMP)  ## the development environment only

test: $(DEV_STAMP)  ## everything that CI runs: lint, docs, tests on both backends, the built wheel
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory docs
	@$(MAKE) --no-print-directory wheel-check
	@$(MAKE) --no-print-directory test-jax
	@$(MAKE) --no-print-directory test-tf

lint: $(DEV_STAMP)  ## ruff and mypy
	@echo "== lint"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

test-tf: $(DEV_STAMP)  ## the whole suite on TensorFlow; PYTEST_ARGS="-m 'not slow'" for the quick part
	@echo "== tests, TensorFlow backend"
	@for part in $(TEST_PARTS); do \
		echo "-- $$part"; KERAS_BACKEND=tensorflow $(PYTEST) --quiet $(PYTEST_ARGS) $$part || [ $$? -eq 5 ] || exit 1; \
	done

test-jax: $(DEV_STAMP)  ## the quick tests of layers, models, tasks and conformance on JAX
	@echo "== tests, JAX backend"
	@$(JAX_CACHE) KERAS_BACKEND=jax $(PYTEST) -m 'not slow' $(PYTEST_ARGS) $(JAX_TESTS)

wheel-check: $(DEV_STAMP)  ## build the wheel, install it into an empty environment, run the quickstart from elsewhere
	@echo "== wheel"
	@bash .ci/wheel_check.sh $(BIN)/python

docs: $(DOCS_STAMP)  ## build the site into site/, strictly
	@echo "== docs"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(DEV_STAMP)  ## side-by-side benchmarks (wants a quiet machine)
	@$(BIN)/python -m benchmarks

clean:  ## remove what was built, not $(VENV)
	@rm -rf build dist site .pytest_cache .ruff_cache .mypy_cache
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
