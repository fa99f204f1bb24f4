"""The pairs of a gate: two artifacts, or the artifacts that two output folders of recipes both hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...artifact import digest_artifact, is_manifest, read_manifest
from ...errors import InvalidOption

_BUILT = "build"  # the stage whose files are run; the others lie beside them


@dataclass(frozen=True)
class Pair:
    """Two versions of one artifact.

    Attributes:
        name: For tables and reports.
        old, new: Paths or MODEL spellings; `new` is empty where the new folder has no such artifact.
    """

    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Pairs:
    """What is judged.

    Attributes:
        pairs: In the order of the old names.
        added: Names of artifacts that only the new folder has.
    """

    pairs: tuple[Pair, ...]
    added: tuple[str, ...] = ()


def find_pairs(old: str, new: str) -> Pairs:
    """Return the pairs of two artifacts, MODEL spellings or folders.

    Raises:
        InvalidOption: If one of them is a folder and the other is not, or the old folder holds no artifact.
    """
    folders = Path(old).is_dir(), Path(new).is_dir()
    if folders == (False, False):
        return Pairs((Pair(_name(new), old, new),))
    if folders != (True, True):
        names = ("`old`", "`new`") if folders[0] else ("`new`", "`old`")
        raise InvalidOption(
            f"{names[0]} is a folder, {names[1]} is not; two folders or two artifacts are required"
        )
    before, after = built_artifacts(Path(old)), built_artifacts(Path(new))
    if not before:
        raise InvalidOption(
            f"`old` {old}: holds no built artifact; a manifest NAME.json beside each is required",
            hint="give the output folder of `qcompile run`",
            option="old",
        )
    pairs = tuple(Pair(name, str(path), str(after.get(name, ""))) for name, path in before.items())
    return Pairs(pairs, tuple(name for name in after if name not in before))


def built_artifacts(folder: Path) -> dict[str, Path]:
    """Return name to path of the artifacts of a folder that the stage `build` made, in order of their names.

    Raises:
        ArtifactError: If a manifest is damaged.
    """
    found = {}
    for beside in sorted(folder.glob("*.json")):
        path = beside.with_suffix("")
        if path.is_file() and is_manifest(beside):
            manifest = read_manifest(path)
            if manifest is not None and manifest.stage == _BUILT:
                found[path.name] = path
    return found


def is_identical(pair: Pair) -> bool:
    """Whether both are files that are the same byte for byte, with their side files."""
    old, new = Path(pair.old), Path(pair.new)
    if not (old.is_file() and new.is_file() and old.suffix == new.suffix) or old.suffix == ".py":
        return False
    return digest_artifact(old) == digest_artifact(new)


def _name(artifact: str) -> str:
    from ..outputs import short_name

    return short_name(artifact)
