"""Create ONNX Runtime sessions, on the CPU by default, and translate their errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import EngineUnavailable, ModelError, QCompileError, first_line
from ..tensors import Feeds, format_shape
from .onnxruntime_optimizer import optimizers_that_lose_zeros

SIGNED_ACTIVATIONS = "session.qdqisint8allowed"
"""Whether Q/DQ of int8 activations becomes integer kernels: on where the processor is ARM, off on x86."""


CORES = "QCOMPILE_CORES"
"""Variable with the cores that a process may use, where it shares the machine, as a stage of a cluster."""


def usable_cores() -> int:
    """Return the number of cores this process may use: what 0 threads stands for."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(there, granted_cores() or there)


def granted_cores() -> int:
    """Return the cores that who started this process has granted it; 0 where nobody has."""
    text = os.environ.get(CORES, "")
    return int(text) if text.isdecimal() and text.isascii() else 0


def session_options(
    threads: int = 0, *, layouts: bool = True, optimize: bool = True, integers: bool = True
) -> Any:
    """Return session options with no log of their own.

    Args:
        threads: Thread count; 0 leaves the choice to ONNX Runtime.
        layouts: Whether memory layouts are optimized too. That level crashes the process on some float16
            graphs (seen with 1.31.1: a Transformer's encoder), so it is left out where they may come.
        optimize: Whether the graph is optimized at all; a file that the optimizer wrote is run as it is.
        integers: Whether Q/DQ pairs become integer kernels. Without, they round floats, and what is stored
            is rounded once: 18 times as fast as a graph that is not optimized (a Swin for TensorRT).
    """
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    if not optimize:
        options.graph_optimization_level = levels.ORT_DISABLE_ALL
    elif not layouts:
        options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
    if not integers:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.log_severity_level = 4  # failures arrive as exceptions, and are presented once
    if threads := threads or granted_cores():
        options.intra_op_num_threads = threads
    return options


def make_session(
    path: Path,
    options: Any,
    *,
    content: bytes | None = None,
    without: Sequence[str] = (),
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    error: type[QCompileError] = ModelError,
) -> Any:
    """Return a session of a file, on the processor unless other providers are given.

    Args:
        content: What to read in place of the file, which then only names it.
        without: Names of optimizers that are left out, besides those that would change what is computed.
        providers: As `InferenceSession` takes them, the first choice first.
        error: Type to raise when ONNX Runtime refuses the file.
    """
    onnxruntime = import_onnxruntime()
    unoptimized = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    left_out = [*without, *optimizers_that_lose_zeros(path)]
    source = str(path) if content is None else content

    def open_session() -> Any:
        return onnxruntime.InferenceSession(
            source, options, providers=list(providers), disabled_optimizers=left_out
        )

    try:
        try:
            return open_session()
        except Exception as refusal:  # its exceptions share no narrower base
            if "float8" not in str(refusal) or options.graph_optimization_level == unoptimized:
                raise
            # Its optimizer makes integer kernels of FP8 pairs, too, and then refuses them (1.31.1).
            options.graph_optimization_level = unoptimized
            return open_session()
    except Exception as refusal:
        raise error(
            f"{path}: ONNX Runtime refuses it: {first_line(refusal)}",
            hint="qcompile inspect shows its operators and opset",
            file=path,
        ) from refusal


def optimize_file(
    path: Path,
    output: Path,
    options: Any,
    *,
    large: bool = False,
    without: Sequence[str] = (),
    error: type[QCompileError] = ModelError,
) -> None:
    """Write the graph as ONNX Runtime's optimizer leaves it.

    Args:
        options: From `session_options`; they are changed.
        large: Whether the model is too large for one file.
    """
    options.optimized_model_filepath = str(output)
    if large:
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{output.name}.data"
        )
    make_session(path, options, without=without, error=error)


def run_session(session: Any, names: list[str], feeds: Feeds, subject: str) -> list[Any]:
    """Return the named outputs."""
    try:
        return list(session.run(names, feeds))
    except Exception as error:  # its exceptions share no narrower base
        shapes = ", ".join(f"{name}:{format_shape(array.shape)}" for name, array in feeds.items())
        raise ModelError(
            f"{subject}: ONNX Runtime fails on {shapes}: {first_line(error)}",
            hint="where these shapes are made up and do not suit the model, give `data`",
        ) from error


def import_onnxruntime() -> Any:
    """Import ONNX Runtime."""
    try:
        import onnxruntime
    except ImportError as error:
        raise EngineUnavailable(
            f"ONNX Runtime cannot be imported ({error})",
            hint="pip install 'qcompile[cpu]'",
            engine="onnxruntime",
        ) from error
    return onnxruntime
