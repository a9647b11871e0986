# Two commands: make demo, make test. Each first makes what it needs.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
APART := tests/model tests/simulation tests/face/test_interruptions.py tests/chaos tests/fuzz tests/overload
ENGINE := .venv-mori
HOST := .venv-vllm-omni
CODE := core ports adapters plugins src tests benchmarks

.DEFAULT_GOAL := help
.PHONY: help demo test test-mori test-vllm-omni docs check fmt lint types contracts units hunts engine host prove clean

help: ## Show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/ready ## Three processes stream a recording, compared bit for bit
	$(BIN)/stagelink demo

test: check units hunts test-mori ## Everything that must hold: format, lint, types, contracts, tests

check: lint types contracts

lint: $(VENV)/ready ## Formatter and linter
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: $(VENV)/ready ## mypy --strict
	$(BIN)/mypy

contracts: $(VENV)/ready ## Import contracts
	PYTHONPATH=src $(BIN)/lint-imports

units: $(VENV)/ready ## Tests with branch coverage, in parallel
	$(BIN)/python -m pytest -n 2 --dist worksteal $(addprefix --ignore ,$(APART)) --cov --cov-report=term

# Without coverage: it would cost the hunts half of their reach, and what traces every line by
# itself, to interrupt there or to keep time, cannot be traced by another.
hunts: $(VENV)/ready ## The tests of the hunts, and the first part of each
	$(BIN)/python -m pytest -n 2 --dist worksteal $(APART)

# AMD builds its engine for 3.10 and 3.12; only the one for 3.10 wants no newer C library than
# Debian 12 has. It runs over tests/sims, so it needs neither an AMD GPU nor an RDMA card.
test-mori: ## Tests on AMD's real transfer engine, over simulated hardware
	@reason=$$(.ci/no-engine); if [ -n "$$reason" ]; then \
	  echo "nothing was tested on AMD's engine (tests/mori): $$reason"; \
	else $(MAKE) --no-print-directory engine; fi

engine: $(ENGINE)/ready
	$(ENGINE)/bin/python -m pytest -n 2 --dist worksteal -v tests/mori

# vLLM-Omni is installed as it is released, without what would need a GPU (.ci/vllm-omni): two
# gigabytes, some two minutes, once.
test-vllm-omni: ## Tests against the released vLLM-Omni
	@reason=$$(.ci/vllm-omni $(HOST)) || exit 1; \
	if [ -n "$$reason" ]; then \
	  echo "nothing was tested against vLLM-Omni (tests/vllm_omni): $$reason"; \
	else $(MAKE) --no-print-directory host; fi

host: $(HOST)/ready
	$(HOST)/bin/python -m pytest -n 2 --dist worksteal -v tests/vllm_omni

prove: $(VENV)/ready ## Hunt for counter-examples to every promise; BUDGET=seconds goes further
	$(BIN)/python -m tests.prove $(if $(BUDGET),--budget $(BUDGET))

fmt: $(VENV)/ready ## Format, and mend what the linter can
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

docs: $(VENV)/docs-ready ## The pages as a site, every warning an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

clean: ## Remove what these commands made
	rm -rf .venv* build .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# torch is pinned in constraints.txt; the demo and the tests need it, the library does not.
$(VENV)/ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "stagelink needs Python 3.10 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,torch]'
	@touch $@

# No pins: some of what is pinned is for newer Pythons only.
$(ENGINE)/ready: pyproject.toml
	"$$(.ci/interpreter 3.10)" -m venv $(ENGINE)
	$(ENGINE)/bin/pip install --quiet --disable-pip-version-check -e '.[dev]' 'amd-mori==1.2.4'
	@touch $@

# The extra vllm-omni is what is there already; to pip it would mean all that was left out.
$(HOST)/ready: $(HOST)/packages pyproject.toml
	$(HOST)/bin/pip install --quiet --disable-pip-version-check -e '.[dev,torch]' 2>&1 | \
	  grep -vE '^(vllm|vllm-omni|diffusers) [0-9.]+ (requires|has requirement)|dependency resolver' || true
	@$(HOST)/bin/python -c 'import pytest, stagelink'
	@touch $@

$(VENV)/docs-ready: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
