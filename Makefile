# make run and make test are all a newcomer needs; every other chore has a word below.
SHELL := /bin/bash
.DEFAULT_GOAL := help

UV_VERSION := 0.13.8
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
PYTHON ?= python3

.PHONY: help install run test test-rest test-all lint format check doctor bench bench-full lab lab-full lab-smoke lab-tools test-tools lock docs screenshots dist image image-proof clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: .venv/.installed ## make the environment .venv (the command is .venv/bin/stallscope)

run: .venv/.installed ## start the agent and a PostgreSQL for it to watch; ends with Ctrl-C
	.venv/bin/stallscope run --embedded-postgres

# Tests that wait run side by side, more of them than there are cores; those marked `gentle` four at a time, those marked `alone` one by one.
# worksteal: a worker keeps the tests of one file together (a server of the module's is started once), until another has nothing left.
# Byte code of the tests is kept wherever this runs: half of a worker's start is compiling them.
test test-rest: export PYTHONDONTWRITEBYTECODE :=
PYTEST := .venv/bin/pytest -q --durations=10
COMPILED := .venv/bin/python -m compileall -q stallscope.py agent probes exporters
BESIDE := -n 4 --dist worksteal
# What `make test` leaves out waits more than it computes.
WAITING := -n 6 --dist worksteal
# Few and long: each is handed to whoever is free, where a worker that keeps two of them cannot be relieved of the second.
GENTLE := -n 4 --dist load --maxschedchunk 1

test: test-tools ## unit tests, and the integration tests that prove the parts together (3 minutes)
	$(PYTEST) $(BESIDE) tests/unit tests/integration -m "core and not alone"
	$(PYTEST) tests/integration -m "core and alone"

test-rest: test-tools ## what `make test` leaves out
	$(PYTEST) $(WAITING) tests/integration tests/lab/unit -m "not core and not alone and not gentle"
	$(PYTEST) $(GENTLE) tests/integration -m "not core and gentle"
	$(PYTEST) tests/integration tests/lab/unit -m "not core and alone"

test-all: test test-rest ## everything (12 minutes)

lint: .venv/.installed ## ruff, mypy, import-linter
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

format: .venv/.installed ## let ruff lay out the code
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

check: lint test ## linters and tests

doctor: .venv/.installed ## measure this machine for 30 s and print what is found
	.venv/bin/stallscope doctor

# ONLY=app is what the app itself makes of its CPUs, its loop, its log and its Redis. Some of it needs a stage of its own: no scenario has
# a slow disk, a name server or a group above all.
OF_APP := app- runtime limit-too-low redis
STAGED := tests.lab.names tests.lab.os_stalls tests.lab.hidden_quota
CELLS = $(if $(filter app,$(ONLY)),$(OF_APP:%=--only %),$(if $(ONLY),--only "$(ONLY)"))

bench: .venv/.installed ## what the agent costs, beside node_exporter and postgres_exporter (six minutes, as root; ONLY=cell, AGAINST=checkout)
	$(COMPILED)
	.venv/bin/python -m tests.bench $(if $(ONLY),--only $(ONLY)) $(if $(AGAINST),--against $(AGAINST))

bench-full: .venv/.installed ## the same for every cell, long enough for a p99 (40 minutes), into docs/evidence/bench.md
	$(COMPILED)
	.venv/bin/python -m tests.bench --full --page

# The lab leaves in order at Ctrl-C, which the shell would take for an end like any other, and go on with the next stage.
lab: .venv/.installed ## real stalls against the real agent, scored (under 30 minutes; ONLY=text for some; ONLY=app for all about the app itself, 80)
	@trap 'exit 130' INT; failed=0; .venv/bin/python -m tests.lab $(CELLS) || failed=1; \
	for stage in $(if $(filter app,$(ONLY)),$(STAGED)); do .venv/bin/python -m $$stage || failed=1; done; exit $$failed

lab-full: .venv/.installed ## every scenario five times (about 2 hours), into lab-results/
	.venv/bin/python -m tests.lab --set full --repeats 5

lab-smoke: .venv/.installed ## a healthy app and a throttled one, in three minutes, as CI runs them
	.venv/bin/python -m tests.lab --set smoke

test-tools: .venv/.installed ## install what the tests need and can be had by name, once
	-@.venv/bin/python -m tests.lab.tools test

lab-tools: .venv/.installed ## install what the lab needs and can be had by name (some of it as root)
	.venv/bin/python -m tests.lab.tools

docs: .venv/.installed ## write everything that is generated anew: reference pages, tables of the settings, golden files
	.venv/bin/python -m tests.unit.reference

screenshots: .venv/.installed ## pictures of the page of real agents beside real stalls, into docs/images/ (five minutes, as root)
	.venv/bin/python -m tests.lab.screenshots

dist: $(UV) ## build the wheel and the source distribution into dist/
	$(UV) build --quiet

image: ## build the container image, with docker or, as root, with buildah, and say its size
	$(PYTHON) deploy/image/build.py

image-proof: .venv/.installed ## build it and start it, and its tree in other images, as unprivileged users do (as root)
	.venv/bin/python -m tests.lab.image_places

lock: $(UV) ## resolve the dependencies anew into uv.lock
	$(UV) lock --upgrade

clean: ## remove everything that make made
	rm -rf .venv .tools build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Byte code is compiled at once: without it a start at a 5 % quota takes 23 s instead of 6 s.
.venv/.installed: uv.lock pyproject.toml | $(UV)
	$(UV) sync --frozen --extra cloud-logging --extra embedded-postgres --extra mcp --extra otlp --extra web --python $(PYTHON) --compile-bytecode
	$(COMPILED)
	@touch $@

# A fresh Debian has python3 without venv; root may install it, others are told.
.tools/bin/uv:
	@$(PYTHON) -m venv .tools 2>/dev/null || { rm -rf .tools; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -q && apt-get install -qy --no-install-recommends python3-venv && $(PYTHON) -m venv .tools; \
	  else echo "python3-venv is missing: apt-get install python3-venv" >&2; exit 1; fi; }
	.tools/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
