# Two commands for a newcomer: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3.11
GPU_PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK ?= no
CONSTRAINTS := -c constraints.txt
TOOLS := build/tools

.PHONY: demo test test-newest lint types docs arm64 reference check cifar test-gpu gpu-day gpu-day-kit gpu-day-more clean lock audit licences sbom wheel sdist

demo: $(READY)
	$(BIN)/qcompile run examples/digits/recipe.toml

# Two at a time, a file of tests in one process each, long files first: half the time on two cores. A process that
# dies ends the run: pytest-xdist 3.8 replaces it and then waits forever.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(PYTEST)

# The same tests on the newest packages that the index has, as newcomers get them. What fails is mended, or capped in
# setup.cfg with the reason.
test-newest:
	rm -rf .venv-newest
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=

check: lint types docs test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The repository's root is the package, so mypy and MkDocs see it through a link of the package's name.
build/types/qcompile:
	mkdir -p build/types && ln -sfn ../.. $@

types: $(READY) | build/types/qcompile
	MYPYPATH=build/types $(BIN)/mypy -p qcompile --exclude '/(build|tests|examples|docs|\.venv)/'

# The site in build/site, to be opened as a folder. A broken link or anchor, or a page without a place, is an error
# (with --quiet, MkDocs counts no warnings).
docs: $(READY) | build/types/qcompile
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# ONNX Runtime for ARM, which tests/emulated runs with QEMU; needs apt-get and a package index.
arm64: $(READY)
	$(BIN)/python tests/support/arm64_root.py

# What is generated from spec/ and committed: the recipe's page, schemas, keyword types.
reference: $(READY)
	$(BIN)/python tests/support/reference_pages.py

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
	$(BIN)/python tests/performance/gpu_day.py prepare

# On the GPU host, in the Python that has TensorRT: nothing is installed or downloaded.
gpu-day:
	$(GPU_PYTHON) tests/performance/gpu_day.py run $(GPU_DAY)

# There, too: GPU tests, torch.compile, calibrators, MobileNetV2.
gpu-day-more:
	$(GPU_PYTHON) tests/performance/gpu_day.py run --more $(GPU_DAY)

clean:
	rm -rf $(VENV) build dist *.egg-info examples/*/out tests/performance/*/out

# torch first: the pin in constraints.txt decides which build everything else meets. Packages are compiled on all cores
# at the end, but for the few files that are written for another Python. With `make LOCK=yes ...` pip takes only
# files whose hash is in the lock; it refuses a build of PyTorch that is not on PyPI.
$(READY): setup.cfg pyproject.toml constraints.txt requirements-test.lock
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
ifeq ($(LOCK),yes)
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --require-hashes -r requirements-test.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
else
	$(BIN)/python -m pip install --quiet --no-compile $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --no-compile $(CONSTRAINTS) -e '.[dev]'
endif
	$(BIN)/python -W ignore -m compileall -qq -j 0 $(VENV)/lib || echo "not compiled: files of packages for another Python"
	touch $(READY)

# The tools of the supply chain, in an environment of their own.
$(TOOLS)/.ready: Makefile
	test -d $(TOOLS) || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet cyclonedx-bom==7.5.0 pip-audit==2.10.1 pip-licenses==5.5.5 uv==0.13.9
	touch $@

# After a change of constraints.txt; needs a package index.
lock: $(TOOLS)/.ready
	$(TOOLS)/bin/uv pip compile --quiet --no-deps --generate-hashes --no-annotate \
		--custom-compile-command 'make lock' constraints.txt -o requirements-test.lock

# Known vulnerabilities of what is pinned; a package without an answer is an error.
audit: $(TOOLS)/.ready
	$(TOOLS)/bin/pip-audit --strict --disable-pip --no-deps -r constraints.txt

licences: $(READY) $(TOOLS)/.ready
	$(TOOLS)/bin/pip-licenses --python $(BIN)/python --from=mixed --format=markdown

sbom: $(READY) $(TOOLS)/.ready
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment --output-reproducible -o dist/qcompile-onnx.cdx.json $(BIN)/python

# From the committed files alone. Neither umask nor time is in it: another build has equal bytes.
wheel: $(READY)
	rm -rf build/source && mkdir -p build/source dist
	umask 022 && git -c tar.umask=0022 archive HEAD | tar -x -C build/source && \
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist build/source
	rm -rf build/source

# A wheel that is built from it holds what `make wheel` holds.
sdist: $(READY)
	mkdir -p dist
	$(BIN)/python -c "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv.pop())" dist
