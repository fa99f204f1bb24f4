"""The two sides of a comparison, and the reasons why two sides cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...artifact import Manifest, accept, checked_input, read_manifest
from ...engines.load import engine_of
from ...engines.registry import engine
from ...errors import EngineUnavailable, InvalidOption, ModelError
from ...files import manifest_path, require_file
from ...model.graph import graph_precision, weighted_nodes
from ...model.weightless import WeightlessModel, read_weightless
from ...tensors import ModelIO, TensorInfo
from .outcome import THRESHOLD_DB

_LOOK = "compare with the ONNX file that the engine was built from, to see inside"


@dataclass(frozen=True)
class Side:
    """An ONNX file, or an engine.

    Attributes:
        path, runtime: The file, and the name of its engine.
        precision: "fp32", "tf32", "fp16", "bf16", "fp8", "int8" or "int4".
        weightless: The graph; None for an engine, which shows its outputs alone.
        io: Inputs and outputs.
    """

    path: Path
    runtime: str
    precision: str
    weightless: WeightlessModel | None
    io: ModelIO

    @property
    def name(self) -> str:
        """How it is called in progress and errors."""
        return self.path.name

    @property
    def layers(self) -> int:
        """Number of nodes that do the arithmetic; 1 where that is not known."""
        nodes = weighted_nodes(self.weightless.model).values() if self.weightless else ()
        return max(1, sum(map(len, nodes)))


def reference_side(reference: str, *, trust: bool = False) -> Side:
    """Look at the reference."""
    path = Path(reference)
    if path.suffix != ".onnx":
        raise InvalidOption(
            f"{reference}: layers are compared with those of an ONNX file",
            hint="qcompile export makes one of a PyTorch model",
        )
    return artifact_side(reference, trust=trust)


def artifact_side(artifact: str, *, trust: bool = False) -> Side:
    """Look at an artifact without running it; a file must be what its manifest says."""
    path = Path(artifact)
    if path.suffix not in (".onnx", ".engine", ".plan"):
        raise InvalidOption(
            f"{artifact}: its layers cannot be looked at; an ONNX file or an engine is required",
            hint="leave `layers` out to compare the outputs",
        )
    require_file(path, what="artifact")
    runtime = engine_of(artifact, trust=trust)
    manifest = read_manifest(path)
    if trust:
        accept(path)
    else:
        checked_input(path)  # the digest, before anything is executed
    if reason := engine(runtime).why_not_run():
        fix = engine(runtime).fix()
        raise EngineUnavailable(
            f"{path}: cannot run here: {reason}",
            hint=f"{fix}; or {_LOOK}" if path.suffix != ".onnx" else fix,
            engine=runtime,
        )
    if path.suffix != ".onnx":
        return _engine_side(path, runtime, manifest)
    weightless = read_weightless(path)
    precision = graph_precision(weightless.model)
    if precision == "fp32" and manifest is not None and manifest.precision in ("fp16", "bf16"):
        precision = manifest.precision  # a hint to the runtime: the graph is float32
    return Side(path, runtime, precision, weightless, weightless.io)


def _engine_side(path: Path, runtime: str, manifest: Manifest | None) -> Side:
    if manifest is None or manifest.io is None:
        raise ModelError(
            f"{path}: {manifest_path(path).name} names no inputs and outputs", hint=_LOOK, file=path
        )
    known = manifest.precision in THRESHOLD_DB  # "best" may be anything down to INT8
    return Side(path, runtime, manifest.precision if known else "int8", None, manifest.io)


def input_casts(reference: Side, artifact: Side) -> dict[str, str]:
    """Return input to the float type that the artifact takes in place of the reference's."""
    theirs = {tensor.name: tensor for tensor in artifact.io.inputs}
    casts: dict[str, str] = {}
    if set(theirs) != {tensor.name for tensor in reference.io.inputs}:
        raise InvalidOption(
            f"inputs differ: {reference.name} takes {_names(reference.io.inputs)}; "
            f"{artifact.name} takes {_names(artifact.io.inputs)}",
            hint="compare an artifact with the model that it was made from",
        )
    for tensor in reference.io.inputs:
        dtype = theirs[tensor.name].dtype
        if dtype == tensor.dtype:
            continue
        if not (dtype in ("float16", "float32") and "float" in tensor.dtype):
            raise InvalidOption(
                f"input {tensor.name!r} is {tensor.dtype} in {reference.name} and {dtype} in {artifact.name}"
            )
        casts[tensor.name] = dtype
    return casts


def _names(tensors: Sequence[TensorInfo]) -> str:
    return ", ".join(tensor.name for tensor in tensors) or "none"
