"""The types of a manifest as it lies on the disk: what is read is checked against them first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec

SCHEMA_VERSION = 1
_DTYPE = re.compile(
    r"float(16|32|64)|bfloat16|u?int(2|4|8|16|32|64)|bool|string|undefined|complex(64|128)|float[468]_\w+"
)


@dataclass(frozen=True)
class Check:
    """One verification that was carried out: its name, whether it held, and what was seen."""

    name: str
    passed: bool
    detail: str


Count = Annotated[int, msgspec.Meta(ge=0)]
Layers = dict[str, dict[str, Count]]


class Proof(TypedDict, total=False):
    """What is read again in `proof`; more may be there.

    Attributes:
        layers_by_precision: Precision to operator to the number of layers that were found in it.
        as_executed: The same, as the engine's inspector reports it; null where there is none.
        left_in_float: Layer that was not quantized to the reason.
        has_run: Whether the artifact ran where it was built.
        evidence: What the precisions were concluded from.
        inspector: Why the inspector of an engine told nothing.
        provider: ONNX Runtime's, of an engine inside an ONNX file.
        refitted_with: Fingerprint of the model whose weights an engine was given.
        weights: Digest of the weights of its build, of an engine that takes no others.
        profiles: For each optimization profile, input to its least, optimal and largest shape.
    """

    layers_by_precision: Layers
    as_executed: Layers | None
    left_in_float: dict[str, str]
    has_run: bool
    evidence: str
    inspector: str
    provider: str
    refitted_with: str
    weights: str
    profiles: list[dict[str, dict[str, list[int]]]]


class Device(TypedDict, total=False):
    """What is read again in `device`; more may be there.

    Attributes:
        gpu: Name of the GPU that built it.
        gpus: Compute capabilities that it runs on, such as "sm86".
        architecture: Of the processor.
        features: Instruction sets of the processor.
    """

    gpu: str
    gpus: list[str]
    architecture: str
    features: list[str]


class EngineOptions(TypedDict, total=False):
    """What is read again in the `options` of an engine; the other options of the build are there, too."""

    plugins: list[str]
    io_formats: list[str]
    strip_weights: bool
    version_compatible: bool
    exclude_lean_runtime: bool
    hardware_compatible: str
    weight_streaming: str
    allocation_strategy: str
    calibrator: str
    device: int | None
    tf32: bool


class Read(TypedDict):
    """Parts of a manifest whose keys have types."""

    proof: Proof
    device: Device


class OfEngine(TypedDict):
    """The part of an engine's manifest whose keys have types."""

    options: EngineOptions


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    Attributes:
        name: Its own.
        dtype: As ONNX spells it, such as "float32".
        shape: Extents; the name of an axis is one that is dynamic.
        preprocessing: How samples become this input.
    """

    name: str
    dtype: str
    shape: list[Count | str]
    preprocessing: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not _DTYPE.fullmatch(self.dtype):
            raise ValueError(f"unknown type {self.dtype!r} of tensor {self.name!r}")


@dataclass(frozen=True)
class IO:
    """Inputs and outputs, in order."""

    inputs: list[Tensor]
    outputs: list[Tensor]


@dataclass(frozen=True)
class File:
    """A manifest as it is written.

    Attributes:
        schema_version: Of the format.
        kind: "onnx", "engine", "torchscript" or "ranges".
        stage: The verb that made the artifact.
        target: Runtime it is for; empty when any.
        precision: What was asked for and reached.
        io: Inputs and outputs; null where it has none.
        sources: Role to digest of every file it was made from.
        tools: Package to version.
        device: What it was built for.
        options: The options of the verb.
        proof: What was found inside.
        checks: Verifications in the order they ran.
        warnings: What the user should know.
        digest: "sha256:..." of the file with its side files.
        size_bytes: Of the file with its side files.
    """

    schema_version: int
    kind: str
    stage: str
    target: str
    precision: str
    io: IO | None
    sources: dict[str, str]
    tools: dict[str, str]
    device: dict[str, Any]
    options: dict[str, Any]
    proof: dict[str, Any]
    checks: tuple[Check, ...]
    warnings: tuple[str, ...]
    digest: str
    size_bytes: Count


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    (file, *_), parts = msgspec.json.schema_components((File, Proof, Device), ref_template="#/$defs/{name}")
    parts["File"]["properties"] |= {
        "schema_version": {"const": SCHEMA_VERSION},
        "proof": {"$ref": "#/$defs/Proof"},
        "device": {"$ref": "#/$defs/Device"},
    }
    return {**file, "$defs": parts}
