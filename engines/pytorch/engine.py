"""Run a PyTorch model eagerly, as the baseline, or in another mode; build TorchScript artifacts from it."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

from ...core.artifact import Check, read_manifest
from ...core.processor import processor
from ...core.progress import quiet
from ...errors import BuildError, EngineUnavailable, InvalidOption, ModelError, first_line
from ...model.outputs.judgement import output_error
from ...model.sources.archives import trust_files
from ...model.sources.example import CHECK_EXTENTS, Example, flat_outputs, make_example, name_outputs
from ...model.sources.load import load_torch
from ...model.sources.pytorch import WITHOUT_CACHE, caching, import_torch, without_cache
from ...model.sources.source import parse_source
from ...spec.tensors import Dim, ModelIO, TensorInfo
from ...spec.words import Precision
from ..base import BuildOutcome, BuildRequest, DeviceRun, Engine, Place, Runner
from ..gpu import why_not_gpu
from ..words import Proposal, TritonBackend
from .runner import MODES, PyTorchRunner, trace

PACKAGES = {"torch": "torch"}
PROPOSALS = (Proposal("torchscript", "fp32", "as requested", "named"),)

TRITON = TritonBackend(
    "pytorch", "pytorch_libtorch", "model.pt",
    frozenset("bool uint8 int8 int16 int32 int64 float32 float64".split()), ("cpu", "gpu"),
)  # fmt: skip


class PyTorch(Engine):
    """Adapter that runs a MODEL (a model's name on the command line) in PyTorch, by default eagerly."""

    name = "pytorch"
    suffix = ""
    packages = PACKAGES
    extra = "torch"
    takes = "pytorch"
    places: tuple[Place, ...] = ("cpu", "cuda")

    def why_not_build(self) -> str:
        return "eager PyTorch runs the MODEL itself; there is nothing to build"

    def why_not_run(self) -> str:
        try:
            import_torch()
        except EngineUnavailable as error:
            return error.message
        return ""

    def why_not_run_on_gpu(self, device: int = 0) -> str:
        reason = self.why_not_run()
        if reason:
            return reason
        torch = import_torch()
        if torch.version.cuda is None:
            return f"this PyTorch ({torch.__version__}) was built without CUDA"
        return why_not_gpu(device) or ("" if torch.cuda.is_available() else "PyTorch finds no CUDA device")

    def graph_precision(self, precision: Precision) -> Precision:
        return "fp32"

    def build(self, request: BuildRequest) -> BuildOutcome:
        raise BuildError(self.why_not_build(), hint="`qcompile bench` takes it as it is: `baseline` MODEL")

    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        return self.open_in_mode(artifact, "eager", threads=threads, io=io)

    def open_on_gpu(
        self, artifact: str, run: DeviceRun, *, threads: int = 0, io: ModelIO | None = None
    ) -> Runner:
        run.refuse_streams_and_graphs(self.name)
        return self.open_in_mode(artifact, "eager", threads=threads, io=io, device=run.device)

    def open_in_mode(
        self,
        artifact: str,
        mode: str,
        *,
        threads: int = 0,
        io: ModelIO | None = None,
        device: int | None = None,
    ) -> PyTorchRunner:
        if mode not in MODES:
            raise InvalidOption(f"PyTorch mode {mode!r} is unknown; known are {', '.join(MODES)}")
        torch = import_torch()
        if device is not None:
            install = "install a PyTorch with CUDA (https://pytorch.org/get-started)"
            self.require_gpu_here(artifact, device, "" if torch.version.cuda else install)
        if threads:
            torch.set_num_threads(threads)
        source = parse_source(artifact)
        manifest = read_manifest(source.file) if source.path and source.kind not in ("file", "hf") else None
        if manifest and manifest.io and io is None:
            io = manifest.io
        loaded = load_torch(source, device="cpu" if device is None else f"cuda:{device}")
        if io is None and loaded.example is not None:
            io = ModelIO(make_example(loaded, [], []).inputs, ())
        return PyTorchRunner(loaded.module, io, mode=MODES[MODES.index(mode)], device=device)


class TorchScript(PyTorch):
    """Adapter that builds a traced and frozen program, saved by `torch.jit.save`."""

    name = "torchscript"
    suffix = ".pt"
    triton = TRITON
    custom_proposals = PROPOSALS

    def why_not_build(self) -> str:
        return self.why_not_run()

    def build(self, request: BuildRequest) -> BuildOutcome:
        torch = import_torch()
        if request.precision != "fp32":
            raise BuildError(f"TorchScript is built in fp32; {request.precision} was requested")
        loaded = load_torch(parse_source(request.model))
        example = make_example(loaded, request.spec.inputs, [])
        arguments, keywords = example.arguments(example.feeds)
        request.progress("trace and freeze")
        configs: list[Any] = []
        if caching(loaded.module):
            call_module = partial(example.call, loaded.module, example.feeds)
            _, configs = without_cache(loaded.module, call_module(), call_module)
        buffer = io.BytesIO()  # PyTorch 2.13's file writer ends the process on a full disk (std::terminate)
        try:
            with quiet(), torch.no_grad():
                frozen = torch.jit.freeze(trace(torch, loaded.module, arguments, keywords).eval())
                torch.jit.save(frozen, buffer)
        except Exception as error:  # tracing runs the user's code, which may raise anything
            raise BuildError(f"{request.model}: cannot be traced: {first_line(error)}") from error
        request.output.write_bytes(buffer.getbuffer())
        outputs, check = _compare(loaded.module, example, str(request.output), request.model)
        return BuildOutcome(
            kind="torchscript",
            io=ModelIO(example.inputs, outputs),
            planned=1,
            reached=1,
            proof={"dtypes": sorted({str(t.dtype) for t in loaded.module.parameters()})},
            device=processor(),
            checks=[check],
            warnings=[WITHOUT_CACHE.format("traced")] if configs else [],
        )


def _compare(module: Any, example: Example, path: str, label: str) -> tuple[tuple[TensorInfo, ...], Check]:
    """Compare the trace with the module on the traced input, negated input, and another batch if dynamic."""
    first = example.call(module, example.feeds)
    names, arrays = name_outputs([], first, example.feeds), flat_outputs(first)[1]
    with trust_files([Path(path)]):  # this process wrote the file
        traced = load_torch(parse_source(path)).module
    runner = PyTorchRunner(traced, ModelIO(example.inputs, ()))
    other_batch = example.resize_batch(CHECK_EXTENTS[-1]) if example.has_dynamic_batch else example.feeds
    negated = {n: -a if a.dtype.kind == "f" else a for n, a in example.feeds.items()}
    lowest = float("inf")
    for feeds in (example.feeds, negated, other_batch):
        expected = flat_outputs(example.call(module, feeds))[1]
        try:
            outputs_of_trace = runner.infer(feeds).values()
        except ModelError as failure:
            problem = f"{label}: the traced program fails on another input: {failure.message}"
            raise BuildError(problem, hint="forward() depends on extents that a trace freezes") from failure
        for a, b in zip(expected, outputs_of_trace, strict=True):
            error = output_error(a, b) if a.shape == b.shape else None
            if error is None or not error.close:
                raise BuildError(
                    f"{label}: the traced program computes something else "
                    f"({f'{error.snr_db:.1f} dB' if error else f'{b.shape} in place of {a.shape}'})",
                    hint="forward() is random, or depends on values or extents that a trace freezes",
                )
            lowest = min(lowest, error.snr_db)
    batch: tuple[Dim, ...] = ("?",) if example.has_dynamic_batch else ()
    outputs = tuple(
        TensorInfo(name, str(array.dtype), (*batch[: array.ndim], *array.shape[len(batch) :]))
        for name, array in zip(names, arrays, strict=True)
    )
    detail = "equal" if lowest == float("inf") else f"{lowest:.1f} dB or better"
    return outputs, Check("same outputs as PyTorch", True, detail)
