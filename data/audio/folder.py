"""A folder of recordings, with transcripts, classes, or neither.

| what lies there                             | labels                                                  |
|---------------------------------------------|---------------------------------------------------------|
| `labels=FILE.csv`                           | texts for a model of speech recognition, else classes   |
| `NAME.txt` beside every `NAME.wav`          | the texts                                               |
| two or more folders with recordings in them | the folders are classes, but not for speech recognition |
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

from ...errors import DataError
from ...tensors import TensorInfo
from ..images.folder import list_folder, split_folder
from ..label_table import LabelTable, read_label_table
from ..labels import read_labels
from ..readers import Batch
from ..sample_set import Reader, Sample, SampleSet, digest_contents, digest_texts, join_labels, where_of
from ..spelling import Spelling
from .decode import SUFFIXES, decode
from .input import AudioInput, audio_input


class AudioFolder(SampleSet):
    """The recordings of a folder."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        root = split_folder(Path(spelling.path), spelling.query.get("split", ""), spelling.spec)
        self.listing = list_folder(root, SUFFIXES, what="recording", beside=(".txt", ".csv", ".json", ".md"))
        self.names = self.listing.files
        self.table: LabelTable | None = None
        if "labels" in spelling.query:
            self.table = read_label_table(Path(spelling.query["labels"]), self.names, root)

    def path(self, index: int) -> Path:
        """Return the file of a recording."""
        return self.listing.root / self.names[index]

    @functools.cached_property
    def has_transcripts(self) -> bool:
        """Whether a text lies beside every recording."""
        if self.table is not None:
            return False
        return all(self.path(index).with_suffix(".txt").is_file() for index in range(len(self.names)))

    def classes(self) -> Sequence[Hashable] | None:
        if self.has_transcripts:
            return None
        return self.table.labels if self.table is not None else (self.listing.folders or None)

    def transcript(self, index: int) -> str:
        """Return the text beside a recording.

        Raises:
            DataError: If it is no UTF-8.
        """
        path = self.path(index).with_suffix(".txt")
        try:
            return path.read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read ({error})", file=path) from error

    def digest(self, order: Sequence[int]) -> str:
        files = [self.path(index) for index in order]
        if self.has_transcripts:
            files += [path.with_suffix(".txt") for path in files]
        classes = self.classes() or ()
        texts = [f"{self.names[index]}\n{classes[index] if classes else ''}" for index in order]
        return (
            f"{digest_contents(files)}:{digest_texts(texts)}:{digest_texts(sorted(set(map(str, classes))))}"
        )

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return _AudioReader(self, audio_input(inputs, self.spelling))

    def notes(self) -> list[str]:
        return list(self.listing.notes)


class _AudioReader(Reader):
    def __init__(self, recordings: AudioFolder, to_input: AudioInput) -> None:
        self._recordings, self._input = recordings, to_input
        self._label, self.notes = _labels(recordings, to_input)

    def read(self, index: int) -> Sample:
        path, said = self._recordings.path(index), self._input.said
        waveform = decode(path, said.rate_hz, said.max_seconds, str(path))
        return Sample({"waveform": waveform}, self._label(index), str(path))

    def join(self, samples: Sequence[Sample]) -> Batch:
        feeds = self._input([one.feeds["waveform"] for one in samples])
        return Batch(feeds, join_labels(samples), where_of(samples))


def _labels(recordings: AudioFolder, to_input: AudioInput) -> tuple[Callable[[int], Any], Sequence[str]]:
    """What gives the label of a recording, and what to tell of it."""
    said = to_input.said
    if recordings.has_transcripts:
        return recordings.transcript, ()
    classes = recordings.classes()
    if said.task == "speech-recognition":
        texts = recordings.table.labels if recordings.table is not None else None
        return (lambda index: texts[index] if texts is not None else None), ()
    if classes is None:
        return (lambda _index: None), ()
    found = read_labels([str(one) for one in classes], said.classes, where=lambda i: recordings.names[i])
    return (lambda index: found.values[index]), found.notes
