"""Run a MODEL in eager PyTorch, the baseline, or in another of PyTorch's modes."""

from __future__ import annotations

from ...artifact import read_manifest
from ...errors import BuildError, EngineUnavailable, InvalidOption
from ...model.example import make_example
from ...model.pytorch import import_torch, load_torch
from ...model.source import parse_source
from ...spec.words import Precision
from ...tensors import ModelIO
from ..base import BuildOutcome, BuildRequest, DeviceRun, Engine, Place, Runner
from ..gpu import why_not_gpu
from .runner import MODES, PyTorchRunner


class PyTorch(Engine):
    """Eager execution of a MODEL; there is nothing to build."""

    name = "pytorch"
    suffix = ""
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

    def fix(self) -> str:
        return "pip install 'qcompile[torch]'" if self.why_not_run() else ""

    def graph_precision(self, precision: Precision) -> Precision:
        return "fp32"

    def build(self, request: BuildRequest) -> BuildOutcome:
        raise BuildError(self.why_not_build(), hint="`qcompile bench` takes it as it is: `baseline` MODEL")

    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        return self.open_in_mode(artifact, "eager", threads=threads, io=io)

    def open_on_gpu(
        self, artifact: str, run: DeviceRun, *, threads: int = 0, io: ModelIO | None = None
    ) -> Runner:
        run.require_plain(self.name)
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
        """Load a MODEL to be run in one of `MODES`, on the processor or on a GPU."""
        if mode not in MODES:
            raise InvalidOption(f"PyTorch mode {mode!r} is unknown; known are {', '.join(MODES)}")
        torch = import_torch()
        reason = "" if device is None else self.why_not_run_on_gpu(device)
        if reason:
            raise EngineUnavailable(
                f"{artifact}: cannot run on GPU {device} here: {reason}",
                hint="install a PyTorch with CUDA (https://pytorch.org/get-started), or give `devices` cpu"
                if torch.version.cuda is None
                else "run it on a machine with an NVIDIA GPU, or give `devices` cpu",
                engine=self.name,
                reason=reason,
            )
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
