"""Images and recordings in the columns of a table."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ...tensors import TensorInfo
from ..audio import decode as audio_decode
from ..audio.input import AudioInput, audio_input
from ..images import decode as image_decode
from ..images.input import ImageInput, image_input
from ..labels import read_labels
from ..readers import Batch
from ..sample_set import Reader, Sample, SampleSet, digest_texts, join_labels, stacked, where_of
from ..spelling import Spelling
from .dataset_table import DatasetTable
from .table import label_column

_TRANSCRIPTS = ("text", "sentence", "transcription", "transcript", "normalized_text")


class _Rows(SampleSet):
    """The files of a column; a sample is told by its number."""

    def __init__(self, table: DatasetTable, column: str, spelling: Spelling) -> None:
        self.table, self.column, self.spelling = table, column, spelling
        self.names = [str(row) for row in range(len(table))]
        self.label = label_column(table, spelling)

    def classes(self) -> Sequence[Hashable] | None:
        labels = list(self.table.column(self.label)) if self.label else [None]
        return labels if all(isinstance(one, str | int) for one in labels) else None

    def digest(self, order: Sequence[int]) -> str:
        chosen = "" if len(order) == len(self.table) else ",".join(map(str, order))
        return f"{self.table.digest()}:{digest_texts([chosen])}"

    def labels(self, classes: Sequence[str]) -> tuple[Sequence[Any] | None, list[str]]:
        """Return the labels as numbers, and what to tell of them; None without labels."""
        if not self.label:
            return None, []
        found = read_labels(
            list(self.table.column(self.label)),
            classes,
            where=self.table.where,
            names=self.table.class_names(self.label),
        )
        return found.values, found.notes


class ImageRows(_Rows):
    """A column of images."""

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return _ImageReader(self, image_input(inputs, self.spelling))


class _ImageReader(Reader):
    def __init__(self, rows: ImageRows, to_input: ImageInput) -> None:
        self._rows, self._input = rows, to_input
        self._labels, self.notes = rows.labels(to_input.preprocessing.classes)

    def read(self, index: int) -> Sample:
        table, where = self._rows.table, self._rows.table.where(index)
        image = image_decode.decode(table.file(self._rows.column, index), self._input.mode, where)
        label = None if self._labels is None else self._labels[index]
        return Sample(self._input.of_image(image), label, where)

    def join(self, samples: Sequence[Sample]) -> Batch:
        return stacked(samples)


class AudioRows(_Rows):
    """A column of recordings."""

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        return _AudioReader(self, audio_input(inputs, self.spelling))


class _AudioReader(Reader):
    def __init__(self, rows: AudioRows, to_input: AudioInput) -> None:
        self._rows, self._input = rows, to_input
        if to_input.said.task == "speech-recognition":
            asked = rows.spelling.query.get("label", "")
            names = [asked] if asked else [name for name in _TRANSCRIPTS if name in rows.table.columns]
            self._labels: Sequence[Any] | None = list(rows.table.column(names[0])) if names else None
        else:
            self._labels, self.notes = rows.labels(to_input.said.classes)

    def read(self, index: int) -> Sample:
        table, where, said = self._rows.table, self._rows.table.where(index), self._input.said
        file = table.file(self._rows.column, index)
        waveform = audio_decode.decode(file, said.rate_hz, said.max_seconds, where)
        return Sample({"waveform": waveform}, None if self._labels is None else self._labels[index], where)

    def join(self, samples: Sequence[Sample]) -> Batch:
        feeds = self._input([one.feeds["waveform"] for one in samples])
        return Batch(feeds, join_labels(samples), where_of(samples))
