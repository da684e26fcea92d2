# Two commands matter: `make demo` and `make test`. Both make .venv when it is missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
READY := $(VENV)/.runs
SITE := $(VENV)/.site
EXTRAS := dev,peers,data
# One thread for each of the two test processes: more threads than cores only slow each other down.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help demo install test pytest docs figures faults bench format lint types browser clean

help: ## say what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 16

demo: $(READY) ## train a continuous Transformer for a few minutes, and write a report
	@# one thread: two wait for each other as soon as anything else runs beside them
	@$(BIN)/continua train mnist1d --threads 1

install: $(STAMP) ## install everything: extras, peers, tests and linters

test: $(STAMP) ## format check, lint, types, import contracts, dependencies, all tests
	@echo '== format check'
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory lint
	@# types have one process and a minute: beside the tests they cost half of it
	@$(MAKE) --no-print-directory -j 2 types pytest

pytest: $(STAMP) ## all tests, slow ones included
	@echo '== tests, slow ones included'
	@$(ONE_THREAD) $(BIN)/pytest -n 2 --dist worksteal --durations=10

docs: $(SITE) ## build the documentation site, build/site/index.html; warnings are errors, links are checked
	@echo '== pages, with the reference from the docstrings'
	@PYTHONPATH=docs $(BIN)/python -m tools.stage build/pages
	@$(BIN)/zensical build --strict
	@echo '== open build/site/index.html'

figures: $(STAMP) ## run the tutorials and write their figures anew
	@$(ONE_THREAD) PYTHONPATH=docs $(BIN)/python -m tools.figures

faults: $(STAMP) ## break runs and join ranks in every way that is known, for half an hour: kills, signals, damaged files
	@CONTINUA_FAULTS=all $(ONE_THREAD) $(BIN)/pytest tests/faults tests/train/test_ranks.py \
		tests/solve/test_sharded.py tests/cli/test_broken_runs.py tests/cli/test_plan.py -m '' --durations=10

bench: $(STAMP) ## measure against the peers
	@$(BIN)/continua bench all

format: $(STAMP) ## rewrite the sources in the house format
	@echo '== format'
	@$(BIN)/ruff check --quiet --select I --fix .
	@$(BIN)/ruff format .

lint: $(STAMP) ## lint, rules of import between rooms, declared dependencies
	@echo '== lint'
	@$(BIN)/ruff check .
	@echo '== imports between rooms'
	@$(BIN)/lint-imports --no-logo
	@echo '== declared dependencies'
	@$(BIN)/deptry --no-ansi src

types: $(STAMP) ## check the types
	@echo '== types'
	@$(BIN)/basedpyright

browser: ## install Chromium for the page tests, where this is allowed
	@if command -v chromium >/dev/null; then \
		echo '== browser: chromium is already here'; \
	elif [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
		echo '== browser: not installed, since this needs root and apt-get. The page tests are skipped' \
		     'until a program named `chromium` is on the PATH.'; \
	else \
		echo '== browser: installing chromium with apt-get'; \
		apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium \
		|| echo '== browser: apt-get could not install chromium (see above). The page tests are skipped.'; \
	fi

clean: ## remove caches and built files, but not .venv
	@echo '== removing caches and built files'
	@rm -rf build dist .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'continua needs Python 3.11 or newer, but `$(PYTHON)` is missing or older.' \
		     'Name another one: make PYTHON=python3.11 $(MAKECMDGOALS)' >&2; exit 1; }
	@echo '== making $(VENV)'
	@$(PYTHON) -m venv $(VENV)

# Stamps are touched last, so that an interrupted install is taken up again.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo '== installing continua and torch with the versions of constraints.txt (a minute or more; pip is silent)'
	@$(INSTALL) -e '.[data]'
	@touch $(READY)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo '== installing what tests, linters and benchmarks need (a minute or more; pip is silent)'
	@$(INSTALL) -e '.[$(EXTRAS)]'
	@touch $(STAMP) $(READY)

$(SITE): pyproject.toml constraints.txt | $(BIN)/python
	@echo '== installing continua and what builds the site (a minute or more; pip is silent)'
	@$(INSTALL) -e '.[data,peers,docs]'
	@touch $(SITE) $(READY)
