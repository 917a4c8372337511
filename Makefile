# Everything that CI and a newcomer call. Each target makes the environment it needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := $(VENV)-peers

.PHONY: demo test check bench docs clean

demo: $(READY)
	$(BIN)/acclimate demo --force

# A process for each of up to four cores, one thread in each: files side by side are faster than threads. Bytecode is
# kept, whatever the environment says: the tests start Python more than a hundred times.
test: $(READY)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder \
		--cov=acclimate --cov-report=term

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/audit.py

bench: $(READY) $(PEERS)/.ready
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/accuracy.py --epochs 10 --methods tent slr --corruptions speckle_noise --name cifar10_epoch10
	$(BIN)/python benchmarks/export.py
	$(BIN)/python benchmarks/few.py search
	$(BIN)/python benchmarks/few.py long
	$(BIN)/python benchmarks/few.py choose
	$(BIN)/python benchmarks/few.py clean
	$(BIN)/python benchmarks/few.py test
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/normalisation.py
	$(BIN)/python benchmarks/demo.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/agreement.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/speed.py --only kept --name speed_kept
	$(BIN)/python benchmarks/compiled.py
	$(BIN)/python benchmarks/precision.py
	$(BIN)/python benchmarks/limits.py
	$(BIN)/python benchmarks/kills.py
	$(BIN)/python benchmarks/exits.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/fuzz.py
	$(BIN)/python benchmarks/cluster.py
	ACCLIMATE_TEST_RANKS=3 $(BIN)/pytest --quiet tests/test_ranks.py
	$(BIN)/python benchmarks/grids.py
	$(BIN)/python benchmarks/report.py
	$(PEERS)/bin/python benchmarks/corruptions.py
	$(BIN)/python benchmarks/render.py

docs: $(READY)
	$(BIN)/python benchmarks/render.py
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) $(PEERS) build dist .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The constraints pin what is developed with, the requirements have the hashes of it; pyproject.toml says what is
# supported. torch, whose right build depends on the machine, comes by the second line, and so does what it brings.
$(READY): pyproject.toml constraints.txt requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --no-deps --only-binary :all: --requirement requirements-dev.txt
	$(BIN)/pip install --quiet --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	touch $@

# What is compared with needs releases that acclimate does not, so it lives by itself.
$(PEERS)/.ready: pyproject.toml constraints.txt benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --constraint constraints.txt --requirement benchmarks/peers.txt --editable .
	touch $@
