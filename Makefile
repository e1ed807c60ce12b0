# `make demo` and `make test` do everything from a fresh clone; all they need is Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs faults browser venv format types unit unit-folders unit-files clean
.DELETE_ON_ERROR:

demo: venv  ## three programs from the built-in model, and one that it autoencodes
	$(BIN)/python examples/demo.py

# The playground is tested in Chromium where there is one; .ci/run tries to install it.
CHROMIUM := $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name))))

test: venv $(if $(CHROMIUM),.venv/browser-ready)  ## style, types and every test that needs no accelerator
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target \
		unit-files unit-folders $(if $(CHROMIUM),browser) format types

RECORDED := build/recorded/playground

docs: .venv/docs-ready $(RECORDED)/index.html  ## the documentation site in site/; a broken link is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs site
	@echo "open site/index.html"

# The runs of the built-in model that the site shows: some minutes, once.
$(RECORDED)/index.html: $(wildcard src/crocodil/play/*.py src/crocodil/play/page/*) src/crocodil/builtin/checksums.json | .venv/ready
	rm -rf $(RECORDED)
	mkdir -p $(dir $(RECORDED))
	$(BIN)/crocodil play --export $(RECORDED)

.venv/docs-ready: .venv/ready
	$(PIP) --editable '.[docs]'
	touch $@

AXE := .venv/axe/package/axe.min.js
PICTURES ?=

browser: .venv/browser-ready  ## the playground in Chromium, which must be installed; PICTURES=docs/assets draws those of the docs
	$(if $(PICTURES),,OMP_NUM_THREADS=1) AXE_CORE=$(AXE) PLAY_PICTURES=$(PICTURES) \
		$(BIN)/python -m pytest -m browser -p no:cacheprovider -rs tests/play/test_play_browser.py

.venv/browser-ready: .venv/ready
	$(PIP) playwright
	mkdir -p .venv/axe
	-cd .venv/axe && npm pack --silent --fetch-retries=1 --fetch-timeout=30000 axe-core@4.14.0 && tar xzf axe-core-4.14.0.tgz package/axe.min.js
	touch $@

SEED ?= 0
MINUTES ?= 30
INPUTS ?= 10000
KILLS ?= 100

faults: venv  ## damaged inputs, kills, full disks and rivals: docs/reliability.md
	$(BIN)/python -m tests.faults --seed $(SEED) --minutes $(MINUTES) --inputs $(INPUTS) --kills $(KILLS) \
		$(if $(MARKDOWN),--markdown $(MARKDOWN))

format: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy

unit: unit-folders unit-files

# In two processes of one thread each: three quarters of the time that one with two takes.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p no:cacheprovider -rs \
	-m "not gpu and not slow$(if $(CHROMIUM), and not browser)"

unit-folders: venv
	$(PYTEST) $(wildcard tests/*/)

unit-files: venv
	$(PYTEST) $(wildcard tests/test_*.py)

venv: .venv/ready  ## .venv with the pinned versions and this package, editable

# Python compiles what it imports and keeps it; compiling all that is installed would double the time.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist site
