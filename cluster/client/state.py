"""What a client keeps of one run: the recipe's parcel, what it gave and was given, whom it asks no more."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...artifact import known_digest
from ...files import manifest_path, side_files
from ...pipeline.recipe import Recipe
from ...pipeline.stages import Made
from ...pipeline.steps import Step
from ...pipeline.store import Stored
from ..files.parcel import Packed, pack
from ..messages import FileRef, StepText


class RunState:
    """One run of one recipe.

    Args:
        run: Identifies it, for progress: that of the client, ".", and a number.
        recipe: The recipe.
        folder: That keeps the list of its files and their digests; by default that of the recipe's output.

    Attributes:
        run: Identifies it, for progress: that of the client, ".", and a number.
        excluded: Workers that are not asked any more, with the reason.
    """

    def __init__(self, run: str, recipe: Recipe, folder: Path | None = None) -> None:
        self.run, self.recipe, self._folder = run, recipe, folder
        self.excluded: dict[str, str] = {}
        self._packed: Packed | None = None
        self._packing = threading.Lock()
        self._given: dict[Path, tuple[tuple[FileRef, ...], dict[str, Path]]] = {}

    def packed(self) -> Packed:
        """Return the recipe's parcel, made once."""
        with self._packing:
            if self._packed is None:
                self._packed = pack(self.recipe, folder=self._folder)
            return self._packed

    def note(self, stored: Stored, main: str) -> Made:
        """Remember which files a stage wrote; return the main one."""
        names = sorted(stored.files, key=lambda name: (name != main, name))
        refs = tuple(
            FileRef(name, stored.files[name], (stored.folder / name).stat().st_size) for name in names
        )
        path = stored.folder / main
        self._given[path] = refs, {ref.digest: stored.folder / ref.name for ref in refs}
        return Made(path, stored.files[main])

    def files_of(self, made: Made) -> tuple[tuple[FileRef, ...], dict[str, Path]]:
        """Return a file of an earlier stage with what belongs to it, and where each of them lies."""
        if made.path not in self._given:  # ranges that the recipe names
            beside = [*side_files(made.path), manifest_path(made.path)]
            paths = [made.path, *(path for path in beside if path.is_file())]
            digests = [known_digest([path]) for path in paths]
            refs = [
                FileRef(path.name, digest, path.stat().st_size)
                for path, digest in zip(paths, digests, strict=True)
            ]
            self._given[made.path] = tuple(refs), dict(zip(digests, paths, strict=True))
        return self._given[made.path]


def as_text(step: Step) -> StepText:
    """Return a step as it is sent."""
    return StepText(
        kind=step.kind,
        artifact=step.artifact,
        shard=step.shard,
        source_digest=step.source_digest,
        files={name: made.digest for name, made in step.files.items()},
        shards=tuple(made.digest for made in step.shards),
        built={name: made.digest for name, made in step.built.items()},
        why_not=dict(step.why_not),
        unavailable=step.unavailable,
        machine=step.machine,
        trial=step.trial,
    )


Group = tuple[tuple[FileRef, ...], dict[str, Path]]
"""The files that belong together, and digest to where each lies."""


def with_paths(state: RunState, given: Sequence[Made]) -> Mapping[str, Group]:
    """Return the digest of every file of a step to all that belongs to it."""
    return {made.digest: state.files_of(made) for made in given}
