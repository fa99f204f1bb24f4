"""Rows of texts as samples.

Texts are tokenized in batches: each is padded to its longest, and further to the preprocessing's multiple.
`bucket=true` puts texts of like padded length together, so that batches hold less padding; `bucket=64` makes
every length a multiple of 64 besides, so that fewer shapes occur.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...files import require_file
from ...tensors import TensorInfo
from ..labels import Labels, read_labels
from ..query import whole
from ..readers import Batch
from ..sample_set import LazyNames, Reader, Sample, SampleSet, digest_texts, join_labels, where_of
from ..spelling import Spelling
from ..tables.table import Table, label_column, text_columns
from .tokenizing import Tokenizing, labels_of_tokens, text_preprocessing

_AT_ONCE = 1024
"""Texts that are tokenized at once to find their lengths."""


class TextSamples(SampleSet):
    """The rows of a table, with one text or a pair each."""

    def __init__(self, table: Table, spelling: Spelling) -> None:
        self.table, self.spelling = table, spelling
        self._columns = [table.column(name) for name in text_columns(table, spelling)]
        self.names = LazyNames(len(table), self._name)
        self.label_name = label_column(table, spelling)
        self.raw_labels: Sequence[Any] | None = None
        if "labels" in spelling.query:
            self.raw_labels = _labels_beside(Path(spelling.query["labels"]), len(table))
        elif self.label_name:
            self.raw_labels = list(table.column(self.label_name))

    def classes(self) -> Sequence[Hashable] | None:
        labels = self.raw_labels
        if labels is None or not all(isinstance(one, str | int) for one in labels):
            return None  # scores, and labels of words, are no classes to draw evenly
        return labels

    def _name(self, row: int) -> str:
        return "\x1f".join(_as_text(column[row]) for column in self._columns)

    def text(self, row: int) -> tuple[Any, ...]:
        """Return the text of a row, or both of a pair: strings, or lists of words.

        Raises:
            DataError: If it is neither.
        """
        texts = tuple(column[row] for column in self._columns)
        for one in texts:
            words = isinstance(one, list) and one and all(isinstance(word, str) for word in one)
            if not isinstance(one, str) and not words:
                raise DataError(
                    f"{self.table.where(row)}: {str(one)[:40]!r}; a text or a list of words is required",
                    sample=row,
                )
        return texts

    def digest(self, order: Sequence[int]) -> str:
        chosen = "" if len(order) == len(self.table) else ",".join(map(str, order))
        return f"{self.table.digest()}:{digest_texts([chosen])}"

    def reader(self, inputs: Sequence[TensorInfo]) -> Reader:
        said, bucket = text_preprocessing(inputs, self.spelling), self.spelling.query.get("bucket", "false")
        if bucket not in ("true", "false"):
            said = replace(said, multiple=whole(bucket, "bucket", self.spelling.spec, least=1))
        return TextReader(self, Tokenizing(said, inputs), in_buckets=bucket != "false")


class TextReader(Reader):
    """Tokenizes texts batch by batch."""

    threads = 1  # the tokenizer has threads of its own

    def __init__(self, samples: TextSamples, tokenizing: Tokenizing, *, in_buckets: bool) -> None:
        self._samples, self._tokenizing, self._in_buckets = samples, tokenizing, in_buckets
        self._labels: Labels | None = None
        self._lengths: dict[int, int] = {}
        if samples.raw_labels is not None:
            table = samples.table
            self._labels = read_labels(
                samples.raw_labels,
                tokenizing.said.classes,
                where=table.where,
                names=table.class_names(samples.label_name) if samples.label_name else (),
            )
            self.notes = self._labels.notes

    def read(self, index: int) -> Sample:
        label = None if self._labels is None else self._labels.values[index]
        text = self._samples.text(index)
        where = self._samples.table.where(index)
        if isinstance(label, list) and len(label) != len(text[0]):
            raise DataError(f"{where}: {len(label)} labels; one for each of {len(text[0])} words is required")
        return Sample({"text": text}, label, where)

    def join(self, samples: Sequence[Sample]) -> Batch:
        tokenized = self._tokenizing([one.feeds["text"] for one in samples])
        labels: Any = None
        if isinstance(samples[0].label, list):
            labels = labels_of_tokens([one.label for one in samples], tokenized.words)
        elif samples[0].label is not None:
            labels = join_labels(samples)
        elif self._tokenizing.said.task == "language-model":
            mask = tokenized.arrays["attention_mask"] == 1
            labels = np.where(mask, tokenized.arrays["input_ids"], -100)
        return Batch(self._tokenizing.feeds(tokenized), labels, where_of(samples))

    def arrange(self, order: list[int], batch_size: int) -> list[list[int]]:
        if not self._in_buckets:
            return super().arrange(order, batch_size)
        lengths = dict(zip(order, self.padded_lengths(order), strict=True))
        by_length = sorted(order, key=lambda index: lengths[index])  # stable: the order stays within a length
        return super().arrange(by_length, batch_size)

    def padded_lengths(self, order: Sequence[int]) -> list[int]:
        """Return the length that each text is padded to alone."""
        left = [index for index in order if index not in self._lengths]
        for start in range(0, len(left), _AT_ONCE):
            part = left[start : start + _AT_ONCE]
            lengths = self._tokenizing.lengths([self._samples.text(index) for index in part])
            self._lengths.update(zip(part, lengths, strict=True))
        return [self._lengths[index] for index in order]

    def notes_of(self, order: list[int], batch_size: int) -> list[str]:
        if not self._in_buckets:
            return []
        lengths = dict(zip(order, self.padded_lengths(order), strict=True))
        groups = self.arrange(order, batch_size)
        counts = sorted(Counter(max(lengths[index] for index in group) for group in groups).items())
        return ["padded lengths (batches): " + ", ".join(f"{length} ({count})" for length, count in counts)]


def _labels_beside(path: Path, count: int) -> list[str]:
    try:
        lines = require_file(path, what="labels").read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error})", file=path) from error
    labels = [line.strip() for line in lines if line.strip()]
    if len(labels) != count:
        raise DataError(f"{path}: has {len(labels)} labels; one a line for each of {count} texts is required")
    return labels


def _as_text(value: Any) -> str:
    return "\x1e".join(map(str, value)) if isinstance(value, list) else str(value)
