# Two commands: `make serve` and `make test`. Both make their own environment in .venv on the first run.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile -c constraints.txt

WORKERS ?= 2
unexport PYTHONDONTWRITEBYTECODE  # modules are compiled once, not at every start of a server that is tested

NATIVE := $(shell find penstock/runtime/ops/cpu/native -type f)
WEB := penstock/service/server/ui/static/index.html
NPM := --no-audit --no-fund --loglevel=error
WEB_SOURCES := web/package-lock.json web/index.html web/vite.config.ts $(shell find web/src web/public -type f)

.PHONY: serve test test-fast test-gpu check test-long test-slow mutants docs web web-check clean
.DEFAULT_GOAL := serve

serve: .venv/.installed web  ## fetch the default model and serve it
	$(BIN)/penstock serve

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: .venv/.installed-dev web check  ## lint, types and every test but the long and the slow ones
	$(PYTEST) -m "not long and not slow and not cuda"

test-long: .venv/.installed-dev web  ## real models, the web app in a browser, faults: as long again
	$(PYTEST) -m "long and not slow"

test-fast: .venv/.installed-dev  ## the plain tier: what to run on every save
	$(BIN)/python -m pytest -m "plain and not slow" -n $(WORKERS)

test-gpu:  ## laws over the CUDA runner and parity of its kernels; needs a GPU, torch and triton; ranks need Penstock's packages too
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
	else echo "Building the web app ..."; cd web && { npm ci $(NPM) >/dev/null 2>&1 || npm install --no-save $(NPM) >/dev/null; } && npm run --silent bundle \
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

# Three things at once: what Penstock needs, its CPU kernels (compiled where there is a C++ compiler), and the web app.
.venv/.installed: pyproject.toml constraints.txt setup.py $(NATIVE)
	@echo "Setting up .venv: about a minute and the downloads, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@date +%s > .venv/.started && $(PIP) 'setuptools>=77' wheel
	@$(MAKE) --no-print-directory -j3 .venv/.needs .venv/.kernels web
	@$(PIP) --no-build-isolation --no-deps -e . && echo "Ready after $$(( $$(date +%s) - $$(cat .venv/.started) )) s" && touch $@

.venv/.needs: pyproject.toml constraints.txt
	@echo "  packages: torch (about 200 MB) and others ..."
	@$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > .venv/needs.txt
	@$(PIP) -r .venv/needs.txt
	@echo "  packages: done" && touch $@

.venv/.kernels: setup.py $(NATIVE)
	@echo "  CPU kernels: compiling ..."
	@$(BIN)/python setup.py --quiet build_ext --inplace > .venv/kernels.log 2>&1 \
	  && echo "  CPU kernels: done" || echo "  CPU kernels: not built, see .venv/kernels.log; torch computes everything"
	@touch $@

.venv/.installed-dev: .venv/.installed
	@echo "Adding what tests need ..." && $(PIP) 'penstock[dev]' && touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
