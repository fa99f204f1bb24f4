"""PyTorch itself: eager execution of a MODEL, the baseline; the other modes in which it runs one (trace,
script, freeze, compile); and TorchScript as an artifact (traced and frozen)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from numpy.typing import NDArray

from ..artifact import Check, read_manifest
from ..errors import BuildError, DataError, EngineUnavailable, InvalidOption, ModelError, first_line
from ..model.example import (
    CHECK_EXTENTS,
    Example,
    flat_outputs,
    in_order,
    make_example,
    name_outputs,
    takes_keywords,
)
from ..model.fidelity import fidelity
from ..model.pytorch import import_torch, load_torch
from ..model.source import parse_source
from ..progress import quiet
from ..shapes import Dim, Feeds, ModelIO, TensorInfo, check_feeds
from .base import BuildOutcome, BuildRequest, Engine, Precision, Runner
from .processor import processor

Mode = Literal["eager", "trace", "script", "freeze", "compile"]
MODES: tuple[Mode, ...] = ("eager", "trace", "script", "freeze", "compile")
"""How PyTorch runs a module: as it is, as TorchScript of three kinds, or by `torch.compile`."""

_MADE = {"trace": "traced", "script": "scripted", "freeze": "traced and frozen", "compile": "torch.compile"}


class PyTorch(Engine):
    """Eager execution of a MODEL; there is nothing to build."""

    name = "pytorch"
    suffix = ""
    takes = "pytorch"

    def why_not_build(self) -> str:
        return "eager PyTorch runs the MODEL itself; there is nothing to build"

    def why_not_run(self) -> str:
        try:
            import_torch()
        except EngineUnavailable as error:
            return error.message
        return ""

    def fix(self) -> str:
        return "pip install 'qcompile[torch]'" if self.why_not_run() else ""

    def graph_precision(self, precision: Precision) -> Precision:
        return "fp32"

    def build(self, request: BuildRequest) -> BuildOutcome:
        raise BuildError(self.why_not_build(), hint="bench it as it is: --baseline MODEL")

    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        return self.open_in_mode(artifact, "eager", threads=threads, io=io)

    def open_in_mode(
        self, artifact: str, mode: str, *, threads: int = 0, io: ModelIO | None = None
    ) -> PyTorchRunner:
        """Load a MODEL to be run in one of `MODES`.

        Raises:
            InvalidOption: If the mode is unknown.
        """
        if mode not in MODES:
            raise InvalidOption(f"PyTorch mode {mode!r} is unknown; known are {', '.join(MODES)}")
        torch = import_torch()
        if threads:
            torch.set_num_threads(threads)
        source = parse_source(artifact)
        manifest = read_manifest(source.file) if source.path and source.kind != "file" else None
        if manifest and manifest.io and io is None:
            io = manifest.io
        loaded = load_torch(source)
        if io is None and loaded.example is not None:
            io = ModelIO(make_example(loaded, [], []).inputs, ())
        return PyTorchRunner(loaded.module, io, mode=MODES[MODES.index(mode)])


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
        example = make_example(loaded, request.inputs, [])
        arguments, keywords = example.arguments(example.feeds)
        request.progress("trace and freeze")
        try:
            with quiet(), torch.no_grad():
                traced = torch.jit.trace(
                    loaded.module,
                    None if keywords else arguments,
                    example_kwarg_inputs=keywords or None,
                    strict=False,
                )
                frozen = torch.jit.freeze(traced.eval())
                torch.jit.save(frozen, str(request.output))
        except Exception as error:  # tracing runs the user's code, which may raise anything
            raise BuildError(f"{request.model}: cannot be traced: {first_line(error)}") from error
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


class PyTorchRunner(Runner):
    """A module on the CPU, without gradients. Inputs go in by name where `forward` knows the names.

    Every mode but eager converts the module for the shapes of the feeds, once for each set of shapes, and
    must then compute what eager does.
    """

    contains = "host to host: one forward()"

    def __init__(self, module: Any, io: ModelIO | None, *, mode: Mode = "eager") -> None:
        self._torch = import_torch()
        self._module, self._mode = module, mode
        self._converted: dict[Any, Any] = {}
        if mode != "eager":
            self.contains += f", {_MADE[mode]}"
        self.io = io or ModelIO((), ())
        self._names = [tensor.name for tensor in self.io.outputs]

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        try:
            result = self.prepare(feeds)()
        except (DataError, ModelError):
            raise
        except Exception as error:
            raise ModelError(f"PyTorch fails on the feeds: {first_line(error)}") from error
        arrays = flat_outputs(result)[1]
        same = len(self._names) == len(arrays)
        return dict(zip(self._names if same else name_outputs([], result), arrays, strict=True))

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        if self.io.inputs:
            check_feeds(self.io.inputs, feeds, "feeds")
        torch, module = self._torch, self._module
        tensors = tuple(TensorInfo(n, str(a.dtype), tuple(a.shape)) for n, a in feeds.items())
        tensors = in_order(module, tensors)
        example = Example(tensors, feeds, takes_keywords(module, tensors))
        arguments, keywords = example.arguments(feeds)
        if self._mode != "eager":
            key = tuple((tensor.name, tensor.shape) for tensor in tensors)
            if key not in self._converted:
                self._converted[key] = _convert(torch, module, self._mode, arguments, keywords)
            module = self._converted[key]

        def run() -> Any:
            with torch.inference_mode():
                return module(*arguments, **keywords)

        return run

    def close(self) -> None:
        self._module = None
        self._converted.clear()


def _convert(torch: Any, module: Any, mode: Mode, arguments: Any, keywords: Any) -> Any:
    """The module in another mode, once it computes what eager does on these arguments."""
    try:
        with quiet(), torch.inference_mode():
            expected = module(*arguments, **keywords)
        # TorchScript's graphs and compiled code keep what they were made under: gradients off, no more.
        with quiet(), torch.no_grad():
            if mode == "compile":
                converted = torch.compile(module, dynamic=False)
            elif mode == "script":
                converted = torch.jit.script(module)
            else:
                converted = torch.jit.trace(
                    module,
                    None if keywords else arguments,
                    example_kwarg_inputs=keywords or None,
                    strict=False,
                )
                converted = torch.jit.freeze(converted) if mode == "freeze" else converted
        with quiet(), torch.inference_mode():
            # The first calls of TorchScript profile and optimize; its result may change with the second.
            found = [converted(*arguments, **keywords) for _ in range(2)][-1]
    except Exception as error:  # tracing and compiling run the user's code, which may raise anything
        raise ModelError(
            f"PyTorch mode {mode}: fails: {first_line(error)}",
            hint="leave --torch out, or choose another mode",
        ) from error
    pairs = zip(flat_outputs(expected)[1], flat_outputs(found)[1], strict=True)
    if not all(a.shape == b.shape and fidelity(a, b).close for a, b in pairs):
        raise ModelError(f"PyTorch mode {mode}: computes something else than eager does on the same input")
    return converted


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
            found = fidelity(a, b) if a.shape == b.shape else None
            if found is None or not found.close:
                raise BuildError(
                    f"{label}: the traced program computes something else "
                    f"({f'{found.snr_db:.1f} dB' if found else f'{b.shape} in place of {a.shape}'})",
                    hint="forward() is random, or depends on values or extents that a trace freezes",
                )
            lowest = min(lowest, found.snr_db)
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
