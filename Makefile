# The only door. `make help` lists what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
PYTHON ?= python3
CONFIG ?= examples/tiny.toml
TARGET ?= local
NODES ?= 3
DISTS := libs/common libs/launch libs/testkit services/dataloader services/ckpt_store services/health services/trainer console
STAMP := $(VENV)/.headway
DEV := pytest hypothesis pytest-timeout ruff mypy build hatchling nbclient safetensors
export OMP_NUM_THREADS ?= 1

.PHONY: help setup run test check lint types fmt matrix drill mutants down-time fuzz notebooks lab up down clean

help: ## this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(STAMP) ## make .venv and install everything into it

$(STAMP): constraints.txt $(addsuffix /pyproject.toml,$(DISTS))
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "no venv: install python3-venv"; exit 2; }
	$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt "torch==2.13.0" hatchling editables
	$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation \
	    $(foreach d,$(DISTS),-e ./$(d)) -e "./console[local,notebooks]" $(DEV)
	@touch $@

run: setup ## train examples/tiny.toml (CONFIG=...) on this machine, all services, real text
	$(BIN)/headway run $(CONFIG) $(ARGS)

test: setup ## every test but the 100,000-input ones of `make fuzz`
	$(PY) -m pytest -q -m "not slow" --durations=10 $(ARGS)

check: setup lint types ## format, lint, types and the fast tests
	$(PY) -m pytest -q -m "not slow" libs services/trainer/tests/test_control_state.py tests/test_imports.py $(ARGS)

lint: setup ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy --strict on every src
	$(BIN)/mypy $(addsuffix /src,$(DISTS))

fmt: setup ## format and sort
	$(BIN)/ruff check --fix -q .
	$(BIN)/ruff format -q .

matrix: setup ## every layout, schedule and block against one process (JSON in benchmarks/results)
	$(PY) -m benchmarks.matrix --out benchmarks/results/matrix.json

drill: setup ## 3 runs x 10 seeded faults, with times of each recovery
	$(PY) -m benchmarks.drill --out benchmarks/results/drill.json

mutants: setup ## break the source in places and see that the named tests notice
	$(PY) -m benchmarks.mutations --out benchmarks/results/mutations.json

down-time: setup ## step times while each service is down
	$(PY) -m benchmarks.service_down --out benchmarks/results/service_down.json

fuzz: setup ## 100,000 hostile inputs against every socket: the slow marker
	$(PY) -m pytest -q -m slow

lab: setup ## JupyterLab with the notebooks
	$(BIN)/jupyter lab notebooks

up: setup ## start the executors of NODES nodes through Terraform (TARGET=local)
	PATH="$(abspath $(BIN)):$$PATH" infra/terraform/up.sh $(TARGET) $(NODES)

down: setup ## stop their runs with a checkpoint, then the executors
	PATH="$(abspath $(BIN)):$$PATH" infra/terraform/down.sh $(TARGET)

clean: ## remove the virtual environment and caches; runs/ and data/ stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
