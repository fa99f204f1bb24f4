"""Build TorchScript: trace and freeze a MODEL, and compare the trace with the MODEL."""

from __future__ import annotations

import io
from typing import Any

from numpy.typing import NDArray

from ...artifact import Check
from ...errors import BuildError, ModelError, first_line
from ...model.example import CHECK_EXTENTS, Example, flat_outputs, make_example, name_outputs
from ...model.output_error import output_error
from ...model.pytorch import import_torch, load_torch
from ...model.source import parse_source
from ...processor import processor
from ...progress import quiet
from ...tensors import Dim, Feeds, ModelIO, TensorInfo
from ..base import BuildOutcome, BuildRequest
from .engine import PyTorch
from .runner import PyTorchRunner


class TorchScript(PyTorch):
    """A traced and frozen program, saved by `torch.jit.save`."""

    name = "torchscript"
    suffix = ".pt"

    def why_not_build(self) -> str:
        return self.why_not_run()

    def build(self, request: BuildRequest) -> BuildOutcome:
        torch = import_torch()
        if request.precision != "fp32":
            raise BuildError(f"TorchScript is built in fp32; {request.precision} was asked for")
        loaded = load_torch(parse_source(request.model))
        example = make_example(loaded, request.spec.inputs, [])
        arguments, keywords = example.arguments(example.feeds)
        request.progress("trace and freeze")
        stored = io.BytesIO()  # on a full disk its writer ends the process (torch 2.13: std::terminate)
        try:
            with quiet(), torch.no_grad():
                traced = torch.jit.trace(
                    loaded.module,
                    None if keywords else arguments,
                    example_kwarg_inputs=keywords or None,
                    strict=False,
                )
                frozen = torch.jit.freeze(traced.eval())
                torch.jit.save(frozen, stored)
        except Exception as error:  # tracing runs the user's code, which may raise anything
            raise BuildError(f"{request.model}: cannot be traced: {first_line(error)}") from error
        request.output.write_bytes(stored.getbuffer())
        outputs, check = _compare(loaded.module, example, str(request.output), request.model)
        return BuildOutcome(
            kind="torchscript",
            io=ModelIO(example.inputs, outputs),
            planned=1,
            reached=1,
            proof={"dtypes": sorted({str(t.dtype) for t in loaded.module.parameters()})},
            device=processor(),
            packages=("torch",),
            checks=[check],
        )


def _compare(module: Any, example: Example, path: str, label: str) -> tuple[tuple[TensorInfo, ...], Check]:
    """Compare the trace with the module on other values and another batch than it was made with."""
    first = example.call(module, example.feeds)
    names, arrays = name_outputs([], first), flat_outputs(first)[1]
    runner = PyTorchRunner(load_torch(parse_source(path)).module, ModelIO(example.inputs, ()))
    other = example.resized(CHECK_EXTENTS[-1]) if example.has_dynamic_batch else example.feeds
    negated = {n: -a if a.dtype.kind == "f" else a for n, a in example.feeds.items()}
    lowest = float("inf")
    for feeds in (example.feeds, negated, other):
        expected = flat_outputs(example.call(module, feeds))[1]
        for a, b in zip(expected, _run_trace(runner, feeds, label), strict=True):
            error = output_error(a, b) if a.shape == b.shape else None
            if error is None or not error.close:
                raise BuildError(
                    f"{label}: the traced program computes something else "
                    f"({f'{error.snr_db:.1f} dB' if error else f'{b.shape} in place of {a.shape}'})",
                    hint="forward() is random, or depends on values or extents that a trace freezes",
                )
            lowest = min(lowest, error.snr_db)
    outputs = tuple(
        TensorInfo(name, str(array.dtype), _shape(array, dynamic=example.has_dynamic_batch))
        for name, array in zip(names, arrays, strict=True)
    )
    detail = "equal" if lowest == float("inf") else f"{lowest:.1f} dB or better"
    return outputs, Check("same outputs as PyTorch", True, detail)


def _run_trace(runner: PyTorchRunner, feeds: Feeds, label: str) -> list[NDArray[Any]]:
    try:
        return list(runner.infer(feeds).values())
    except ModelError as error:
        raise BuildError(
            f"{label}: the traced program fails on another input: {error.message}",
            hint="forward() depends on extents that a trace freezes",
        ) from error


def _shape(array: NDArray[Any], *, dynamic: bool) -> tuple[Dim, ...]:
    first: tuple[Dim, ...] = ("?",) if dynamic and array.ndim else tuple(array.shape[:1])
    return (*first, *array.shape[1:])
