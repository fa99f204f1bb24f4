"""An artifact and its manifest: what it is, made from what, by what, for what, and verified how.

`model.engine` lies beside `model.engine.json`. Files appear under their final names only when they are
whole: everything is written into a hidden folder beside the target and moved in at the end, side files
first, the manifest last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .errors import ArtifactError, InvalidOption, MissingFile, QCompileError
from .tensors import ModelIO

SCHEMA_VERSION = 1
_TEMPORARY = ".qcompile-tmp-"
_CHUNK_BYTES = 1 << 20


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


def manifest_path(path: Path) -> Path:
    """Return where the manifest of an artifact lies."""
    return path.with_name(path.name + ".json")


@contextmanager
def writing(final: Path) -> Iterator[Path]:
    """Yield a path to write to; on success move it, and what was written beside it, into place.

    The path has the final name inside a temporary folder on the same file system, so that formats with
    side files (external data) can name them. On an error nothing appears under a final name.

    Raises:
        InvalidOption: If the folder cannot be made or the target is a folder.
    """
    folder = final.parent
    check_output(final)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{os.getpid()}-", dir=folder))
    except OSError as error:
        raise InvalidOption(f"output {final}: {error.strerror} ({error.filename})") from error
    try:
        yield temporary / final.name
        _move_in(temporary, final)
    except QCompileError as error:
        # Where it was being written is no place a user can go to.
        error.message = error.message.replace(str(temporary / final.name), str(final))
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_output(final: Path) -> None:
    """Refuse an output that could not be written, before any work.

    Raises:
        InvalidOption: If it is a folder.
    """
    if final.is_dir():
        raise InvalidOption(f"output {final} is a folder; a file name is required")


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


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write JSON for people and machines: indented, keys in the given order, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


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


def require_file(path: Path, *, what: str = "file") -> Path:
    """Return the path of an existing file.

    Raises:
        MissingFile: If there is none, naming the nearest file that is there.
    """
    if path.is_file():
        return path
    if path.is_dir():
        raise MissingFile(f"{what} {path} is a folder; a file is required", file=path)
    raise MissingFile(f"{what} {path} does not exist", hint=nearest_name(path), file=path)


def nearest_name(path: Path) -> str:
    """Return "did you mean ...?" for a path that is not there, or an empty text."""
    import difflib

    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist either"
    near = difflib.get_close_matches(path.name, [item.name for item in path.parent.iterdir()], n=1)
    return f"did you mean {path.parent / near[0]}?" if near else ""


def digest_files(paths: Sequence[Path]) -> str:
    """Return "sha256:..." over the contents of files, in the given order."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                total.update(chunk)
    return f"sha256:{total.hexdigest()}"


def digest_artifact(path: Path) -> str:
    """Return the digest of a file with its external data (`NAME.data`), as `commit` computes it."""
    return digest_files([path, *side_files(path)])


def side_files(path: Path) -> list[Path]:
    """Return the files that belong to an artifact beside its main file."""
    data = path.with_name(path.name + ".data")
    return [data] if data.is_file() else []


def size_bytes(path: Path) -> int:
    """Return the size of an artifact with its side files."""
    return sum(item.stat().st_size for item in (path, *side_files(path)))


def remove_stale(folder: Path, prefix: str = _TEMPORARY) -> None:
    """Remove files and folders named PREFIX, pid, "-..." that processes left in `folder` when killed."""
    for path in folder.glob(f"{prefix}*"):
        pid = path.name.removeprefix(prefix).split("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


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


def _move_in(temporary: Path, final: Path) -> None:
    written = sorted(temporary.iterdir())
    last = {temporary / final.name: 1, manifest_path(temporary / final.name): 2}
    for path in sorted(written, key=lambda path: last.get(path, 0)):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(path, final.with_name(path.name))
    data = final.with_name(final.name + ".data")
    if manifest_path(temporary / final.name) in written and temporary / data.name not in written:
        data.unlink(missing_ok=True)  # of the artifact that this one replaces


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
