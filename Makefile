# Two commands do everything on a fresh machine: `make quickstart` and `make test`.
# Each makes the virtual environment it needs in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
OUT ?= quickstart

# Test workers share the cores: one thread each unless THREADS says otherwise, and none that spins while it waits.
THREADS ?= 1
PYTEST := OMP_NUM_THREADS=$(THREADS) OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: quickstart test test-fast lint format proto names docs notebooks pictures bench clean help

help:
	@echo "make quickstart   install, write synthetic data, train DeepFM on it, evaluate (OUT=folder)"
	@echo "make test         install, lint, and run every test"
	@echo "make test-fast    the tests that are not marked slow"
	@echo "make lint         ruff, mypy --strict, import rules"
	@echo "make format       let ruff format and fix the code"
	@echo "make proto        regenerate the Python code of the config schema"
	@echo "make names        regenerate the lists of public classes after a component was added"
	@echo "make docs         build the docs as a site, into site/"
	@echo "make notebooks    run the notebooks of docs/ again; make pictures: draw those of the gallery again"
	@echo "make bench        run every benchmark and write docs/benchmarks.md"
	@echo "make clean        remove the virtual environment and caches"

quickstart: $(VENV)/.runtime
	$(BIN)/recgrad quickstart --out $(OUT)

test: lint
	$(PYTEST)

test-fast: $(VENV)/.dev
	$(PYTEST) -m "not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)/.dev
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I. --python_out=. \
		--mypy_out=readable_stubs,quiet:. recgrad/config/proto/*.proto

names: $(VENV)/.dev
	$(BIN)/python -m recgrad.public_names

# Strictly: a link that leads nowhere ends it. The variable silences an advertisement.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "look at it: $(BIN)/python -m http.server --directory site 8001, then http://127.0.0.1:8001"

# Run the notebooks again, and draw the pictures of the gallery again; both are kept in docs/.
notebooks pictures: $(VENV)/.dev
	$(BIN)/python website/$@.py

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/results/page.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site *.egg-info

$(VENV)/.runtime: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	touch $@

# TorchRec asks for a CUDA build of FBGEMM, which does not load on a machine without a GPU:
# take the CPU build and TorchRec without its dependencies, and name the rest by hand.
$(VENV)/.dev: $(VENV)/.runtime requirements-dev.txt
	$(PIP) --requirement requirements-dev.txt
	$(PIP) fbgemm-gpu-cpu
	$(PIP) --no-deps torchrec
	touch $@
