SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-exhaustive lint typecheck unit lit conformance fuzz bench docs clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOGS := $(VENV)/logs

DEMO_MODEL := examples/smollm2_layer15_attention.onnx
DEMO_INPUTS := examples/smollm2_layer15_attention.npz

export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Two ways to fill .venv: what lampc needs to run, and all that its tests need. The stamps say which one is there.
RUN := $(VENV)/run.stamp
DEV := $(VENV)/dev.stamp
# A `make demo` after `make test` makes do with what is there.
RUNTIME := $(if $(wildcard $(DEV)),$(DEV),$(RUN))

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "lampc needs Python 3.11 or newer, and '$(PYTHON)' is not; name one: make $(or $(MAKECMDGOALS),test) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $(1) into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '$(1)'
	@touch $@
endef

$(RUN): pyproject.toml
	$(call install,.)

$(DEV): pyproject.toml
	$(call install,.[dev])

demo: $(RUNTIME)  ## Compile a real attention layer and simulate it on the accelerator
	@$(BIN)/lampc $(DEMO_MODEL) --inputs $(DEMO_INPUTS) --target accel -o demo.lampc

# Every part runs even if an earlier one fails; the last lines say how each went, pytest's own closing line last.
test: $(DEV)  ## All checks: lint, types, filecheck tests, unit and model tests
	@mkdir -p $(LOGS); rm -f $(LOGS)/*; status=0; \
	for part in lint typecheck lit unit; do \
	  $(MAKE) --no-print-directory $$part 2>&1 | tee $(LOGS)/$$part || status=1; \
	done; \
	echo "--- summary"; \
	for part in lint typecheck; do printf '%s: ' $$part; grep -v '^make' $(LOGS)/$$part | tail -n 1; done; \
	sed -n '/^ *[A-Z][A-Za-z ]*: *[0-9]* ([0-9.]*%)$$/s/^ */lit: /p' $(LOGS)/lit; \
	grep -E '(passed|failed|error|no tests ran).* in [0-9]' $(LOGS)/unit | tail -n 1 || tail -n 1 $(LOGS)/unit; \
	exit $$status

test-exhaustive: $(DEV)  ## Number formats and tables, every value there is; options at random (minutes)
	@$(BIN)/python -m pytest -m exhaustive tests/unit

lint: $(DEV)  ## Style: ruff check, ruff format --check
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

typecheck: $(DEV)  ## Types: basedpyright, strict
	@$(BIN)/basedpyright --level error --pythonpath $(BIN)/python

unit: $(DEV)  ## Unit and model tests (pytest)
	@$(BIN)/python -m pytest -n 2

lit: $(DEV)  ## IR tests (lit and filecheck)
	@$(BIN)/lit --order=lexical -sv --no-progress-bar tests/filecheck

conformance: $(DEV)  ## Count what is recognised: ONNX's suite, and the corpus at CORPUS (WRITE=1: into the pages too)
	@$(BIN)/python -m tests.conformance $(if $(WRITE),--write-docs)

fuzz: $(DEV)  ## Compile mutated models for FUZZ_SECONDS (default 120); FUZZ_SEED repeats a run
	@$(BIN)/python -m tests.fuzz --seconds $(or $(FUZZ_SECONDS),120) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

bench: $(DEV)  ## Speed of compiler and simulators
	@$(BIN)/python -m benchmarks

docs: $(DEV)  ## Write the dialect and pass pages from the code
	@$(BIN)/python -m lampc.docgen

clean:  ## Remove the environment, caches and what demo wrote
	@rm -rf $(VENV) build *.egg-info demo.lampc .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
