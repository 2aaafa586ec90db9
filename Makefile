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
# The tools of releases have an environment of their own: their dependencies and lmzoo's do not mix.
TOOLS := $(VENV)/release-tools
TOOLS_STAMP := $(TOOLS)/.installed

# One worker per processor, each with one thread (set in tests/conftest.py).
WORKERS ?= auto
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

# `make test` runs a tenth of the tests marked slow, another one each day, `make test-all` all of them. The tenth is fixed
# here, so that it does not change at midnight: see tests/conftest.py.
ifndef TENTH
TENTH := $(shell date +%j | tail -c 2)
endif
ifeq ($(filter $(TENTH),0 1 2 3 4 5 6 7 8 9),)
$(error TENTH must be a digit from 0 to 9, got "$(TENTH)")
endif
export TENTH
MARKS ?= not slow or tenth
AND_SLOW = $(if $(findstring tenth,$(MARKS)),$(COMMA) and tenth $(TENTH) of the slow tests)
COMMA := ,

TESTS := $(filter-out tests/reference tests/mutants tests/__pycache__,\
	$(patsubst %/,%,$(wildcard tests/*/)) $(wildcard tests/test_*.py))
# Backends keep what they have compiled: `make test-all` runs these parts in new processes, so that the memory is freed.
PART_1 := tests/conformance tests/families tests/layers tests/checkpoints
PART_2 := tests/tasks tests/pretraining tests/compat
PART_3 := tests/text tests/serving
PARTS := "$(PART_1)" "$(PART_2)" "$(PART_3)" "$(filter-out $(PART_1) $(PART_2) $(PART_3),$(TESTS))"

# Code that computes differently on the second backend. What tasks and models compute on JAX is compared by the tests on
# TensorFlow (`check_task_backends`); `make test-all` runs everything on both backends. Each slow test of meshes, processes
# and workers takes a minute, most of it compilation and waiting: even a tenth of them would double the time of this part.
JAX_TESTS ?= tests/conformance tests/layers tests/files/test_compilation_cache.py tests/families/test_remat.py tests/tasks/test_resuming.py \
	$(patsubst %,tests/parallel/test_%.py,clusters collectives layouts several_devices) \
	$(patsubst %,tests/parallel/test_processes.py::test_%,several_processes_compute_what_one_computes \
	a_process_that_leaves_ends_the_others missing_processes_are_not_waited_for wrong_numbers_of_processes_are_refused) \
	tests/parallel/test_training_workers.py::test_wrong_options_are_refused \
	'tests/parallel/test_meshes.py::test_results_equal_those_of_one_device[1x2-token_features]' \
	tests/tasks/test_shared_models.py \
	tests/tasks/test_generation.py::test_no_column_is_joined_to_a_matrix \
	tests/tasks/test_row_streams.py::test_interrupted_runs_go_on tests/training/test_accumulation.py tests/training/test_optimizers.py

# While you work: tests that neither train nor compile.
QUICK_TESTS ?= tests/conformance/test_layer_shapes.py tests/conformance/test_conformance.py::test_family tests/layers tests/files tests/presets tests/data/test_read_*.py tests/text tests/test_architecture.py tests/cli/test_app.py

# Tests build the same tiny models many times: JAX compiles each only once, also for tests on TensorFlow that run JAX.
JAX_CACHE := JAX_COMPILATION_CACHE_DIR='$(CURDIR)/.pytest_cache/jax' JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

export TF_CPP_MIN_LOG_LEVEL ?= 2
# Without bytecode, each of the many processes of the tests would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help quickstart install test test-quick test-all check-family check-task mutants lint test-tf test-jax test-torch wheel-check docs registry pictures minilm mpnet \
	bench clean test-lowest test-highest test-prereleases release-check check-workflows check-newcomer check-site

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# Installing through a link changes what it points to, such as the environment of another checkout.
.PHONY: own-venv
own-venv:
	@[ ! -L '$(VENV)' ] || case '$(realpath $(VENV))' in '$(realpath $(CURDIR))'/*) ;; *) \
		echo "$(VENV) is a link to $(realpath $(VENV)), outside of this folder: remove it, or make VENV=/path/of/your/own"; \
		exit 1 ;; esac

$(BIN)/python: | own-venv
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

quickstart: $(QUICKSTART_STAMP)  ## a tour: fill a mask, fine-tune a classifier, save it, serve it (2 to 3 minutes)
	@TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python examples/quickstart.py

install: $(DEV_STAMP)  ## set up the development environment

test: $(DEV_STAMP)  ## everything that CI runs: lint, docs, the built wheel, tests on both backends
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint docs
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target wheel-check test-jax
	@$(MAKE) --no-print-directory test-tf

test-quick: $(DEV_STAMP)  ## a minute of tests, to run while you work
	@echo "== quick tests"
	@$(JAX_CACHE) KERAS_BACKEND=tensorflow $(PYTEST) --quiet -m 'not slow' -k 'not training' $(PYTEST_ARGS) $(QUICK_TESTS)

test-all: $(DEV_STAMP)  ## all tests, also the slow ones, with XLA's full optimization; before a release
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint docs wheel-check
	@for backend in tf jax; do for part in $(PARTS); do \
		LMZOO_FULL_OPTIMIZATION=1 $(MAKE) --no-print-directory test-$$backend MARKS= TESTS="$$part" JAX_TESTS="$$part" || failed=yes; \
	done; done; [ -z "$$failed" ]

check-family: $(DEV_STAMP)  ## all tests of one family on both backends, a few minutes: NAME=electra
check-task: $(DEV_STAMP)  ## all tests of one task on both backends, a few minutes: NAME=TextClassifier
check-family check-task:
	@[ -n '$(NAME)' ] || { echo "make $@ needs a NAME: see 'make help'"; exit 1; }
	@echo "== tests of $(NAME), TensorFlow backend"
	@$(JAX_CACHE) KERAS_BACKEND=tensorflow $(PYTEST) --quiet --about '$(NAME)' $(PYTEST_ARGS) $(TESTS)
	@echo "== tests of $(NAME), JAX backend"
	@$(JAX_CACHE) KERAS_BACKEND=jax $(PYTEST) --quiet --about '$(NAME)' $(PYTEST_ARGS) tests/conformance

mutants: $(DEV_STAMP)  ## check that the tests find each of the faults in tests/mutants/faults.py
	@$(BIN)/python tests/mutants/run.py $(MUTANTS)

lint: $(DEV_STAMP)  ## ruff and mypy
	@echo "== lint"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

test-tf: $(DEV_STAMP)  ## the tests on TensorFlow; PYTEST_ARGS="-k bert" for some
	@echo "== tests, TensorFlow backend$(AND_SLOW)"
	@$(JAX_CACHE) KERAS_BACKEND=tensorflow $(PYTEST) --quiet -m '$(MARKS)' $(PYTEST_ARGS) $(TESTS) || [ $$? -eq 5 ]

test-jax: $(DEV_STAMP)  ## the tests of layers, models, training and conformance on JAX
	@echo "== tests, JAX backend$(AND_SLOW)"
	@$(JAX_CACHE) KERAS_BACKEND=jax $(PYTEST) --quiet -m '$(MARKS)' $(PYTEST_ARGS) $(JAX_TESTS) || [ $$? -eq 5 ]

# torch warns of itself while it compiles a step, so here warnings are no errors.
test-torch: $(DEV_STAMP)  ## the conformance of all families on Keras' torch backend, which is not first class; weekly
	@echo "== conformance, torch backend"
	@KERAS_BACKEND=torch $(PYTEST) --quiet -m 'not slow' -W default $(PYTEST_ARGS) \
		tests/conformance/test_conformance.py::test_family

wheel-check: $(DEV_STAMP)  ## build the wheel, install it into an empty folder, run the quickstart with it
	@echo "== wheel"
	@bash .ci/wheel_check.sh $(BIN)/python

$(TOOLS_STAMP): .ci/release-tools.txt | $(BIN)/python
	@echo "== installing the tools of releases into $(TOOLS)"
	@$(BIN)/python -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check install --quiet --progress-bar off --requirement .ci/release-tools.txt
	@touch $@

test-lowest: $(TOOLS_STAMP)  ## some tests with the lowest allowed version of every dependency; PYTHON=python3.13
	@echo "== lowest versions"
	@bash .ci/test_versions.sh lowest-direct $(PYTHON) $(TOOLS)/bin

test-highest: $(TOOLS_STAMP)  ## the same with the highest allowed versions
	@echo "== highest versions"
	@bash .ci/test_versions.sh highest $(PYTHON) $(TOOLS)/bin

test-prereleases: $(TOOLS_STAMP)  ## the same with release candidates, beyond the upper bounds; weekly
	@echo "== pre-releases"
	@bash .ci/test_versions.sh prereleases $(PYTHON) $(TOOLS)/bin

check-workflows: $(TOOLS_STAMP)  ## lint .github: security of the workflows, and GitHub's schemas
	@echo "== workflows"
	@bash .ci/check_workflows.sh $(TOOLS)/bin

check-newcomer:  ## install the wheel of `make release-check` into an empty environment, train and serve with it
	@echo "== a newcomer's first model"
	@bash .ci/newcomer_check.sh $(PYTHON) dist/*.whl

release-check: $(TOOLS_STAMP)  ## build into dist/, write an SBOM, look for known vulnerabilities; before a release
	@echo "== release"
	@bash .ci/release_check.sh $(PYTHON) $(TOOLS)/bin

docs: $(DOCS_STAMP)  ## build the site into site/, strictly
	@echo "== docs"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet warnings would not be counted

# axe-core comes from npm, Chromium from the system.
$(VENV)/axe/package/axe.min.js: | $(BIN)/python
	@mkdir -p $(VENV)/axe
	@cd $(VENV)/axe && npm pack --silent axe-core@4 >/dev/null && tar -xzf axe-core-*.tgz

check-site: $(DEV_STAMP) $(VENV)/axe/package/axe.min.js docs  ## check pages in Chromium: accessibility, width of a phone, links; needs npm
	@echo "== pages in Chromium"
	@LMZOO_AXE='$(CURDIR)/$(VENV)/axe/package/axe.min.js' $(BIN)/python -m pytest --quiet tests/analysis/test_accessibility.py
	@$(BIN)/python .ci/check_site.py site $(VENV)/axe/package/axe.min.js

registry: $(DEV_STAMP)  ## write lmzoo/models.py and the tables of the pages from the registries and the results of benchmarks
	@$(BIN)/python .ci/write_registry.py
	@$(BIN)/python .ci/write_public_names.py

pictures: $(DEV_STAMP)  ## draw the pictures of the site from the shipped presets; DATA=folder for all of them
	@$(BIN)/python examples/pictures.py $(if $(DATA),--data '$(DATA)')

minilm: $(QUICKSTART_STAMP)  ## fetch published weights, all-MiniLM-L6-v2 (83 MB), into real_weights/; some tests and benchmarks use them
mpnet: $(QUICKSTART_STAMP)  ## the same for all-mpnet-base-v2 (405 MB)
minilm mpnet:
	@$(BIN)/python examples/fetch_weights.py $@

bench: $(DEV_STAMP)  ## side-by-side benchmarks; needs a quiet machine
	@$(BIN)/python -m benchmarks $(BENCH)

clean:  ## remove what was built, not $(VENV)
	@rm -rf build dist site .pytest_cache .ruff_cache .mypy_cache
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
