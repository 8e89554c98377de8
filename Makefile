# Two commands: `make serve` and `make test`. Both make their own environment in .venv on the first run.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: serve test check test-slow mutants clean
.DEFAULT_GOAL := serve

serve: .venv/.installed  ## fetch the default model and serve it
	$(BIN)/penstock serve

test: .venv/.installed-dev check  ## lint, types and all tests
	$(BIN)/python -m pytest -m "not slow"

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-slow: .venv/.installed-dev  ## the larger campaigns
	$(BIN)/python -m pytest -m slow

mutants: .venv/.installed-dev  ## do the tests notice broken code in the heart?
	$(BIN)/python tests/mutation.py

.venv/.installed: pyproject.toml constraints.txt
	@echo "Setting up .venv (a few minutes, once) ..."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
