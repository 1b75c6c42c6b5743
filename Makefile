# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Where it is set, nothing that is imported is kept compiled, and every process of the tests would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types layers browser unit test-kernels format benchmarks figures clean

demo: $(INSTALLED)
	$(BIN)/momatch train --run-dir out/demo --overwrite

# What needs one process each runs two at a time; the tests need both.
test: $(INSTALLED)
	$(MAKE) --jobs=2 lint types layers browser
	$(MAKE) unit

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

layers: $(INSTALLED)
	$(BIN)/lint-imports

# A Chromium for the test of the report page, where one can be had; without it that test is skipped, and this says so.
browser: $(INSTALLED)
	@$(BIN)/python -m tests.report.browser

# In two processes of one thread each: threads of torch that wait for each other would slow both.
unit: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Everything that trains, under four kernel settings in turn (tests/kernels.py); about 20 minutes.
test-kernels: $(INSTALLED)
	$(BIN)/python -m tests.kernels

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Not part of the tests: run them alone on an idle machine. Results are written beside the scripts.
benchmarks: $(INSTALLED)
	$(BIN)/python benchmarks/heads.py
	$(BIN)/python benchmarks/moments.py
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/networks.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/estimator.py
	$(BIN)/python benchmarks/conformal.py
	$(BIN)/python benchmarks/predict.py

# The pictures of docs/figures; the last one trains four runs on digits where runs/ does not hold them yet.
figures: $(INSTALLED)
	$(BIN)/python -m reproduction.figures.outlier_schematic
	$(BIN)/python -m reproduction.figures.softmax_identity
	$(BIN)/python -m reproduction.figures.constraint
	$(BIN)/python -m reproduction.figures.pixels
	$(BIN)/python -m reproduction.figures.tsne_panels

# --no-compile: most of the modules that would be compiled are never imported, and the others are compiled when they are.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "momatch needs Python 3.11 or newer, got %s; set PYTHON=..." % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
