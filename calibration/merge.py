"""`qcompile ranges merge`: shards of one calibration become the ranges of all of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..artifact import Artifact, commit
from ..errors import CalibrationError, InvalidOption
from ..files import writing
from ..progress import Progress, silent
from .manifest import ranges_manifest
from .ranges_file import load_ranges, save_ranges


def merge_files(
    files: Sequence[Path],
    output: Path,
    *,
    all_of: Sequence[str] | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Merge ranges files; all shards of one calibration give the file that one whole run gives.

    Args:
        files: Ranges files of one model, each sample in one of them.
        output: Ranges file to write; may be one of the files.
        all_of: What is to know of the data, where the files are all parts of one calibration: the manifest
            is the one of a whole run, too.
        progress: Told of every file.

    Raises:
        InvalidOption: If no file is given.
        CalibrationError: If they do not belong together (`Ranges.merge`), naming the file.
        ArtifactError: If a file was changed after it was made.
    """
    if not files:
        raise InvalidOption("no ranges files; at least one is required")
    total = None
    for number, file in enumerate(files, start=1):
        progress("merge", number, len(files))
        ranges = load_ranges(file)
        if total is None:
            total = ranges
            continue
        try:
            total.merge(ranges)
        except CalibrationError as error:
            error.message = f"{file}: {error.message}"
            raise
    assert total is not None
    with writing(output) as path:
        save_ranges(total, path)
        made = (
            ranges_manifest(total, "merge")
            if all_of is None
            else ranges_manifest(total, "calibrate", all_of, shard="1/1")
        )
        manifest = commit(path, made)
    return Artifact(output, manifest)
