# Every way to build, run and check Looptap. `make` alone lists them.
# Needs Python 3.11 or newer with its venv module; everything else comes from the package index.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
JOBS   ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The packages that are linted and formatted; the three first are also type-checked (pyproject.toml).
SOURCES := proxy policies exporters tests

.DEFAULT_GOAL := help
.PHONY: help run test check format lint types contracts bench soak clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/run.stamp  ## start the proxy on 127.0.0.1:4040 (ARGS="--upstream NAME=URL")
	@exec $(BIN)/looptap serve $(ARGS)

# Compiled code is kept, whatever the environment says: the tests start Looptap some hundred times.
test: $(VENV)/dev.stamp  ## run the tests (ARGS="-k word" narrows them)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n $(JOBS) $(ARGS)

check: format lint types contracts test  ## everything that must hold before a change goes in

format: $(VENV)/dev.stamp  ## check the formatting (`.venv/bin/ruff format` applies it)
	@$(BIN)/ruff format --quiet --diff $(SOURCES)

lint: $(VENV)/dev.stamp  ## lint
	@$(BIN)/ruff check --quiet $(SOURCES)

types: $(VENV)/dev.stamp  ## strict types
	@$(BIN)/mypy --no-error-summary

contracts: $(VENV)/dev.stamp  ## who may import whom
	@$(BIN)/lint-imports --no-logo

bench: $(VENV)/run.stamp  ## compare with nginx and a bare relay (needs nginx and gcc; ARGS="--rounds 1")
	@$(BIN)/python -m tests.bench.bench $(ARGS)

soak: $(VENV)/run.stamp  ## 200,000 streamed exchanges of 2,000 sessions; memory must stay flat (needs gcc)
	@$(BIN)/python -m tests.bench.soak $(ARGS)

clean:  ## remove the environment, caches and build results
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment: rebuilt only when its description changes -----------------------------------

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "looptap needs Python 3.11 or newer; '$(PYTHON)' is older or missing. Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "could not create $(VENV): is the venv module installed (on Debian: python3-venv)?" >&2; rm -rf $(VENV); exit 1; }

# setuptools is put in first and used as it is, so that building needs no download of its own.
$(VENV)/run.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), a minute or so …" >&2
	@$(PIP) install -c constraints.txt 'setuptools>=77'
	@$(PIP) install -c constraints.txt --no-build-isolation -e .
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) with what the tests need, a minute or two …" >&2
	@$(PIP) install -c constraints.txt 'setuptools>=77'
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@
