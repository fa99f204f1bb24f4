"""An artifact and its manifest: what it is, made from what, by what, for what, and verified how.

`model.engine` lies beside `model.engine.json`; `files` writes both as one. `Manifest` is the file, key for
key behind `schema_version`; every field is typed when it is read. A manifest is self-attested: it finds
accidents, and no attackers. It also tells for which instruction set INT8 is, and whether it is exact here.
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
from ..version import tool_versions as tool_versions  # beside what it is written into
from .files import digest_files, manifest_path, read_json, require_file, side_files, write_json
from .processor import isa_here, isa_of, overflows, why_not_exact

SCHEMA_VERSION = 1
_DTYPE = re.compile(
    r"float(16|32|64)|bfloat16|u?int(2|4|8|16|32|64)|bool|string|undefined|complex(64|128)|float[468]_\w+"
)
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

    def as_json(self) -> dict[str, object]:
        values = vars(self) | {
            "io": self.io.as_json() if self.io else None,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "warnings": list(self.warnings),
        }
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
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
    """Return the manifest that JSON of a file holds."""
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
        msgspec.convert(value, Read)
        return replace(manifest, checks=tuple(manifest.checks), warnings=tuple(manifest.warnings))
    except ValueError as error:  # of msgspec too
        raise ArtifactError(
            f"{file}: not a manifest ({error})", hint="make the artifact again, or remove the file", file=file
        ) from error


def _check_depth(value: object, level: int = 1) -> None:
    if level > _DEEPEST:
        raise ValueError(f"nested deeper than {_DEEPEST} levels")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(item, level + 1)


@dataclass(frozen=True)
class Artifact:
    """A file on disk, and the manifest that lies beside it as `NAME.json`."""

    path: Path
    manifest: Manifest


def commit(written: Path, manifest: Manifest) -> Manifest:
    """Complete the manifest of the freshly `written` file and write it beside it; return it.

    Call inside `writing`: file and manifest then appear together.
    """
    beside = sorted(path for path in written.parent.iterdir() if path != manifest_path(written))
    complete = replace(
        manifest,
        checks=tuple(manifest.checks),
        warnings=tuple(manifest.warnings),
        digest=digest_files([written, *(path for path in beside if path != written)]),
        size_bytes=sum(path.stat().st_size for path in beside),
    )
    write_json(manifest_path(written), complete.as_json())
    return complete


def load_artifact(path: Path) -> Artifact:
    """Return an artifact whose file is what its manifest says; `ArtifactError` without one."""
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
    """Return the path of an input, after a look at the manifest that lies beside it, if one does.

    Everything that opens a model, ranges or an artifact calls it. A file is digested once: while size and
    times stay the same, it is the same. The message calls it `what`.
    """
    require_file(path, what=what)
    if not manifest_path(path).is_file() or _version_of([path, *side_files(path)]) in _accepted:
        return path
    manifest = read_manifest(path)
    if manifest is not None:
        _require_digest(path, manifest, known_digest([path, *side_files(path)]))
    return path


def accept(path: Path) -> None:
    """Take a file as it is now, whatever its manifest says: the user trusts it. Other content is refused."""
    if path.is_file():
        _accepted.add(_version_of([path, *side_files(path)]))


@contextmanager
def accepting(path: Path) -> Iterator[None]:
    """Take a file whatever its manifest says while the block runs: it is looked at, not used."""
    new = {_version_of([path, *side_files(path)])} - _accepted
    _accepted.update(new)
    try:
        yield
    finally:
        _accepted.difference_update(new)


def _require_digest(path: Path, manifest: Manifest, digest: str) -> None:
    if digest != manifest.digest:
        raise ArtifactError(
            f"{path}: digest {digest[:19]}… differs from its manifest's {manifest.digest[:19]}…",
            hint="the file was changed after it was made; make it again, or remove "
            f"{manifest_path(path)} if the change was meant",
            file=path,
        )


def known_digest(paths: Sequence[Path]) -> str:
    """Return `digest_files` of these, read once while their sizes and times stay the same."""
    version = _version_of(paths)
    if version in _digests:
        return _digests[version]
    digest = digest_files(paths)
    # What was written a moment ago may be written again within the clock's resolution: it is read again.
    if max(newest for *_, newest in version) < time.time_ns() - _SETTLED_NS and version == _version_of(paths):
        if len(_digests) >= _MOST_DIGESTS:
            _digests.clear()  # a data set may have millions of files
        _digests[version] = digest
    return digest


_Version = tuple[tuple[str, int, int, int, int], ...]
_accepted: set[_Version] = set()
_digests: dict[_Version, str] = {}
_SETTLED_NS = 2_000_000_000
_MOST_DIGESTS = 1 << 17


def _version_of(paths: Sequence[Path]) -> _Version:
    """Which files these are, and when they were changed last: path, device, inode, size, time in ns."""
    statuses = [(str(path.absolute()), path.stat()) for path in paths]
    return tuple(
        (name, status.st_dev, status.st_ino, status.st_size, max(status.st_mtime_ns, status.st_ctime_ns))
        for name, status in statuses
    )


def digest_artifact(path: Path) -> str:
    """Return the digest of a file with its external data (`NAME.data`), as `commit` computes it."""
    return digest_files([path, *side_files(path)])


def size_bytes(path: Path) -> int:
    return sum(item.stat().st_size for item in (path, *side_files(path)))


_EXACT = "with `isa` avx2, which every x86 processor computes exactly"
BUILD_AGAIN = f"build it again here, or {_EXACT}"
QUANTIZE_AGAIN = f"quantize the float model again here, or {_EXACT}"
PACKAGE_ELSEWHERE = f"package it on a processor like the server's, or build it {_EXACT}"


def int8_isa(manifest: Manifest | None) -> Isa:
    """Return what an artifact's INT8 is for, by its options, its device, or its version; else "auto"."""
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


def carried_isa(model: Path) -> dict[str, object]:
    """Return the option of a manifest that says what the INT8 of a file is for, for a file made from it."""
    isa = int8_isa(read_manifest(model))
    return {} if isa == "auto" else {"isa": isa}


def require_exact(
    path: str | Path, manifest: Manifest | None, *, on: Isa = "auto", hint: str = BUILD_AGAIN
) -> None:
    """Refuse an artifact whose INT8 overflows on an instruction set; "auto" is this processor's."""
    isa = int8_isa(manifest)
    if not overflows(isa, isa_here() if on == "auto" else on):
        return
    reason = why_not_exact(isa) or f"its INT8 is for {isa}; on {on} products would overflow, added in 16 bits"
    raise ArtifactError(f"{path}: {reason}", hint=hint, file=path)
