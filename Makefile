# Start with `make demo` and `make test`; every target installs what it needs into .venv.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 1
SECONDS_SIMULATED ?= 60
ROUNDS ?= 20
SAMPLE ?= 150
JOBS ?= 1
SPARK ?= 1

.PHONY: demo pipeline test check docs format sim soak mutants power-loss settings-page metrics-page clean

demo: $(VENV)/.installed-demo  ## three nodes, real data, a killed leader, nothing lost; then `pipeline`, unless SPARK=0
	$(BIN)/python -P examples/demo.py
ifneq ($(SPARK),0)
	$(MAKE) --no-print-directory pipeline
endif

pipeline: $(VENV)/.installed-pipeline  ## flights through topics, Spark and Parquet, each counted exactly once; a plot in build/
	@$(BIN)/python -P -m spark_source.java --install >/dev/null
	$(BIN)/python examples/pipeline.py

test: $(VENV)/.installed-dev  ## the whole suite
	@$(BIN)/python -P -m spark_source.java --install >/dev/null || true  # without Java, the tests of Spark are skipped with that reason
	$(BIN)/python -P -m pytest -q -n auto --maxprocesses 4 --dist loadfile

check: $(VENV)/.installed-dev  ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-docs  ## the documentation site, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -P -m mkdocs build --strict  # (with --quiet it would not notice warnings)
	@echo "open build/site/index.html"

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sim: $(VENV)/.installed-dev  ## one simulated cluster: make sim SEED=7
	$(BIN)/python -P -m jepsen_like.simulator --seed $(SEED) --seconds $(SECONDS_SIMULATED)

soak: $(VENV)/.installed-dev  ## the long runs that `make test` does not include
	$(BIN)/python -P -m pytest -q -m soak

mutants: $(VENV)/.installed-dev  ## mutation testing, into tests/mutants/mutants.jsonl; resumes where it was stopped: make mutants SAMPLE=150 SEED=1 JOBS=2
	$(BIN)/python -P -m tests.mutants run --sample $(SAMPLE) --seed $(SEED) --jobs $(JOBS); status=$$?; $(BIN)/python -P -m tests.mutants score; exit $$status

power-loss: $(VENV)/.installed-dev  ## power failures of three nodes at once (as root), until power-loss.jsonl has ROUNDS of them: make power-loss ROUNDS=20
	$(BIN)/python -P -m tests.support.clusters.power_rounds --rounds $(ROUNDS) --seed $(SEED) --results power-loss.jsonl

metrics-page: $(VENV)/.installed-dev  ## docs/metrics.md from the code
	$(BIN)/python -P -m raftlog.metrics.page > docs/metrics.md

settings-page: $(VENV)/.installed-dev  ## docs/settings.md from the code
	$(BIN)/raftlog server settings --page > docs/settings.md

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "raftlog needs Python 3.11 or newer; '$(PYTHON)' is not. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing; it is Debian's package python3-venv." >&2; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -q && apt-get install -y -q python3-venv; \
	  else echo "Install it with: sudo apt-get install python3-venv" >&2; exit 1; fi; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

$(VENV)/.installed-demo: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	@touch $@

$(VENV)/.installed-pipeline: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[pipeline,spark]'
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-docs: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.installed-demo $(VENV)/.installed-pipeline
