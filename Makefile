# Two commands for a newcomer: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3.11
GPU_PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types check resnet18 cifar test-gpu gpu-day gpu-day-kit clean

demo: $(READY)
	$(BIN)/qcompile run examples/digits/recipe.toml

# Two at a time, a file of tests in one process each: half the time on two cores. A process that dies ends
# the run: pytest-xdist 3.8 replaces it and then waits forever.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 0

check: lint types test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The repository's root is the package, so mypy sees it through a link of the package's name.
types: $(READY)
	mkdir -p build/types && ln -sfn ../.. build/types/qcompile
	MYPYPATH=build/types $(BIN)/mypy -p qcompile --exclude '/(build|tests|examples|benchmarks|\.venv)/'

resnet18: $(READY)
	test -f benchmarks/digits_resnet18/resnet18.safetensors || $(BIN)/python benchmarks/digits_resnet18/train.py
	$(BIN)/qcompile run benchmarks/digits_resnet18/recipe.toml

# Every way to run a ResNet-18, in one table; the first run trains it, which takes minutes.
cifar: $(READY)
	$(BIN)/python examples/cifar_resnet18/compare.py

# Every use of TensorRT is recorded: tests/support/replayed_tensorrt.py plays the file in its place.
test-gpu: $(READY)
	QCOMPILE_TENSORRT_RECORD=$(CURDIR)/build/recordings/test-gpu.jsonl \
	$(BIN)/python -m pytest -m gpu tests/engines tests/bench/test_bench_devices.py

# What the GPU host is given beside the repository; needs ONNX Runtime, and no GPU.
gpu-day-kit: $(READY)
	$(BIN)/python benchmarks/gpu_day.py prepare

# On the GPU host, in the Python that has TensorRT: nothing is installed or downloaded.
gpu-day:
	$(GPU_PYTHON) benchmarks/gpu_day.py run $(GPU_DAY)

clean:
	rm -rf $(VENV) build *.egg-info examples/*/out benchmarks/*/out

# torch first: the pin in constraints.txt decides which build everything else meets.
$(READY): setup.cfg pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)
