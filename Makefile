# The only door. `make help` lists what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
CONFIG ?= examples/tiny.toml
TARGET ?= local
TIMES ?= 1
JOBS ?= 3
SRC := $(wildcard libs/*/src services/*/src console/src)
INSTALL := VENV="$(VENV)" PYTHON="$(PYTHON)" TORCH="$(TORCH)" infra/setup/setup.sh
DOOR := PATH="$(abspath $(BIN)):$$PATH" infra/terraform
export OMP_NUM_THREADS ?= 1
# Images of containers often set this. Without a cache of its bytecode, each process compiles torch
# again (2 s of CPU) and Headway's own modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-lab setup-test run slurm-bed test-packages lab test bytecode check lint types fmt lock lock-check docs screenshots matrix \
        drill campaign mutations mutants down-time bench-train fuzz gpu gpu-wheels up down status logs ssh infra-test clean

help: ## this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: ## install what a run needs into .venv (PYTHON=python3.12, TORCH=cpu)
	@$(INSTALL) run

setup-lab:
	@$(INSTALL) lab

setup-test:
	@$(INSTALL) test

run: $(if $(filter netns,$(TARGET)),setup-test,setup) ## train examples/tiny.toml (or CONFIG=...) on this machine (TARGET=netns: on five simulated ones; root)
	$(if $(filter netns,$(TARGET)),"$(PY)" -m headway.testkit.machines,"$(BIN)/headway" run) $(CONFIG) $(ARGS)

slurm-bed: setup-test ## train it on five simulated machines of a real Slurm (root; see test-packages)
	"$(PY)" -m headway.testkit.machines --slurm $(CONFIG) $(ARGS)

test-packages: ## install what tests of Slurm, ssh and the browser need, as root on Debian (.ci/run does it)
	@infra/setup/test_packages.sh

lab: setup-lab ## JupyterLab with the notebooks
	@install -D -m 644 infra/setup/lab_page_config.json "$(VENV)/etc/jupyter/labconfig/page_config.json"
	"$(BIN)/jupyter" lab notebooks $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

test: setup-test ## every test but the slow ones of `make fuzz`; JOBS=3 files at a time
	@mkdir -p .pytest_cache
	"$(PY)" -m pytest -q -m "not slow" -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=10 $(ARGS); \
	    code=$$?; echo $$code > .pytest_cache/exit; exit $$code

bytecode: setup-test ## compile all tests once; else each of the JOBS would (.ci/run does it)
	@"$(PY)" -m pytest -q --collect-only -p no:cacheprovider >/dev/null 2>&1 || true

check: lint types ## format, lint, types and the fast tests
	"$(PY)" -m pytest -q -m "not slow" libs services/controller/tests/decisions/test_state.py \
	    tests/house $(ARGS)

lint: setup-test ## check format and lint with ruff
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .

types: setup-test ## check types with mypy --strict
	"$(BIN)/mypy" $(SRC) infra/setup docs

fmt: setup-test ## format and sort
	"$(BIN)/ruff" check --fix -q .
	"$(BIN)/ruff" format -q .

lock: setup-test ## write constraints.txt from the pyproject files (UPGRADE=1: newest releases)
	"$(PY)" infra/setup/lock.py

lock-check: setup-test ## fail if constraints.txt and the pyproject files disagree
	"$(PY)" infra/setup/lock.py --check

docs: setup-test ## write docs/configuration.md from the docstrings
	"$(PY)" docs/configuration.py

screenshots: setup-test ## take the screenshots in docs/pictures/ of a real run in Chromium
	"$(PY)" docs/screenshots.py

matrix: setup-test ## compare every layout, schedule and block with one process
	"$(PY)" -m benchmarks.matrix --out benchmarks/results/matrix.json

drill: setup-test ## run the fifteen drills (TIMES=1), then 60 seeded faults over 3 runs
	"$(PY)" -m benchmarks.drill --all --times $(TIMES) --out benchmarks/results/drills.json; \
	    code=$$?; "$(PY)" -m benchmarks.drill --faults 60 --out benchmarks/results/drill.json \
	    && exit $$code

campaign: setup-test ## judge seeded hangs and stragglers with known culprits, and healthy runs
	"$(PY)" -m benchmarks.campaign --out benchmarks/results/campaign.json $(ARGS)

mutations: setup-test ## break the source in chosen places and check that the named tests fail
	"$(PY)" -m benchmarks.mutations --out benchmarks/results/mutations.json

mutants: setup-test ## measure how many of 200 seeded mutants of control/ and wire/ the tests catch
	"$(PY)" -m uv pip install -q --python "$(PY)" --group mutants -c constraints.txt
	"$(PY)" -m benchmarks.mutants --out benchmarks/results/mutants.json

down-time: setup-test ## measure step times while each service is down
	"$(PY)" -m benchmarks.service_down --out benchmarks/results/service_down.json

bench-train: setup-test ## compare the engine with compiled torch and other peers; about 30 minutes
	"$(PY)" -m benchmarks.train $(ARGS)

fuzz: setup-test ## run the slow tests: 100,000 hostile inputs per socket, pods, faults of whole runs
	"$(PY)" -m pytest -q -m slow

gpu: ## run the GPU tests, also without a network (PART=model, groups, recovery, health or bench)
	@ARGS="$(ARGS)" python3 infra/gpu/gpu.py run $(PART)

gpu-wheels: setup ## fill wheels/ with what `make gpu` installs there
	"$(PY)" infra/gpu/gpu.py wheels

up: setup ## create or repair a cluster of TARGET with Terraform (NODES=3; DRAIN=1: stop runs on nodes that end)
	$(DOOR)/up.sh $(TARGET) $(NODES)

down: setup ## stop the runs of that cluster with a checkpoint, then its nodes (YES=1: do not ask)
	$(DOOR)/down.sh $(TARGET)

status: setup ## what differs from what `up` has made, and the runs of that cluster; exit code 2 if it drifted
	@$(DOOR)/status.sh $(TARGET)

logs: setup ## newest log lines of its nodes (NODE=1: of one)
	@$(DOOR)/logs.sh $(TARGET) $(NODE)

ssh: setup ## a shell on the machine of node NODE=0 (ARGS=...: run that there)
	@$(DOOR)/ssh.sh $(TARGET) "$(NODE)" $(ARGS)

infra-test: setup-test ## format, validate and test all targets, then the clusters of tests/infra; skips are printed
	PATH="$(abspath $(BIN)):$$PATH" infra/terraform/test.sh "$(PY)" -m pytest -q tests/infra -n 3 --dist loadfile $(ARGS)

clean: ## remove the virtual environment and caches; runs/ and data/ stay
	rm -rf "$(VENV)" .uv-cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
