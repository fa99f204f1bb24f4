# Two commands for a newcomer: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3.11
GPU_PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK ?= no
TOOLS := build/tools

.PHONY: demo test lint types docs check resnet18 cifar test-gpu gpu-day gpu-day-kit gpu-day-more clean lock audit licences sbom wheel sdist

demo: $(READY)
	$(BIN)/qcompile run examples/digits/recipe.toml

# Two at a time, a file of tests in one process each: half the time on two cores. A process that dies ends
# the run: pytest-xdist 3.8 replaces it and then waits forever.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 0

check: lint types docs test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The repository's root is the package, so mypy sees it through a link of the package's name.
types: $(READY)
	mkdir -p build/types && ln -sfn ../.. build/types/qcompile
	MYPYPATH=build/types $(BIN)/mypy -p qcompile --exclude '/(build|tests|examples|benchmarks|supply|\.venv)/'

# The site in build/site, to be opened as a folder. A broken link or anchor, or a page without a place, is an error
# (with --quiet, MkDocs counts no warnings).
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

resnet18: $(READY)
	test -f benchmarks/digits_resnet18/resnet18.safetensors || $(BIN)/python benchmarks/digits_resnet18/train.py
	$(BIN)/qcompile run benchmarks/digits_resnet18/recipe.toml

# Every way to run a ResNet-18, in one table; the first run trains it, which takes minutes.
cifar: $(READY)
	$(BIN)/python examples/cifar_resnet18/compare.py

# The calls of TensorRT are recorded.
test-gpu: $(READY)
	PYTHONPATH=$(CURDIR)/tests/support/recording$${PYTHONPATH:+:$$PYTHONPATH} \
	QCOMPILE_TENSORRT_RECORD=$(CURDIR)/build/recordings/test-gpu.jsonl \
	$(BIN)/python -m pytest -m gpu tests/engines tests/bench/test_bench_devices.py

# What the GPU host needs beside the repository, 6 MB; needs PyTorch and ONNX Runtime, and no GPU.
gpu-day-kit: $(READY)
	$(BIN)/python benchmarks/gpu_day.py prepare

# On the GPU host, in the Python that has TensorRT: nothing is installed or downloaded.
gpu-day:
	$(GPU_PYTHON) benchmarks/gpu_day.py run $(GPU_DAY)

# There, too: GPU tests, torch.compile, calibrators, MobileNetV2.
gpu-day-more:
	$(GPU_PYTHON) benchmarks/gpu_day.py run --more $(GPU_DAY)

clean:
	rm -rf $(VENV) build dist *.egg-info examples/*/out benchmarks/*/out

# torch first: the pin in constraints.txt decides which build everything else meets. With `make LOCK=yes ...`
# every file must have a hash of the lock. pip prefers PyPI's file of torch to a local build where both have
# one, so torch is installed by version, and its file is looked up in the lock before anything imports it.
$(READY): setup.cfg pyproject.toml constraints.txt requirements-test.lock
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
ifeq ($(LOCK),yes)
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt --report $(VENV)/torch.json torch
	$(BIN)/python supply/lock.py --check $(VENV)/torch.json
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements-test.lock
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
else
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
endif
	touch $(READY)

# The tools of the supply chain, in an environment of their own.
$(TOOLS)/.ready: supply/tools.txt
	test -d $(TOOLS) || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet -r supply/tools.txt
	touch $@

# After a change of constraints.txt; needs a package index.
lock: $(TOOLS)/.ready
	$(PYTHON) supply/lock.py $(TOOLS)/bin/uv

# Known vulnerabilities of what is pinned. Exit code 2: the database did not answer for all packages.
audit: $(TOOLS)/.ready
	$(PYTHON) supply/audit.py $(TOOLS)/bin/pip-audit

licences: $(READY)
	$(BIN)/python supply/licences.py

sbom: $(READY)
	$(BIN)/python supply/sbom.py dist/qcompile.cdx.json

# Twice, from the committed files alone; equal bytes or an error.
wheel: $(READY)
	$(BIN)/python supply/wheel.py dist

# A wheel that is built from it holds what `make wheel` holds.
sdist: $(READY)
	mkdir -p dist
	$(BIN)/python -c "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv.pop())" dist
