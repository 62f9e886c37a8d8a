# `make help` lists the targets. Knobs: PYTHON (3.11 or newer), PYTEST_ARGS (options of pytest), COVERAGE=1 (which lines
# the unit tests reach), WORKERS=0 (one test at a time: 10 GiB instead of 15), WALFERRY_CACHE (jars), SOURCE and TARGET
# (HBase of the clusters that are booted: 1.7.2, 2.2.3, 2.5.7 or, by default, 2.6.3), SECURITY=kerberos (secured ones).
PYTHON ?= python3
PYTEST_ARGS ?=
COVERAGE ?=
WORKERS ?= 3
VERSIONS_AT_ONCE ?= 2
SOURCE := $(WALFERRY_SOURCE_VERSION)
TARGET := $(WALFERRY_TARGET_VERSION)
SECURITY := $(WALFERRY_SECURITY)
export WALFERRY_SOURCE_VERSION := $(SOURCE)
export WALFERRY_TARGET_VERSION := $(TARGET)
export WALFERRY_SECURITY := $(SECURITY)
VENV := .venv
BIN := $(VENV)/bin
UV := uv==0.13.8
PROTOS := $(wildcard src/walferry/formats/proto/*.proto)

.DEFAULT_GOAL := help
# Unit tests have no server to share: on all cores, two workers each, since some tests wait.
UNIT_WORKERS = $(shell $(PYTHON) -c "import os; print(2 * os.cpu_count())")
UNIT_TESTS = $(BIN)/pytest tests/unit -n $(UNIT_WORKERS) --dist worksteal \
  $(if $(COVERAGE),--cov=walferry --cov-report=term:skip-covered) $(PYTEST_ARGS)

CLUSTER_TESTS = $(BIN)/pytest tests/e2e tests/security tests/integration -m "not memory and not matrix and $(1)" -n $(WORKERS) --dist loadscope \
  --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: help setup kerberos check check-kerberos jars demo test test-unit test-clusters test-long test-integration test-versions test-security test-memory test-faults test-e2e fuzz chaos bench bench-wal bench-round bench-reread bench-stream bench-receive bench-receive-kafka bench-lag bench-protection up down lint lock

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: check $(BIN)/.walferry jars ## Virtual environment from the lock, jars into the cache folder; quick when nothing changed

kerberos: check-kerberos $(BIN)/.kerberos ## Into .venv what secured clusters need: the extra `kerberos`, which is built from source

demo: setup ## Move two live tables between two real clusters, and prove it
	$(BIN)/python -m walferry.embedded demo

test: setup ## Unit, integration on real clusters, end to end in a real Airflow; without `make test-long`
	$(UNIT_TESTS)
	$(call CLUSTER_TESTS,not long)

test-clusters: setup ## `make test` without the unit tests
	$(call CLUSTER_TESTS,not long)

test-long: setup ## Integration and end-to-end tests that take minutes or show one more case; not part of `make test`
	$(call CLUSTER_TESTS,long)

test-unit: setup ## What needs no server: two to three minutes on two cores
	$(UNIT_TESTS)

test-integration: setup ## On two real clusters
	$(BIN)/pytest tests/integration $(PYTEST_ARGS)

test-versions: setup ## Every HBase that can be booted, as source and target; not part of `make test`
	$(BIN)/pytest tests/versions -n $(VERSIONS_AT_ONCE) --dist loadscope $(PYTEST_ARGS)

test-security: setup kerberos ## On clusters with Kerberos, of each version and protection; `make test` has those of one
	$(BIN)/pytest tests/security $(PYTEST_ARGS)

test-memory: setup ## What a Spark worker holds of very large entries and rows; not part of `make test`
	$(BIN)/pytest tests/integration -m memory $(PYTEST_ARGS)

test-e2e: setup ## In a real Airflow between two real clusters, with a Spark cluster
	$(BIN)/pytest tests/e2e $(PYTEST_ARGS)

FUZZ_ARGS ?=
fuzz: setup ## Read 10,000 damaged logs of each kind; a failure names its case (FUZZ_ARGS="--kind … --first … --cases 1")
	cd tests && ../$(BIN)/python -m fuzz.wal $(FUZZ_ARGS)

test-faults: setup ## What lasts: servers, ZooKeeper, ledger away for a minute or two, masters that fail over, clusters that move; not part of `make test`; an hour
	$(BIN)/pytest tests/faults $(PYTEST_ARGS)

SEED ?= 1
RUNS ?= 1
MODE ?= mild
LEDGER ?= sqlite
CHAOS_ARGS ?=
chaos: setup ## Short migrations, restores or streams under load, with kill -9 and SIGSTOP by a schedule (SEED=n RUNS=n MODE=mild|full|again|keep|stream LEDGER=sqlite|postgresql; docs/chaos.md)
	cd tests && ../$(BIN)/python -m chaos --seed $(SEED) --runs $(RUNS) --mode $(MODE) --ledger $(LEDGER) $(CHAOS_ARGS)

ROWS ?=
ROUNDS ?= 3
SIZE ?= 1
SWEEP ?=
bench: setup ## walferry beside HBase's own tools on two real clusters (ROWS=a,b ROUNDS=3 SIZE=1 SWEEP=1; bench/README.md)
	$(BIN)/python -m bench.side_by_side --rows "$(ROWS)" --rounds $(ROUNDS) --size $(SIZE) $(if $(SWEEP),--sweep)

BENCH_ARGS ?=
bench-wal: setup ## How fast logs of each kind are read, beside HBase's own reader (BENCH_ARGS: its options)
	$(BIN)/python bench/wal_speed.py $(BENCH_ARGS)

bench-round: setup ## What a round costs walferry itself on a large source (BENCH_ARGS: its options); about ten minutes
	$(BIN)/python -m bench.round_cost $(BENCH_ARGS)

bench-reread: setup ## What it costs to prove a table equal again, beside reading it whole (BENCH_ARGS: its options)
	$(BIN)/python -m bench.reread_cost $(BENCH_ARGS)

bench-stream: setup ## How fast a stream sends a backlog to Kafka, beside a plain producer (BENCH_ARGS: its options)
	$(BIN)/python -m bench.stream_speed $(BENCH_ARGS)

bench-receive: setup ## How fast a source ships a backlog to receivers, beside HBase's own sink (BENCH_ARGS: its options)
	$(BIN)/python -m bench.receive_speed $(BENCH_ARGS)

bench-receive-kafka: setup ## How fast a source ships a backlog through receivers into Kafka (BENCH_ARGS: its options; --proxy: beside Apache's HBase Kafka Proxy)
	$(BIN)/python -m bench.receive_kafka_speed $(BENCH_ARGS)

bench-lag: setup ## How far the target is behind, seen from outside, while regions move and a server dies (BENCH_ARGS: its options)
	$(BIN)/python -m bench.follow_lag $(BENCH_ARGS)

bench-protection: setup kerberos ## What Kerberos's protections and TLS cost a replay by RPC, beside an open target (BENCH_ARGS: its options)
	$(BIN)/python -m bench.protection_cost $(BENCH_ARGS)

up: setup $(if $(SECURITY),kerberos) ## Boot source, target and Airflow, and leave them running (addresses: .run/endpoints.json; SECURITY=kerberos)
	$(BIN)/python -m walferry.embedded up

down: ## Stop what `make up` has started
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m walferry.embedded down; fi

lint: setup ## ruff, mypy and the limits of files and functions, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/sizes.py
	$(BIN)/mypy

UPGRADE ?=
lock: $(BIN)/.lock-installed ## Add what is new in pyproject.toml to requirements.lock; UPGRADE=1: newest versions of all
	$(BIN)/python -m uv pip compile -q --universal --python-version 3.11 --extra dev \
	  --no-header --no-annotate $(if $(UPGRADE),--upgrade) -o requirements.lock pyproject.toml
	$(BIN)/python -m uv pip compile -q --universal --python-version 3.11 --extra dev --extra embedded-kerberos -c requirements.lock \
	  --no-header --no-annotate $(if $(UPGRADE),--upgrade) -o requirements-kerberos.lock pyproject.toml
	@# Only what requirements.lock does not have.
	@grep -vxFf requirements.lock requirements-kerberos.lock > $(BIN)/kerberos.lock; mv $(BIN)/kerberos.lock requirements-kerberos.lock

# What cannot be installed by us, each with one line that says what to do.
check:
	@case "$$(uname -s)" in Linux|Darwin) ;; *) echo "walferry needs Linux or macOS, this is $$(uname -s)" >&2; exit 1 ;; esac
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): install Python 3.11 or newer, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1): install Python 3.11 or newer, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: apt install python3-venv)" >&2; exit 1; }
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	  version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	  [ "$${version:-0}" -ge 17 ] || \
	  { echo "$$java is $${version:-not there}: install JDK 17 or newer (Debian: apt install openjdk-17-jdk-headless)" >&2; exit 1; }

check-kerberos:
	@[ -e $(BIN)/.kerberos ] || command -v krb5-config >/dev/null || \
	  { echo "no krb5-config: install Kerberos for developers (Debian: apt install libkrb5-dev)" >&2; exit 1; }
	@[ -e $(BIN)/.kerberos ] || command -v cc >/dev/null || \
	  { echo "no C compiler, and python-gssapi is built from source: install one (Debian: apt install gcc)" >&2; exit 1; }

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

$(BIN)/.lock-installed: requirements.lock | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/python -m uv pip install --no-deps --compile-bytecode -r requirements.lock
	@touch $@

$(BIN)/.kerberos: requirements-kerberos.lock $(BIN)/.lock-installed
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/python -m uv pip install --no-deps --compile-bytecode -r requirements-kerberos.lock
	@touch $@

$(BIN)/.walferry: $(BIN)/.lock-installed pyproject.toml hatch_build.py $(PROTOS)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/python -m uv pip install --no-deps --no-build-isolation -e .
	$(BIN)/python -m walferry.formats # compiles the numba kernels into their cache
	$(BIN)/python -m walferry.streams # likewise
	$(BIN)/python -m walferry.spark archive # Spark's classes, which the JVM would load and check at each start
	$(BIN)/python -m compileall -q src # which Python leaves undone where PYTHONDONTWRITEBYTECODE is set
	@touch $@

jars: $(BIN)/.walferry
	@$(BIN)/python -m walferry.embedded jars --kafka
