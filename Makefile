# Two commands for a newcomer: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types check resnet18 test-gpu clean

demo: $(READY)
	$(BIN)/qcompile run examples/digits/recipe.toml

# Two at a time, a file of tests in one process each: half the time on two cores.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: lint types test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The repository's root is the package, so mypy sees it through a link of the package's name.
types: $(READY)
	mkdir -p build/types && ln -sfn ../.. build/types/qcompile
	MYPYPATH=build/types $(BIN)/mypy -p qcompile --exclude '/(build|tests|examples|benchmarks|\.venv)/'

resnet18: $(READY)
	test -f examples/resnet18/resnet18.safetensors || $(BIN)/python examples/resnet18/train.py
	$(BIN)/qcompile run examples/resnet18/recipe.toml

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu tests/engines tests/bench/test_bench_devices.py

clean:
	rm -rf $(VENV) build *.egg-info examples/*/out

# torch first: the pin in constraints.txt decides which build everything else meets.
$(READY): setup.cfg pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)
