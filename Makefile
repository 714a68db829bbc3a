# The only door. `make help` lists what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
CONFIG ?= examples/tiny.toml
TARGET ?= local
NODES ?= 3
TIMES ?= 1
JOBS ?= 2
SRC := $(wildcard libs/*/src services/*/src console/src)
INSTALL := VENV="$(VENV)" PYTHON="$(PYTHON)" TORCH="$(TORCH)" infra/setup/setup.sh
export OMP_NUM_THREADS ?= 1

.PHONY: help setup setup-lab setup-test run slurm-bed bed-packages lab test check lint types fmt lock lock-check docs screenshots matrix \
        drill mutations mutants down-time bench-train fuzz gpu gpu-wheels up down clean

help: ## this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: ## install what a run needs into .venv (PYTHON=python3.12, TORCH=cpu)
	@$(INSTALL) run

setup-lab:
	@$(INSTALL) lab

setup-test:
	@$(INSTALL) test

run: $(if $(filter netns,$(TARGET)),setup-test,setup) ## train examples/tiny.toml (CONFIG=...) here, all services, real text (TARGET=netns: on five namespaces, as root)
	$(if $(filter netns,$(TARGET)),"$(PY)" -m headway.testkit.machines,"$(BIN)/headway" run) $(CONFIG) $(ARGS)

slurm-bed: setup-test ## the same as steps of a real Slurm on five namespaces (root; see bed-packages)
	"$(PY)" -m headway.testkit.machines --slurm $(CONFIG) $(ARGS)

bed-packages: ## install what Slurm and ssh on namespaces need, as root on Debian (.ci/run does it)
	@infra/setup/bed_packages.sh

lab: setup-lab ## JupyterLab with the notebooks
	"$(BIN)/jupyter" lab notebooks $(ARGS)

test: setup-test ## every test but the 100,000-input ones of `make fuzz`; JOBS=2 files at a time
	@mkdir -p .pytest_cache
	"$(PY)" -m pytest -q -m "not slow" -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=10 $(ARGS); \
	    code=$$?; echo $$code > .pytest_cache/exit; exit $$code

check: lint types ## format, lint, types and the fast tests
	"$(PY)" -m pytest -q -m "not slow" libs services/trainer/tests/test_control_state.py \
	    tests/house $(ARGS)

lint: setup-test ## ruff
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .

types: setup-test ## mypy --strict on every src
	"$(BIN)/mypy" $(SRC) infra/setup docs

fmt: setup-test ## format and sort
	"$(BIN)/ruff" check --fix -q .
	"$(BIN)/ruff" format -q .

lock: setup-test ## make constraints.txt again from the pyproject files (UPGRADE=1: newest releases)
	"$(PY)" infra/setup/lock.py

lock-check: setup-test ## fail if constraints.txt and the pyproject files disagree
	"$(PY)" infra/setup/lock.py --check

docs: setup-test ## make docs/configuration.md again from the docstrings
	"$(PY)" docs/configuration.py

screenshots: setup-test ## make docs/pictures/ again: a real run with a recovery in Chromium
	"$(PY)" docs/screenshots.py

matrix: setup-test ## every layout, schedule and block against one process
	"$(PY)" -m benchmarks.matrix --out benchmarks/results/matrix.json

drill: setup-test ## the fifteen drills (TIMES=1), then 60 seeded faults over 3 runs
	"$(PY)" -m benchmarks.drills --all --times $(TIMES) --out benchmarks/results/drills.json; \
	    code=$$?; "$(PY)" -m benchmarks.drill --faults 60 --out benchmarks/results/drill.json \
	    && exit $$code

mutations: setup-test ## break the source in chosen places and see that the named tests notice
	"$(PY)" -m benchmarks.mutations --out benchmarks/results/mutations.json

mutants: setup-test ## 200 seeded mutants of control/ and wire/: how dense are their tests?
	"$(PY)" -m uv pip install -q --python "$(PY)" --group mutants -c constraints.txt
	"$(PY)" -m benchmarks.mutants --out benchmarks/results/mutants.json

down-time: setup-test ## step times while each service is down
	"$(PY)" -m benchmarks.service_down --out benchmarks/results/service_down.json

bench-train: setup-test ## the engine next to compiled torch and other peers; about 30 minutes
	"$(PY)" -m benchmarks.train $(ARGS)

fuzz: setup-test ## the slow tests: 100,000 hostile inputs against every socket, pods on a bed
	"$(PY)" -m pytest -q -m slow

gpu: ## tests on a GPU machine without a network (PART=model, groups, recovery or bench)
	@ARGS="$(ARGS)" python3 infra/gpu/gpu.py run $(PART)

gpu-wheels: setup ## fill wheels/ with what `make gpu` installs there
	"$(PY)" infra/gpu/gpu.py wheels

up: setup ## start the executors of NODES nodes through Terraform (TARGET=local)
	PATH="$(abspath $(BIN)):$$PATH" infra/terraform/up.sh $(TARGET) $(NODES)

down: setup ## stop their runs with a checkpoint, then the executors (YES=1: without a question)
	PATH="$(abspath $(BIN)):$$PATH" infra/terraform/down.sh $(TARGET)

clean: ## remove the virtual environment and caches; runs/ and data/ stay
	rm -rf "$(VENV)" .uv-cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
