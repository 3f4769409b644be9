# Everything runs from a virtual environment of the checkout's own, `.venv`, made from
# constraints.txt on first use and made again when that file or pyproject.toml changes.
# What has to be there beforehand: make, and Python 3.11 or newer (PYTHON=… names another one); and
# Node.js 20 with npm, if the tests against servers written in JavaScript are to run.

PYTHON  ?= python3
# Test processes at once, each with whole modules of tests: `make test WORKERS=0` for none beside this
# one. Two by default: one after the other, seven thousand tests take twice as long.
WORKERS ?= 2
# More for pytest: `make test ARGS="-k session -x"`.
ARGS    ?=

BIN   := .venv/bin
STAMP := .venv/.installed
NODE_STAMP := tests/interop/node_modules/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
TEST  := $(BIN)/python -m pytest tests $(if $(filter-out 0,$(WORKERS)),-n $(WORKERS) --dist loadscope)

.DEFAULT_GOAL := help
.PHONY: help install demo test check bench peers docs lint types format snapshot clean

help:
	@echo "make install    the virtual environment, with mainstay and the tools in it"
	@echo "make demo       watch a client survive its server, in a few seconds"
	@echo "make test       the tests"
	@echo "make check      all that CI runs: format, lint, types, imports, docs, tests, coverage"
	@echo "make bench      measure the cost of a call"
	@echo "make peers      each framework's own MCP integration beside ours, in trouble"
	@echo "make docs       fail when a generated page is stale"
	@echo "make lint       format check, lint, import contracts"
	@echo "make types      pyright, strict"
	@echo "make format     put the code into shape"
	@echo "make snapshot   write down the public API as it is now"
	@echo "make clean      remove the virtual environment and what the tools left"

# hatchling comes first so that mainstay is built with the pinned one, not with one from a build
# environment that constraints do not reach.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "mainstay needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) hatchling
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m mainstay.demo

# Servers in JavaScript that tests/interop talks to. A machine without Node does without them.
$(NODE_STAMP): tests/interop/package.json
	@if command -v npm >/dev/null && \
	    node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; then \
	  echo "npm install in tests/interop"; cd tests/interop && \
	  npm install --no-package-lock --no-audit --no-fund --silent && touch node_modules/.installed; \
	else \
	  echo "Left out: the tests against servers in JavaScript (they need Node.js 20 and npm)."; \
	fi

test: $(STAMP) $(NODE_STAMP)
	$(TEST) $(ARGS)

check: lint types docs
	@$(MAKE) --no-print-directory test ARGS="--cov --cov-report= $(ARGS)"
	@$(BIN)/coverage json --quiet
	@$(BIN)/python tests/coverage_gate.py coverage.json

bench: $(STAMP)
	$(BIN)/python benchmarks/calls.py

# In an environment of its own: CI has no need of what the frameworks' integrations need.
PEERS := .venv-peers/bin
.venv-peers/.installed: pyproject.toml constraints.txt
	@test -x $(PEERS)/python || $(PYTHON) -m venv .venv-peers
	$(PEERS)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt hatchling
	$(PEERS)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --no-build-isolation --editable '.[peers]'
	@touch $@

peers: .venv-peers/.installed
	@for script in benchmarks/peers/*.py; do echo "== $$script"; $(PEERS)/python $$script || exit 1; done

docs: $(STAMP)
	$(BIN)/python docs/generate.py --check

lint: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports

# Named, because pyright would rather take a pyrightconfig.json from a folder above.
types: $(STAMP)
	$(BIN)/pyright --project pyproject.toml

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

snapshot: $(STAMP)
	$(BIN)/python tests/test_public_api.py --write

clean:
	rm -rf .venv .venv-peers build dist htmlcov .coverage .coverage.* coverage.json \
	  .pytest_cache .ruff_cache .import_linter_cache .hypothesis tests/interop/node_modules
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
