# Two commands from a fresh clone: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := runs/demo
# Most of the tests' time would be compilation, which is far quicker without optimisation.
# Tests of what a compiler can change, such as norms and bits, are marked and run as users compile;
# pytest alone runs all so.
QUICK := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true
QUICK += --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=2

.DEFAULT_GOAL := help
.PHONY: help setup demo live-demo test lint docs notebooks bench clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: $(VENV)/.ready ## make the virtual environment

$(VENV)/.ready: pyproject.toml studies/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("tacit needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip --constraint constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,arviz,docs]' --editable studies
	@touch $@

demo: setup ## ten hospitals learn one posterior, exactly and with privacy; leaves reports to open
	$(BIN)/tacit run examples/hospitals.toml --out $(DEMO) --overwrite --report
	$(BIN)/tacit explain examples/hospitals-private.toml
	$(BIN)/tacit run examples/hospitals-private.toml --out $(DEMO)-private --overwrite --report

live-demo: setup ## a server and four hospitals as processes over TLS on this machine; leaves runs/live
	$(BIN)/python examples/live/demo.py

# Ray's tests and the linters run beside all others: Ray's wait for most of their time, and each
# linter uses one core. The others yield to Ray's, which would take several times as long without
# free cores. One worker more than cores, because tests of live runs wait too.
RAY_TESTS := tests/engines/test_ray.py
OPTIMISED = $(filter-out $(RAY_TESTS),$(shell grep -rl full_optimisation tests --include="test_*.py" | sort))
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell expr $(CORES) + 1)
PYTEST = $(BIN)/python -m pytest
# Tests write many small files durably. In memory this does not wait for a disk; a container's
# memory of 64 MB would be too small.
MEMORY := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 2000000 2>/dev/null && echo /dev/shm)
SCRATCH = scratch=$$(mktemp -d $(if $(MEMORY),-p $(MEMORY),-t) tacit-tests.XXXXXX); trap 'rm -rf $$scratch' EXIT;
# Run a command, and print its output as one block when it ends.
AT_ONCE = log=$$(mktemp); $(1) >$$log 2>&1; status=$$?; cat $$log; rm $$log; exit $$status

test: setup ## everything that is checked
	@$(MAKE) --no-print-directory --jobs=3 other-tests ray-tests linted

.PHONY: other-tests ray-tests linted
other-tests:
	$(SCRATCH) nice $(PYTEST) --basetemp=$$scratch/t -n $(CORES) --dist loadfile -m full_optimisation $(OPTIMISED)
	$(SCRATCH) XLA_FLAGS="$$XLA_FLAGS $(QUICK)" nice $(PYTEST) --basetemp=$$scratch/t -n $(WORKERS) --dist loadfile -m "not full_optimisation"

ray-tests:
	@$(call AT_ONCE,$(PYTEST) $(RAY_TESTS))

linted:
	@$(call AT_ONCE,nice $(MAKE) --no-print-directory lint)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: setup ## the documentation site in site/, with warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

notebooks: setup ## execute the notebooks of the documentation again
	$(BIN)/python docs/notebooks/execute.py

bench: setup ## compare with central NumPyro SVI and measure scaling; prints ratios
	$(BIN)/python benchmarks/bench.py

clean: ## remove the environment and all runs
	rm -rf $(VENV) runs
