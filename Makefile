# Two commands: `make serve` and `make test`. Both make their own environment in .venv on the first run.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

WORKERS ?= 2
unexport PYTHONDONTWRITEBYTECODE  # modules are compiled once, not at every start of a server that is tested

WEB := penstock/service/server/ui/static/index.html
NPM := --no-audit --no-fund --loglevel=error
WEB_SOURCES := web/package-lock.json web/index.html web/vite.config.ts $(shell find web/src web/public -type f)

.PHONY: serve test test-fast test-gpu check test-slow mutants docs web web-check clean
.DEFAULT_GOAL := serve

serve: .venv/.installed web  ## fetch the default model and serve it
	$(BIN)/penstock serve

test: .venv/.installed-dev web check  ## lint, types and every test but the slow ones
	$(BIN)/python -m pytest -m "not slow and not cuda" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-fast: .venv/.installed-dev  ## the plain tier: what to run on every save
	$(BIN)/python -m pytest -m "plain and not slow" -n $(WORKERS)

test-gpu:  ## laws over the CUDA runner and parity of its kernels; needs a GPU, torch and triton, nothing installed
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tests.gpu

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if test -d web/node_modules; then cd web && npm run --silent check; fi

web: $(WEB)  ## build the web app, where npm is at hand

$(WEB): $(WEB_SOURCES)
	@if ! command -v npm >/dev/null; then \
	  echo "npm is not here: the web app at / is not built (Node 20.19 or newer brings it); everything else works"; \
	else echo "Building the web app ..."; cd web && { npm ci $(NPM) >/dev/null 2>&1 || npm install --no-save $(NPM) >/dev/null; } && npm run --silent build \
	  || echo "The web app could not be built, so / has none; everything else works"; fi

web-check: web  ## lint and types of the web app
	cd web && npm run --silent check

test-slow: .venv/.installed-dev  ## campaigns, and tests that take more than some seconds
	$(BIN)/python -m pytest -m slow

docs: .venv/.installed-dev  ## the documentation as a site, in site/
	$(PIP) 'penstock[docs]'
	$(BIN)/python -m tools.reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

mutants: .venv/.installed-dev  ## do the tests notice broken code in the heart?
	$(BIN)/python tests/mutation.py

.venv/.installed: pyproject.toml constraints.txt
	@echo "Setting up .venv: one to three minutes, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "[1/2] torch (about 200 MB) ..." && date +%s > .venv/.started && $(PIP) torch 'setuptools>=77' wheel
	@echo "[2/2] Penstock, what it needs, and its CPU kernels (compiled here where there is a C++ compiler) ..." && $(PIP) -e .
	@echo "Ready after $$(( $$(date +%s) - $$(cat .venv/.started) )) s" && touch $@

.venv/.installed-dev: .venv/.installed
	@echo "Adding what tests need ..." && $(PIP) 'penstock[dev]' && touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
