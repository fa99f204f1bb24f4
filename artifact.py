"""An artifact and its manifest: what it is, made from what, by what, for what, and verified how.

`model.engine` lies beside `model.engine.json`; `files` writes both as one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .errors import ArtifactError, InvalidOption
from .files import digest_files, manifest_path, require_file, side_files, write_json
from .tensors import ModelIO

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Check:
    """One verification that was carried out: its name, whether it held, and what was seen."""

    name: str
    passed: bool
    detail: str


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
        digest: "sha256:..." of the file with its side files; filled in by `commit`.
        size_bytes: The file and its side files; filled in by `commit`.
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

    def as_json(self) -> dict[str, object]:
        """Return the form written to disk."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "stage": self.stage,
            "target": self.target,
            "precision": self.precision,
            "io": self.io.as_json() if self.io else None,
            "sources": dict(self.sources),
            "tools": dict(self.tools),
            "device": dict(self.device),
            "options": dict(self.options),
            "proof": dict(self.proof),
            "checks": [asdict(check) for check in self.checks],
            "warnings": list(self.warnings),
            "digest": self.digest,
            "size_bytes": self.size_bytes,
        }


@dataclass(frozen=True)
class Artifact:
    """A file on disk with its manifest."""

    path: Path
    manifest: Manifest


def commit(written: Path, manifest: Manifest) -> Manifest:
    """Complete the manifest of the freshly `written` file and write it beside it; return it.

    Call inside `writing`: file and manifest then appear together.
    """
    beside = sorted(path for path in written.parent.iterdir() if path != manifest_path(written))
    complete = Manifest(
        **{
            **{name: getattr(manifest, name) for name in Manifest.__dataclass_fields__},
            "checks": tuple(manifest.checks),
            "warnings": tuple(manifest.warnings),
            "digest": digest_files([written, *(path for path in beside if path != written)]),
            "size_bytes": sum(path.stat().st_size for path in beside),
        }
    )
    write_json(manifest_path(written), complete.as_json())
    return complete


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest of an artifact, or None when it has none.

    Raises:
        ArtifactError: If the manifest cannot be read or is of a newer version.
    """
    beside = manifest_path(path)
    if not beside.is_file():
        return None
    try:
        value = json.loads(beside.read_text(encoding="utf-8"))
        version = value["schema_version"]
        if version != SCHEMA_VERSION:
            raise ArtifactError(
                f"{beside}: manifest of version {version}; this qcompile reads {SCHEMA_VERSION}",
                hint="make the artifact again with this version",
                file=beside,
            )
        fields = {name: value[name] for name in Manifest.__dataclass_fields__}
        fields["proof"] = {name: _in_todays_words(one) for name, one in value["proof"].items()}
        fields["io"] = ModelIO.from_json(value["io"]) if value["io"] else None
        fields["checks"] = tuple(Check(**check) for check in value["checks"])
        fields["warnings"] = tuple(value["warnings"])
        return Manifest(**fields)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, InvalidOption) as error:
        raise ArtifactError(
            f"{beside}: not a manifest ({type(error).__name__}: {error})",
            hint="make the artifact again, or remove the file",
            file=beside,
        ) from error


def _in_todays_words(counts: object) -> object:
    """Layers by precision, where layers of unknown precision were "untold" in older manifests."""
    if not isinstance(counts, dict) or not isinstance(counts.get("untold"), dict):
        return counts
    return {"unreported" if name == "untold" else name: value for name, value in counts.items()}


def is_manifest(path: Path) -> bool:
    """Whether a file is the manifest of an artifact that may or may not lie beside it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return False
    return isinstance(value, dict) and {"schema_version", "kind", "stage", "digest"} <= value.keys()


def load_artifact(path: Path) -> Artifact:
    """Return an artifact whose file is what its manifest says.

    Raises:
        MissingFile: If the file is not there.
        ArtifactError: If it has no manifest, or the digest differs.
    """
    require_file(path)
    manifest = read_manifest(path)
    if manifest is None:
        raise ArtifactError(f"{path}: has no manifest ({manifest_path(path).name})", file=path)
    digest = digest_artifact(path)
    if digest != manifest.digest:
        raise ArtifactError(
            f"{path}: digest {digest[:19]}… differs from its manifest's {manifest.digest[:19]}…",
            hint="the file was changed after it was made; make it again",
            file=path,
        )
    return Artifact(path, manifest)


def digest_artifact(path: Path) -> str:
    """Return the digest of a file with its external data (`NAME.data`), as `commit` computes it."""
    return digest_files([path, *side_files(path)])


def size_bytes(path: Path) -> int:
    """Return the size of an artifact with its side files."""
    return sum(item.stat().st_size for item in (path, *side_files(path)))


def tool_versions(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages, qcompile's own first; absent ones are left out."""
    from importlib.metadata import PackageNotFoundError, version

    from .version import __version__

    versions = {"qcompile": __version__}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
