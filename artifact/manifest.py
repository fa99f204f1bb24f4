"""The manifest of an artifact: what it holds, and how it is read from a file that anybody may have written.

Every field is typed when it is read, with what others read inside `proof`, `device` and `options`. A manifest
is self-attested: it finds accidents, and no attackers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ArtifactError
from ..files import manifest_path, read_json
from ..spec.words import FORMER_ISAS
from ..tensors import ModelIO
from .file_types import SCHEMA_VERSION, Check, File, OfEngine, Read

_FORMER_OPTIONS = {"rest": "float_precision", "processor": "isa", "form": "quant_format"}
"""Options of 0.1.0 to what they are called now."""
_DEEPEST = 32
"""Levels of nesting that a manifest may have; those written have less than ten."""
_MARKS = ("schema_version", "stage", "digest")
"""Keys by which a manifest is told from the JSON that other tools put beside a model (`voice.onnx.json`)."""


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
    device: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    proof: Mapping[str, object] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    warnings: Sequence[str] = ()
    digest: str = ""
    size_bytes: int = 0

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
            "checks": [asdict(check) for check in self.checks],
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
        read = msgspec.convert(value, File)
        if read.kind == "engine":
            msgspec.convert({"options": read.options}, OfEngine)
        fields = {name: value[name] for name in Manifest.__dataclass_fields__}
        fields["proof"] = {name: _in_todays_words(one) for name, one in read.proof.items()}
        msgspec.convert({key: fields[key] for key in ("proof", "device")}, Read)
        fields["io"] = ModelIO.from_json(value["io"]) if read.io else None
        fields["checks"] = read.checks
        fields["warnings"] = read.warnings
        return Manifest(**fields)
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
