"""The two engines of this folder: TensorRT, on the GPU it runs on, and TensorRT-RTX, ahead of time."""

from __future__ import annotations

from pathlib import Path

from ...artifact import read_manifest
from ...errors import ArtifactError, EngineUnavailable, InvalidOption
from ...shapes import ModelIO
from ..base import PRECISIONS, BuildOutcome, BuildRequest, Engine, Precision, Runner
from .adapter import load_adapter, why_no_gpu


class TensorRT(Engine):
    """TensorRT 8.5 to 11: builds and runs on the GPU of this machine."""

    name = "tensorrt"
    suffix = ".engine"
    takes_profiles = True

    def why_not_build(self) -> str:
        return self._why_not_import() or why_no_gpu()

    def why_not_run(self) -> str:
        return self._why_not_import() or why_no_gpu() or self._why_no_pycuda()

    def fix(self) -> str:
        if self._why_not_import():
            return f"pip install 'qcompile[{self.name}]'"
        if why_no_gpu():
            return "run it on a machine with an NVIDIA GPU, or build ahead of time with --target tensorrt-rtx"
        return "pip install 'qcompile[cuda]'" if self._why_no_pycuda() else ""

    def graph_precision(self, precision: Precision) -> Precision:
        found = load_adapter(self.name).graph_precision(precision)
        return PRECISIONS[PRECISIONS.index(found)]

    def build(self, request: BuildRequest) -> BuildOutcome:
        from .builder import build_plan

        return build_plan(load_adapter(self.name), request)

    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        path = Path(artifact)
        manifest = read_manifest(path)
        if manifest is None:
            raise ArtifactError(
                f"{path}: has no manifest; an engine is executable code and is loaded only with one",
                hint="build it with qcompile build",
                file=path,
            )
        reason = self.why_not_run()
        if reason:
            raise EngineUnavailable(
                f"{path}: cannot run here: {reason}",
                hint=self.fix(),
                engine=self.name,
                reason=reason,
            )
        from .runner import TensorRTRunner

        return TensorRTRunner(load_adapter(self.name), path)

    def _why_not_import(self) -> str:
        try:
            load_adapter(self.name)
        except EngineUnavailable as error:
            return error.message
        return ""

    def _why_no_pycuda(self) -> str:
        try:
            import pycuda.driver  # noqa: F401
        except Exception as error:  # ImportError, or a driver that is too old
            return f"pycuda cannot be imported ({error})"
        return ""


class TensorRTRTX(TensorRT):
    """TensorRT-RTX: builds for GPUs that need not be here, and runs on one that is."""

    name = "tensorrt-rtx"

    def why_not_build(self) -> str:
        return self._why_not_import()

    def build(self, request: BuildRequest) -> BuildOutcome:
        if not request.gpus and why_no_gpu():
            raise InvalidOption(
                f"--gpu is required here: {why_no_gpu()}",
                hint="name the GPUs it is for, such as --gpu sm86,sm89",
                option="--gpu",
            )
        return super().build(request)
