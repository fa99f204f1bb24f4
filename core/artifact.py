"""Artifacts and their manifests: a manifest records sources, tools, target, options and verification.

`model.engine.json` describes `model.engine`; `core.files` writes both atomically. `Manifest` has the keys of
the JSON file except `schema_version`. A manifest is not signed: it detects accidental changes, not attacks.
The last functions of this module check that a processor computes an artifact's INT8 exactly.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import msgspec

from ..errors import ArtifactError
from ..spec.tensors import ModelIO
from ..spec.words import CPU_TARGETS, ISAS, Isa
from ..version import tool_versions as tool_versions  # for the field `tools` of manifests
from .files import digest_files, manifest_path, read_json, require_file, side_files, write_json
from .processor import isa_here, isa_of, overflows, why_not_exact

SCHEMA_VERSION = 1
_DTYPE = re.compile(
    r"float(16|32|64)|bfloat16|u?int(2|4|8|16|32|64)|bool|string|undefined|complex(64|128)|float[468]_\w+"
)
_MAX_DEPTH = 32
"""Maximum nesting depth of a manifest; qcompile writes fewer than ten levels."""
_MANIFEST_KEYS = ("schema_version", "stage", "digest")
"""Keys that distinguish a manifest from JSON that other tools put beside a model (`voice.onnx.json`)."""


@dataclass(frozen=True)
class Check:
    """One verification that ran: its name, whether it passed, and its result as text."""

    name: str
    passed: bool
    detail: str


Count = Annotated[int, msgspec.Meta(ge=0)]
Layers = dict[str, dict[str, Count]]


class Proof(TypedDict, total=False):
    """Keys of `proof` that qcompile reads back; a manifest may have more.

    Attributes:
        layers_by_precision: Maps each precision and operator to the number of layers.
        as_executed: The same, counted in the graph that ONNX Runtime executes after its rewrites.
        left_in_float: Maps each layer that was not quantized to the reason.
        has_run: Whether the artifact ran on the build machine.
        evidence: How the precisions were determined, as text.
        inspector: Reason why the engine inspector reported no layers.
        provider: ONNX Runtime execution provider of an engine inside an ONNX file.
        refitted_with: Digest of the graph that supplied the weights of a refitted engine.
        weights: Digest of the build's weights, for a stripped engine that accepts no other weights.
        profiles: For each optimization profile, input to its min, opt and max shape.
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
    """Keys of `device` that qcompile reads back; a manifest may have more.

    Attributes:
        gpu: Name of the GPU on the build machine.
        gpus: Supported compute capabilities, such as "sm86".
        architecture: Architecture of the processor.
        features: Instruction sets of the processor.
    """

    gpu: str
    gpus: list[str]
    architecture: str
    features: list[str]


class EngineOptions(TypedDict, total=False):
    """Keys of an engine's `options` that qcompile reads back; the manifest has all options of the build."""

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
        dtype: ONNX name of the type, such as "float32".
        shape: Extents; a dynamic axis has a name instead.
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


class ManifestTypes(TypedDict):
    """Types of the manifest's parts, for validation."""

    schema_version: int
    io: IO | None
    proof: Proof
    device: Device
    options: EngineOptions


@dataclass(frozen=True)
class Manifest:
    """Everything that is recorded about an artifact.

    Attributes:
        kind: "onnx", "engine", "torchscript" or "ranges".
        stage: Command of qcompile that wrote the artifact, such as "build".
        target: Runtime that loads the artifact: "onnxruntime", "tensorrt-rtx", ...; empty for any runtime.
        precision: Requested precision, which the build verified: "fp32", "fp16", "int8", ...
        io: Inputs and outputs, or None.
        sources: Maps the role of each source file to its digest.
        tools: Maps each package to its version.
        device: Device that the artifact was built for (processor, compute capabilities).
        options: Options of the stage.
        proof: Results of the verification: layers by precision, quantized nodes, ...
        checks: Verifications in the order they ran.
        warnings: Warnings for the user.
        digest: "sha256:..." of the file and its side files.
        size_bytes: Size of the file and its side files.
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

    def as_json(self) -> dict[str, object]:
        values = vars(self) | {
            "io": self.io.as_json() if self.io else None,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "warnings": list(self.warnings),
        }
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
        return {"schema_version": SCHEMA_VERSION, **plain}


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest of an artifact, or None if it does not exist or is JSON of another tool."""
    manifest_file = manifest_path(path)
    if not manifest_file.is_file():
        return None
    value = read_json(manifest_file, what="a manifest")
    if isinstance(value, dict) and value and not any(key in value for key in _MANIFEST_KEYS):
        return None
    return decode_manifest(value, manifest_file)


def is_manifest(path: Path) -> bool:
    """Return whether a file is a manifest; its artifact need not exist."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):
        return False
    return isinstance(value, dict) and {*_MANIFEST_KEYS, "kind"} <= value.keys()


def decode_manifest(value: Any, file: Path) -> Manifest:
    """Convert decoded JSON to a `Manifest`; raise `ArtifactError`, which names `file`, if it is invalid."""
    version = value.get("schema_version") if isinstance(value, dict) else None
    if type(version) is int and version != SCHEMA_VERSION:
        raise ArtifactError(
            f"{file}: manifest of version {version}; this qcompile reads {SCHEMA_VERSION}",
            hint="make the artifact again with this version",
            file=file,
        )
    try:
        _check_depth(value)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate raises UnicodeEncodeError
        manifest = msgspec.convert(value, Manifest)
        if missing := [field.name for field in dataclasses.fields(Manifest) if field.name not in value]:
            raise ValueError(f"Object missing required field `{missing[0]}`")
        msgspec.convert(value, ManifestTypes)
        return replace(manifest, checks=tuple(manifest.checks), warnings=tuple(manifest.warnings))
    except ValueError as error:  # includes msgspec's errors
        raise ArtifactError(
            f"{file}: not a manifest ({error})", hint="make the artifact again, or remove the file", file=file
        ) from error


def _check_depth(value: object, level: int = 1) -> None:
    if level > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(item, level + 1)


@dataclass(frozen=True)
class Artifact:
    """A file on disk with its manifest, `NAME.json`."""

    path: Path
    manifest: Manifest


def commit(written: Path, manifest: Manifest) -> Manifest:
    """Complete the manifest of the new file `written`, write it beside the file, and return it.

    Call inside the context manager `core.files.writing`: file and manifest then appear together.
    """
    files = sorted(path for path in written.parent.iterdir() if path != manifest_path(written))
    complete = replace(
        manifest,
        checks=tuple(manifest.checks),
        warnings=tuple(manifest.warnings),
        digest=digest_files([written, *(path for path in files if path != written)]),
        size_bytes=sum(path.stat().st_size for path in files),
    )
    write_json(manifest_path(written), complete.as_json())
    return complete


def load_artifact(path: Path) -> Artifact:
    """Return an artifact; raise `ArtifactError` if its manifest is missing or has another digest."""
    require_file(path)
    manifest = read_manifest(path)
    if manifest is None:
        raise ArtifactError(
            f"{path}: has no manifest ({manifest_path(path).name})",
            hint="copy the manifest that was written beside it, or make the artifact again",
            file=path,
        )
    _require_digest(path, manifest, digest_artifact(path))
    return Artifact(path, manifest)


def checked_input(path: Path, *, what: str = "file") -> Path:
    """Return the path of an input file; raise `ArtifactError` if its digest differs from its manifest's.

    Called for every model, ranges file and artifact that is opened. A file without a manifest passes. An
    unchanged file (size and times) is digested once. `what` is the file's role in messages.
    """
    require_file(path, what=what)
    if not manifest_path(path).is_file() or _version_of([path, *side_files(path)]) in _accepted:
        return path
    manifest = read_manifest(path)
    if manifest is not None:
        _require_digest(path, manifest, cached_digest([path, *side_files(path)]))
    return path


def trust_content(path: Path) -> None:
    """From now on skip the digest check of a file that the user trusts, as long as it does not change."""
    if path.is_file():
        _accepted.add(_version_of([path, *side_files(path)]))


@contextmanager
def trusting_content(path: Path) -> Iterator[None]:
    """Skip the digest check of a file inside the block, for callers that inspect it without using it."""
    added = {_version_of([path, *side_files(path)])} - _accepted
    _accepted.update(added)
    try:
        yield
    finally:
        _accepted.difference_update(added)


def _require_digest(path: Path, manifest: Manifest, digest: str) -> None:
    if digest != manifest.digest:
        raise ArtifactError(
            f"{path}: digest {digest[:19]}… differs from its manifest's {manifest.digest[:19]}…",
            hint="the file was changed after it was made; make it again, or remove "
            f"{manifest_path(path)} if the change was meant",
            file=path,
        )


def cached_digest(paths: Sequence[Path]) -> str:
    """Return `digest_files(paths)`, cached while sizes and times are unchanged."""
    version = _version_of(paths)
    if version in _digests:
        return _digests[version]
    digest = digest_files(paths)
    # A file that changed just now may change again with equal size and time: its digest is not cached.
    if max(newest for *_, newest in version) < time.time_ns() - _SETTLED_NS and version == _version_of(paths):
        if len(_digests) >= _MAX_DIGESTS:
            _digests.clear()  # a data set may have millions of files
        _digests[version] = digest
    return digest


_Version = tuple[tuple[str, int, int, int, int], ...]
_accepted: set[_Version] = set()
_digests: dict[_Version, str] = {}
_SETTLED_NS = 2_000_000_000
_MAX_DIGESTS = 1 << 17


def _version_of(paths: Sequence[Path]) -> _Version:
    """Return the version of each file: path, device, inode, size, last change in ns."""
    statuses = [(str(path.absolute()), path.stat()) for path in paths]
    return tuple(
        (name, status.st_dev, status.st_ino, status.st_size, max(status.st_mtime_ns, status.st_ctime_ns))
        for name, status in statuses
    )


def digest_artifact(path: Path) -> str:
    """Return the digest of a file and its external data (`NAME.data`), as `commit` computes it."""
    return digest_files([path, *side_files(path)])


def size_bytes(path: Path) -> int:
    return sum(item.stat().st_size for item in (path, *side_files(path)))


_EXACT_ISA_HINT = "with `isa` avx2, which every x86 processor computes exactly"
BUILD_AGAIN = f"build it again here, or {_EXACT_ISA_HINT}"
QUANTIZE_AGAIN = f"quantize the float model again here, or {_EXACT_ISA_HINT}"
PACKAGE_ELSEWHERE = f"package it on a processor like the server's, or build it {_EXACT_ISA_HINT}"


def int8_isa(manifest: Manifest | None) -> Isa:
    """Return the instruction set of an artifact's INT8, from its options or its device; else "auto"."""
    if (
        manifest is None
        or manifest.target not in ("", *CPU_TARGETS)
        or manifest.precision != "int8"
        or manifest.options.get("mode", "static") not in ("static", "dynamic")
    ):
        return "auto"
    device = manifest.device
    for isa in (manifest.options.get("isa"), device.get("isa")):
        if isa in ISAS and isa != "auto":
            return cast(Isa, isa)
    features = device.get("features")
    if manifest.stage != "build" or not isinstance(features, list) or not features:
        return "auto"
    return isa_of(features, arm=str(device.get("architecture")).startswith(("arm", "aarch")))


def isa_option(manifest: Manifest | None) -> dict[str, object]:
    """Return the option `isa` that the manifest of a derived file inherits, or an empty dictionary."""
    isa = int8_isa(manifest)
    return {} if isa == "auto" else {"isa": isa}


def require_exact(
    path: str | Path, manifest: Manifest | None, *, on: Isa = "auto", hint: str = BUILD_AGAIN
) -> None:
    """Raise `ArtifactError` if INT8 overflows on an instruction set; "auto" is this processor's."""
    isa = int8_isa(manifest)
    if not overflows(isa, isa_here() if on == "auto" else on):
        return
    reason = why_not_exact(isa) or f"its INT8 is for {isa}; on {on} sums of products would overflow 16 bits"
    raise ArtifactError(f"{path}: {reason}", hint=hint, file=path)
