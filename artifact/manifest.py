"""The manifest of an artifact: what it holds, and how it is read from a file that anybody may have written.

`Manifest` is the file, key for key behind `schema_version`; every field is typed when it is read, with what
others read inside `proof`, `device` and `options`. A manifest is self-attested: it finds accidents, and no
attackers.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from ..errors import ArtifactError
from ..files import manifest_path, read_json
from ..spec.words import FORMER_ISAS
from ..tensors import ModelIO

SCHEMA_VERSION = 1
_DTYPE = re.compile(
    r"float(16|32|64)|bfloat16|u?int(2|4|8|16|32|64)|bool|string|undefined|complex(64|128)|float[468]_\w+"
)
_FORMER_OPTIONS = {"rest": "float_precision", "processor": "isa", "form": "quant_format"}
"""Options of 0.1.0 to what they are called now."""
_DEEPEST = 32
"""Levels of nesting that a manifest may have; those written have less than ten."""
_MARKS = ("schema_version", "stage", "digest")
"""Keys by which a manifest is told from the JSON that other tools put beside a model (`voice.onnx.json`)."""


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


class Read(TypedDict):
    """Parts of a manifest whose keys have types."""

    schema_version: int
    io: IO | None
    proof: Proof
    device: Device


class OfEngine(TypedDict):
    """The part of an engine's manifest whose keys have types."""

    options: EngineOptions


@dataclass(frozen=True)
class Manifest:
    """What is known of an artifact.

    Attributes:
        kind: "onnx", "engine", "torchscript" or "ranges".
        target: Runtime the artifact is for: "onnxruntime", "tensorrt-rtx", ...; empty when any.
        precision: What was asked for and reached: "fp32", "fp16", "int8", ...
        stage: The verb that made it.
        io: Inputs and outputs; None where it has none.
        sources: Role to digest of every file it was made from.
        tools: Package to version.
        device: What it was built for (processor, compute capabilities).
        options: The options of the stage.
        proof: What was found inside: layers by precision, nodes quantized, ...
        checks: Verifications in the order they ran.
        warnings: What the user should know.
        digest: "sha256:..." of the file with its side files.
        size_bytes: Of the file and its side files.
    """

    kind: str
    stage: str
    target: str = ""
    precision: str = ""
    io: ModelIO | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    device: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    proof: Mapping[str, Any] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    warnings: Sequence[str] = ()
    digest: str = ""
    size_bytes: Count = 0

    @property
    def current_options(self) -> dict[str, object]:
        """`options` by the names that they have now, whichever version wrote them."""
        current = {_FORMER_OPTIONS.get(name, name): value for name, value in self.options.items()}
        isa, calibrator = current.get("isa"), current.get("calibrator")
        current |= {"isa": FORMER_ISAS[isa]} if isinstance(isa, str) and isa in FORMER_ISAS else {}
        return current | ({"calibrator": "ranges"} if calibrator == "ours" else {})

    def as_json(self) -> dict[str, object]:
        """Return the form written to disk."""
        values = vars(self) | {
            "io": self.io.as_json() if self.io else None,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "warnings": list(self.warnings),
        }
        plain = {name: dict(one) if isinstance(one, Mapping) else one for name, one in values.items()}
        return {"schema_version": SCHEMA_VERSION, **plain}


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest of an artifact, or None when it has none.

    JSON of another tool under the manifest's name, such as the settings of a voice, is none.
    """
    beside = manifest_path(path)
    if not beside.is_file():
        return None
    value = read_json(beside, what="a manifest")
    if isinstance(value, dict) and value and not any(mark in value for mark in _MARKS):
        return None
    return decode_manifest(value, beside)


def is_manifest(path: Path) -> bool:
    """Whether a file is the manifest of an artifact that may or may not lie beside it."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):
        return False
    return isinstance(value, dict) and {*_MARKS, "kind"} <= value.keys()


def decode_manifest(value: Any, file: Path) -> Manifest:
    """Return the manifest that JSON holds.

    Args:
        value: What `json` read.
        file: The file it was read from, for messages.
    """
    version = value.get("schema_version") if isinstance(value, dict) else None
    if type(version) is int and version != SCHEMA_VERSION:
        raise ArtifactError(
            f"{file}: manifest of version {version}; this qcompile reads {SCHEMA_VERSION}",
            hint="make the artifact again with this version",
            file=file,
        )
    try:
        _check_text(value)
        manifest = msgspec.convert(value, Manifest)
        if missing := [one.name for one in dataclasses.fields(Manifest) if one.name not in value]:
            raise ValueError(f"Object missing required field `{missing[0]}`")
        if manifest.kind == "engine":
            msgspec.convert(value, OfEngine)
        proof = {name: _in_todays_words(one) for name, one in manifest.proof.items()}
        msgspec.convert(value | {"proof": proof}, Read)
        return dataclasses.replace(
            manifest, proof=proof, checks=tuple(manifest.checks), warnings=tuple(manifest.warnings)
        )
    except ValueError as error:  # of msgspec too
        raise ArtifactError(
            f"{file}: not a manifest ({error})", hint="make the artifact again, or remove the file", file=file
        ) from error


def _in_todays_words(counts: object) -> object:
    """Layers by precision, where layers of unknown precision were "untold" in older manifests."""
    if not isinstance(counts, dict) or not isinstance(counts.get("untold"), dict):
        return counts
    return {"unreported" if name == "untold" else name: value for name, value in counts.items()}


def _check_text(value: object) -> None:
    """Refuse JSON that could not be written again: nested deeply, or with halves of characters."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"nested deeper than {_DEEPEST} levels")
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += [*one.keys(), *one.values()]
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, str) and not one.isascii():
                one.encode()  # a lone surrogate raises UnicodeEncodeError, which is a ValueError
        level = inner
