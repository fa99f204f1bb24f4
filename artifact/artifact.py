"""An artifact and its manifest: what it is, made from what, by what, for what, and verified how.

`model.engine` lies beside `model.engine.json`; `files` writes both as one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ArtifactError
from ..files import digest_files, manifest_path, require_file, side_files, write_json
from .manifest import Manifest, read_manifest


@dataclass(frozen=True)
class Artifact:
    """A file on disk with its manifest.

    Attributes:
        path: The file; its manifest lies beside it as `NAME.json`.
        manifest: What is known of it.
    """

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
    """Return an artifact whose file is what its manifest says.

    Raises:
        MissingFile: If the file is not there.
        ArtifactError: If it has no manifest, or the digest differs.
    """
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
    times stay the same, it is the same.

    Args:
        path: The file.
        what: What it should be, for the message.
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
    version = _version_of([path, *side_files(path)])
    before = version in _accepted
    _accepted.add(version)
    try:
        yield
    finally:
        if not before:
            _accepted.discard(version)


def _require_digest(path: Path, manifest: Manifest, digest: str) -> None:
    if digest != manifest.digest:
        beside = manifest_path(path)
        raise ArtifactError(
            f"{path}: digest {digest[:19]}… differs from its manifest's {manifest.digest[:19]}…",
            hint=f"the file was changed after it was made; make it again, or remove {beside} if the change "
            "was meant",
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
        (name, one.st_dev, one.st_ino, one.st_size, max(one.st_mtime_ns, one.st_ctime_ns))
        for name, one in statuses
    )


def digest_artifact(path: Path) -> str:
    """Return the digest of a file with its external data (`NAME.data`), as `commit` computes it."""
    return digest_files([path, *side_files(path)])


def size_bytes(path: Path) -> int:
    """Return the size of an artifact with its side files."""
    return sum(item.stat().st_size for item in (path, *side_files(path)))


def tool_versions(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages, qcompile's own first; absent ones are left out."""
    from importlib.metadata import PackageNotFoundError, version

    from ..version import __version__

    versions = {"qcompile": __version__}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
