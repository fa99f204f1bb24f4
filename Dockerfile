# syntax=docker/dockerfile:1
# qcompile with every runtime that needs no GPU. TensorRT-RTX engines for GPUs that are elsewhere are built, too.
#
#     docker build -t qcompile .
#     docker run --rm --network none -u "$(id -u):$(id -g)" -v "$PWD:/work" qcompile doctor
#
# The base is pinned by its tag, and packages by constraints.txt, with which the tests run. A digest pins the
# base's bytes: `docker buildx imagetools inspect python:3.11-slim-bookworm` tells it.

FROM python:3.11-slim-bookworm AS wheel
ENV PIP_CACHE_DIR=/var/cache/pip
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/var/cache/pip \
    PIP_CONSTRAINT=constraints.txt python -m pip wheel --no-deps --wheel-dir /build/dist .

FROM python:3.11-slim-bookworm AS environment
ENV PIP_CACHE_DIR=/var/cache/pip
# PyPI's PyTorch brings CUDA's libraries, some gigabytes; its build for CPUs is on an index of its own.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=cpu,openvino,tensorrt-rtx,report,triton,models,data,metrics,cluster
COPY constraints.txt /build/constraints.txt
RUN python -m venv /opt/qcompile
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/qcompile/bin/python -m pip install --no-deps -c /build/constraints.txt \
        --index-url "${TORCH_INDEX}" torch torchvision
COPY --from=wheel /build/dist /build/dist
# scikit-learn has the data of the examples.
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/qcompile/bin/python -m pip install -c /build/constraints.txt \
        "$(echo /build/dist/*.whl)[${EXTRAS}]" scikit-learn

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --create-home qcompile && install -d -o qcompile /work
COPY --from=environment /opt/qcompile /opt/qcompile
# Caches go to HOME, which a user of any number (`-u`) can write to.
ENV PATH=/opt/qcompile/bin:$PATH HOME=/tmp
WORKDIR /work
USER 10001
ENTRYPOINT ["qcompile"]
CMD ["--help"]
