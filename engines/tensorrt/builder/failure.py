"""Translate TensorRT's log of a failed build into a cause and a hint."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ....errors import BuildError
from ..log import Log, last_error, plain

_EXPLANATIONS: Sequence[tuple[str, str, str]] = (
    (
        r"out of memory|outofmemory|requested amount of gpu memory",
        "the GPU's memory does not suffice",
        "lower `max_shapes` or `workspace`, end what else uses the GPU, or build where it has more memory",
    ),
    (
        r"workspace limit|insufficient workspace|increase the (allowed )?workspace",
        "no kernel fits the workspace",
        "raise `workspace`, or leave it out",
    ),
    (
        r"could not find any implementation for node",
        "it has no kernel for a layer",
        "raise `workspace` or `optimization_level`, or keep the layer in another precision with `layers`",
    ),
    (
        r"check\(status == cuda_success\) failed",
        "it needs a GPU to compile with these options",
        "leave `refit` and `strip_weights` out, or build on a machine with the GPU",
    ),
    (
        r"hw-specific datatypes",
        "one of the GPUs does not have a type of the graph",
        "FP8 begins with sm89, NVFP4 and MXFP8 with sm100: name other `gpus`, or another `precision`",
    ),
    (
        r"fp32 gemm is not supported",
        "one of the GPUs has no kernel for products of float32",
        "choose `precision` fp16, or int8 with `float_precision` fp16; or leave sm75 out of `gpus`",
    ),
    (
        r"sm_vers_\.size\(\) == 1",
        "with these options an engine is for one GPU",
        "name one of `gpus` for each engine that takes new weights",
    ),
    (
        r"libnvinfer_lean|libnvinfer_dispatch",
        "the lean runtime that `version_compatible` puts into an engine is not installed",
        "install it (tensorrt-lean), give `exclude_lean_runtime`, or leave `version_compatible` out",
    ),
)
"""Pattern of what TensorRT logs, what it means, and the way out."""


def build_failure(log: Log, subject: str, otherwise: str) -> BuildError:
    """Return the error of a build that gave no engine.

    Args:
        log: From `log.make_log`.
        subject: File and TensorRT, for the message.
        otherwise: The hint where the log is not understood.
    """
    for pattern, meaning, hint in _EXPLANATIONS:  # causes first: the last error is often a consequence
        for message in log.errors:
            if re.search(pattern, message, re.IGNORECASE):
                return BuildError(f"{subject} cannot build it: {meaning}: {plain(message)}", hint=hint)
    return BuildError(f"{subject} cannot build it: {last_error(log, 'it gave no reason')}", hint=otherwise)
