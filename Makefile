# The commands for developers. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DATA ?= .holdfast
PORT ?= 7070
.DEFAULT_GOAL := help

.PHONY: help
help: ## list these commands
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
demo: $(READY) ## a demo of one minute: a replica is killed, Postgres is stopped, and nothing is lost
	$(BIN)/python -m holdfast.demo

.PHONY: check
check: $(READY) ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# With this variable, every process that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test-quick
test-quick: $(READY) ## run the tests that need no fleet and no cluster
	$(BIN)/pytest -q -n 4 --dist loadgroup -m "not whole" --ignore tests/e2e --ignore tests/soak

.PHONY: test
test: $(READY) ## run all tests, with real Postgres and Kubernetes (ARGS='-k word' selects tests)
	@scripts/test_tools.sh
	$(BIN)/pytest -n 4 --dist loadgroup $(ARGS)

.PHONY: kube
kube: $(READY) ## build a real Kubernetes control plane and Helm into a cache, once (Go; about fifteen minutes)
	@scripts/kube.sh
	@scripts/helm.sh

.PHONY: kube-up
kube-up: kube ## run a Kubernetes control plane with three nodes until Ctrl-C, and print its kubeconfig
	cd testcluster && ../$(BIN)/python -m holdfast_testcluster up

.PHONY: demo-kube
demo-kube: $(READY) ## a demo on a Kubernetes control plane: a replica is killed, a node is drained, and nothing is lost
	cd tests && PYTHONPATH=kubernetes:../testcluster ../$(BIN)/python -m kube_demo

.PHONY: soak
soak: $(READY) ## run five minutes of random faults on a real fleet (HOLDFAST_SOAK_SECONDS, HOLDFAST_SOAK_SEED)
	HOLDFAST_SOAK_SECONDS=$${HOLDFAST_SOAK_SECONDS:-300} $(BIN)/pytest -s tests/soak

.PHONY: fuzz
fuzz: $(READY) ## send mutated requests to everything that listens: SEED=7 repeats a run, SECONDS=60 is its length, BATCH=3 sends one batch only
	cd tests && ../$(BIN)/python -m fuzz $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(BATCH),--batch $(BATCH))

.PHONY: sim
sim: $(READY) ## simulate whole fleets with all faults: SEED=7 replays one run, SEEDS=200 runs many, FAULTS=pod.kill uses only these faults, FRESH=4 adds new seeds
	$(BIN)/python -m holdfast.sim $(if $(SEED),--seed $(SEED),$(if $(SEEDS),--seeds $(SEEDS))) $(if $(FAULTS),--faults $(FAULTS)) --fresh $(or $(FRESH),$(if $(SEEDS),0,4))

.PHONY: sim-mutants
sim-mutants: $(READY) ## put in deliberate and past bugs, one at a time: the simulation must find each (ONLY=word selects bugs)
	$(BIN)/python scripts/sim_mutants.py $(if $(ONLY),--only "$(ONLY)")

.PHONY: mutate
mutate: mutate-sql mutate-python ## put small bugs into SQL and Python, one at a time: a test must fail for each

.PHONY: mutate-python
mutate-python: $(READY) ## put small bugs into the Python code only: ONLY=duties/scale.py selects files, SAMPLE=40 SEED=2 draws some, AGAIN=1 repeats the survivors
	$(BIN)/python -m mutation.python $(if $(ONLY),--only "$(ONLY)") $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) $(if $(AGAIN),--again) $(if $(AT_LEAST),--at-least $(AT_LEAST))

.PHONY: mutate-sql
mutate-sql: $(READY) ## put small bugs into the SQL only (ONLY=ends.sql, SAMPLE=40 SEED=2, AGAIN=1, as above)
	$(BIN)/python -m mutation.run $(if $(ONLY),--only "$(ONLY)") $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(AGAIN),--again) $(if $(AT_LEAST),--at-least $(AT_LEAST))

.PHONY: docs
docs: $(READY) ## generate the docs that come from the code: metrics, state machines
	$(BIN)/python scripts/gen_docs.py

.PHONY: bench
bench: $(READY) ## measure figures and their limits, and write them into docs/benchmarks.md (4 minutes on a quiet machine; PARTS="jobs leases" runs some; AGAINST=rev compares two checkouts)
	$(BIN)/python -m $(if $(AGAINST),bench.against $(AGAINST),bench --write) $(PARTS)

.PHONY: bench-kube
bench-kube: kube ## measure on a real API server: protected claims among a thousand hollow pods, and the cost of five thousand
	$(BIN)/python -m bench --write kube kube-scale

.PHONY: lock
lock: $(READY) ## write requirements.lock again from pyproject.toml
	$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --extra dev --python-version 3.11 --universal pyproject.toml -o requirements.lock

.PHONY: clean
clean: ## remove the virtual environment and caches (not the data directory)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
