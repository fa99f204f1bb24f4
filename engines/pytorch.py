"""PyTorch itself: eager execution of a MODEL, the baseline, and TorchScript (traced and frozen)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from ..artifact import Check, read_manifest
from ..errors import BuildError, DataError, EngineUnavailable, ModelError, first_line
from ..model.example import Example, flat_outputs, in_order, make_example, name_outputs, takes_keywords
from ..model.fidelity import fidelity
from ..model.pytorch import import_torch, load_torch
from ..model.source import parse_source
from ..progress import quiet
from ..shapes import Feeds, ModelIO, TensorInfo, check_feeds
from .base import BuildOutcome, BuildRequest, Engine, Precision, Runner
from .onnx_runtime.processor import processor


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
        return PyTorchRunner(loaded.module, io)


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
        outputs, check = _compare(loaded.module, example, str(request.output))
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
    """A module on the CPU, without gradients. Inputs go in by name where `forward` knows the names."""

    contains = "host to host: one forward()"

    def __init__(self, module: Any, io: ModelIO | None) -> None:
        self._torch = import_torch()
        self._module = module
        self.io = io or ModelIO((), ())
        self._names = [tensor.name for tensor in self.io.outputs]

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        try:
            result = self.prepare(feeds)()
        except DataError:
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

        def run() -> Any:
            with torch.inference_mode():
                return module(*arguments, **keywords)

        return run

    def close(self) -> None:
        self._module = None


def _compare(module: Any, example: Example, path: str) -> tuple[tuple[TensorInfo, ...], Check]:
    reference = example.call(module, example.feeds)
    arrays = flat_outputs(reference)[1]
    names = name_outputs([], reference)
    runner = PyTorchRunner(load_torch(parse_source(path)).module, None)
    found = list(runner.infer(example.feeds).values())
    worst = [fidelity(a, b) for a, b in zip(arrays, found, strict=True)]
    if not all(item.close for item in worst):
        raise BuildError(
            f"{path}: the traced program computes something else "
            f"({min(item.snr_db for item in worst):.1f} dB)",
            hint="forward() depends on values of its input, which a trace freezes",
        )
    outputs = tuple(
        TensorInfo(
            name,
            str(array.dtype),
            tuple("?" if axis == 0 and example.has_dynamic_batch else int(extent)
                  for axis, extent in enumerate(array.shape)),
        )
        for name, array in zip(names, arrays, strict=True)
    )  # fmt: skip
    lowest = min((item.snr_db for item in worst), default=float("inf"))
    return outputs, Check("same outputs as PyTorch", True, f"{lowest:.1f} dB or better")
