"""Servers as runtimes: they run what they hold, and build nothing."""

from __future__ import annotations

from ...errors import BuildError, InvalidOption
from ...spec.words import Precision
from ...tensors import ModelIO
from ..base import BuildOutcome, BuildRequest, DeviceRun, Engine, Place, Runner
from .address import parse_served
from .runner import open_served


class Kserve(Engine):
    """Any server of the Open Inference Protocol."""

    name = "kserve"
    suffix = ""
    places: tuple[Place, ...] = ()

    def why_not_build(self) -> str:
        return "a served model is measured as it is; there is nothing to build"

    def why_not_run(self) -> str:
        return ""

    def fix(self) -> str:
        return ""

    def graph_precision(self, precision: Precision) -> Precision:
        return precision

    def build(self, request: BuildRequest) -> BuildOutcome:
        raise BuildError(self.why_not_build(), hint="`qcompile bench` and `qcompile diff` take it")

    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        return open_served(parse_served(artifact), io)

    def open_on_gpu(
        self, artifact: str, run: DeviceRun, *, threads: int = 0, io: ModelIO | None = None
    ) -> Runner:
        raise InvalidOption(f"{artifact}: its server decides where it runs; `devices` is not for it")


class Triton(Kserve):
    """Triton Inference Server: binary tensors always, and statistics."""

    name = "triton"
