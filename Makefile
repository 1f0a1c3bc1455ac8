# What one can do here. `make help` lists it.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DATA ?= .holdfast
PORT ?= 7070
.DEFAULT_GOAL := help

.PHONY: help
help: ## list what one can do
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Holdfast needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup
setup: $(READY) ## make the virtual environment from the lock file

.PHONY: run
run: $(READY) ## start a warm fleet on this machine: http://127.0.0.1:7070
	$(BIN)/holdfast up --data-dir $(DATA) --port $(PORT) -f examples/pools.yaml

.PHONY: demo
demo: $(READY) ## a guided minute: a replica is killed, Postgres is stopped, and nothing is lost
	$(BIN)/python -m holdfast.demo

.PHONY: check
check: $(READY) ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Processes that tests start would compile every module again and again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test-quick
test-quick: $(READY) ## every test that needs no fleet and no cluster: a minute on two cores, while you change things
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not whole" --ignore tests/e2e --ignore tests/soak

.PHONY: test
test: $(READY) ## all tests, on real parts (ARGS='-k word' chooses)
	@scripts/test_tools.sh
	$(BIN)/pytest -n 3 --dist worksteal $(ARGS)

.PHONY: kube
kube: $(READY) ## build a real Kubernetes control plane and Helm into a cache, once (Go; about fifteen minutes)
	@scripts/kube.sh
	@scripts/helm.sh

.PHONY: kube-up
kube-up: kube ## leave such a control plane with three nodes running, with a kubeconfig, to try things
	cd testcluster && ../$(BIN)/python -m holdfast_testcluster up

.PHONY: demo-kube
demo-kube: $(READY) ## a guided minute on such a control plane: a replica is killed, a node is drained, and nothing is lost
	cd tests && PYTHONPATH=kubernetes:../testcluster ../$(BIN)/python -m kube_demo

.PHONY: soak
soak: $(READY) ## five minutes of random faults (HOLDFAST_SOAK_SECONDS, HOLDFAST_SOAK_SEED)
	HOLDFAST_SOAK_SECONDS=$${HOLDFAST_SOAK_SECONDS:-300} $(BIN)/pytest -s tests/soak

.PHONY: sim
sim: $(READY) ## whole fleets on virtual time under every fault: SEED=7 replays one, SEEDS=200 runs many, FAULTS=pod.kill of these faults only, FRESH=4 adds new ones
	$(BIN)/python -m holdfast.sim $(if $(SEED),--seed $(SEED),$(if $(SEEDS),--seeds $(SEEDS))) $(if $(FAULTS),--faults $(FAULTS)) --fresh $(or $(FRESH),$(if $(SEEDS),0,4))

.PHONY: sim-mutants
sim-mutants: $(READY) ## deliberate bugs and past ones, one at a time: the simulation must catch each (ONLY=word chooses)
	$(BIN)/python scripts/sim_mutants.py $(if $(ONLY),--only "$(ONLY)")

.PHONY: mutate
mutate: mutate-sql mutate-python ## small bugs, one at a time, in SQL and Python: a test must notice each

.PHONY: mutate-python
mutate-python: $(READY) ## the Python part: ONLY=duties/scale.py chooses files, SAMPLE=40 SEED=2 draws some, AGAIN=1 what survived last
	$(BIN)/python -m mutation.python $(if $(ONLY),--only "$(ONLY)") $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) $(if $(AGAIN),--again) $(if $(AT_LEAST),--at-least $(AT_LEAST))
.PHONY: mutate-sql
mutate-sql: $(READY) ## small bugs in the SQL, one at a time: a test must notice each (ONLY=ends.sql, SAMPLE=40 SEED=2, AGAIN=1)
	$(BIN)/python -m mutation.run $(if $(ONLY),--only "$(ONLY)") $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(AGAIN),--again) $(if $(AT_LEAST),--at-least $(AT_LEAST))

.PHONY: docs
docs: $(READY) ## write the docs that come from the code: metrics, state machines
	$(BIN)/python scripts/gen_docs.py

.PHONY: bench
bench: $(READY) ## figures beside their limits, written into docs/benchmarks.md (13 minutes on a busy machine; PARTS="jobs leases" runs some; AGAINST=rev compares two checkouts)
	$(BIN)/python -m $(if $(AGAINST),bench.against $(AGAINST),bench --write) $(PARTS)

.PHONY: bench-kube
bench-kube: kube ## the same on a real API server: protected claims among a thousand hollow pods, and what five thousand cost
	$(BIN)/python -m bench --write kube kube-scale

.PHONY: lock
lock: $(READY) ## write requirements.lock anew from pyproject.toml
	$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --extra dev --python-version 3.11 --universal pyproject.toml -o requirements.lock

.PHONY: clean
clean: ## remove the virtual environment and caches (not the data directory)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
