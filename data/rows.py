"""Rows of tables, texts, images and recordings, read by Hugging Face's `datasets` from local files alone.

Builders neither run code of a data set nor use the network: each file is passed by name. docs/data.md has the
layouts.
"""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

from ..core.figures import counted
from ..core.progress import quiet
from ..errors import DataError, QCompileError, first_line
from ..spec.tensors import TensorInfo
from . import readers
from .images import ImageReader, image_input
from .processors import AudioReader, TextReader, load_processor
from .spelling import Spelling, wrong_spelling
from .table import Table, load_rows, undecoded

_SPLIT_OF_FILE = re.compile(r"(train|test|validation|valid|val|dev)\b|(.+?)-\d+-of-\d+")


class RowSet(readers.SampleSet):
    """The rows of a spelling of kind `text`, `jsonl`, `csv`, `audio` or `datasets`."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling, path = spelling, Path(spelling.path)
        self.is_saved = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
        suffixes = tuple(suffix for suffix, (kind, _) in readers.FORMATS.items() if kind == spelling.kind)
        if spelling.kind == "jsonl":
            suffixes += (".json",)
        below = [] if path.is_file() else [path / name for name in readers.list_files(path)]
        tables = [
            file
            for file in below
            if file.name.lower().endswith(suffixes) and file.name not in readers.METADATA
        ]
        self.root, self.media = path, False
        if self.is_saved:
            self.files = [file for file in below if not file.name.startswith("cache-")]
        elif path.is_file() or (tables and spelling.kind != "audio"):
            self.files = self._files_of_split(tables or [path])
        elif spelling.kind in ("audio", "datasets"):
            self.root, self.media = readers.split_folder(spelling), True
            self.files = [self.root / name for name in readers.list_files(self.root)]
        else:
            raise DataError(f"{path}: holds no file {' or '.join(suffixes)}; one is required", file=path)

    @functools.cached_property
    def table(self) -> Table:
        """The rows, read on first use."""
        try:
            with quiet():
                table = self._media_files() if self.media else Table(self.root, self._rows(), self.spelling)
        except QCompileError:
            raise
        except Exception as error:  # types of pyarrow and datasets, OSError, KeyError, ...
            cause: BaseException = error  # an error of a builder omits the reason
            while cause.__cause__ is not None:
                cause = cause.__cause__
            message = f"{self.root}: cannot be read by datasets ({first_line(cause)})"
            raise DataError(message, file=self.root) from error
        if not len(table):
            raise DataError(f"{self.root}: holds no samples; at least one is required", file=self.root)
        return table

    def _rows(self) -> Any:
        if not self.is_saved:
            return load_rows(self.files, "json" if self.spelling.kind == "jsonl" else "")
        readers.require_package("datasets", "datasets", "reads data sets")
        import datasets

        rows = datasets.load_from_disk(str(self.root))
        splits = rows if isinstance(rows, dict) else {"": rows}
        return undecoded(splits[self._split(list(splits))])

    def _media_files(self) -> Table:
        """Return image or audio files with the columns of their metadata, or with folders as labels."""
        suffixes: tuple[str, ...] = readers.RECORDINGS
        if self.spelling.kind != "audio" and any(
            file.suffix.lower() in readers.IMAGES for file in self.files
        ):
            suffixes = readers.IMAGES
        media = [file for file in self.files if file.suffix.lower() in suffixes]
        if not media:
            raise DataError(
                f"{self.root}: holds no recording {', '.join(readers.RECORDINGS)}", file=self.root
            )
        columns: dict[str, Sequence[Any]] = {"image" if suffixes is readers.IMAGES else "audio": media}
        names = [file.relative_to(self.root).as_posix() for file in media]
        if metadata := [file for file in self.files if file.name in readers.METADATA]:
            rows = load_rows(metadata, "")
            if "file_name" not in rows.column_names:
                raise DataError(
                    f"{metadata[0]}: has no column file_name; it names the files", file=metadata[0]
                )
            numbers = {name: number for number, name in enumerate(rows["file_name"])}
            if missing := [name for name in names if name not in numbers]:
                message = f"{metadata[0]}: has no row for {missing[0]} of {self.root}"
                raise DataError(message, file=metadata[0])
            for column in set(rows.column_names) - {"file_name"}:
                values = list(rows[column])
                columns[column] = [values[numbers[name]] for name in names]
        elif len({name.split("/")[0] for name in names if "/" in name}) > 1:
            columns["label"] = [name.split("/")[0] if "/" in name else "" for name in names]
        strays = len(self.files) - len(media) - len(metadata)
        self.notes = [f"left out: {counted(strays, 'file')} of {self.root}"] if strays else []
        return Table(self.root, columns, self.spelling, names=names)

    def _files_of_split(self, files: Sequence[Path]) -> list[Path]:
        """Return the files of the split: names begin with its name, or their folder has its name."""
        split, splits = self.spelling.query.get("split", ""), dict[str, list[Path]]()
        if self.root.is_file():
            if split:
                raise wrong_spelling(self.spelling.spec, f"split={split}: a file has no splits")
            return [self.root]
        for file in files:
            match = _SPLIT_OF_FILE.match(file.name)
            folder = file.parent.name if file.parent != self.root else split if file.stem == split else ""
            splits.setdefault(folder or (match[1] or match[2] if match else ""), []).append(file)
        return splits[self._split(list(splits))]

    def _split(self, splits: Sequence[str]) -> str:
        split = self.spelling.query.get("split", "")
        if split not in splits and (split or len(splits) > 1):
            present = ", ".join(filter(None, splits))
            problem = f"holds {present}; one of them is required"
            if split:
                problem = f"split={split}: no such split; found {present or 'one only'}"
            hint = "" if split else f"add ?split={next(filter(None, splits))}"
            raise wrong_spelling(self.spelling.spec, problem, hint)
        return split or splits[0]

    @property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        """The file, the text, or the number of each row."""
        table = self.table
        if table.names or table.media:
            return table.names or [str(row) for row in range(len(table))]
        return ["\x1f".join(map(_as_text, texts)) for texts in zip(*table.texts, strict=True)]

    def classes(self) -> Sequence[Hashable] | None:
        labels = list(self.table.columns[self.table.label]) if self.table.label else [None]
        # A balanced draw requires classes: not scores, not labels of words.
        return labels if all(isinstance(label, str | int) for label in labels) else None

    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        names = [file.relative_to(self.root).as_posix() for file in self.files if file != self.root]
        return f"{readers.digest_contents(self.files)}:{readers.digest_texts(names)}"

    def reader(self, inputs: Sequence[TensorInfo]) -> readers.Reader:
        table = self.table
        if table.media != "Image":
            return (AudioReader if table.media else TextReader)(table, inputs, self.spelling)
        target = image_input(inputs, self.spelling)
        labels, notes = table.labels(target[0].classes)
        return ImageReader(target, table.file, lambda row, _: labels[row] if labels else None, notes)


def _as_text(value: Any) -> str:
    return "\x1e".join(map(str, value)) if isinstance(value, list) else str(value)


_FEWEST_TEXTS, _MOST_TEXTS = 64, 10_000
_WORD_MARKS = ("▁", "Ġ", "")
"""Prefix of the first token of a word in vocabularies of SentencePiece, byte-level BPE and WordPiece."""
_FEWEST_WORDS, _MOST_WORDS = 4, 96


class VocabularySet(readers.SampleSet):
    """Random texts from the words of a tokenizer, for a model without real texts.

    A vocabulary is roughly ordered by frequency. Word ranks follow Zipf (1949): the ranks from r to 2 r are
    equally likely for every r. Text lengths have the same distribution.
    """

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.notes = [f"texts are random words from the tokenizer of {spelling.path}: prefer real texts"]

    @functools.cached_property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        """The texts."""
        words = _words(load_processor("AutoTokenizer", self.spelling.path, "tokenizer"))
        if not words:
            raise DataError(f"{self.spelling.path}: its tokenizer knows no words", file=self.spelling.path)
        generator = random.Random(0)

        def draw(low: int, high: int) -> int:
            return min(int(math.exp(generator.uniform(math.log(low), math.log(high)))), high - 1)

        count = min(max(_FEWEST_TEXTS, int(self.spelling.query.get("samples", 0))), _MOST_TEXTS)
        lengths = [draw(_FEWEST_WORDS, _MOST_WORDS) for _ in range(count)]
        return [" ".join(words[draw(1, len(words) + 1) - 1] for _ in range(length)) for length in lengths]

    def digest(self, order: Callable[[], Sequence[int]]) -> str:
        return readers.digest_texts(self.names)

    def reader(self, inputs: Sequence[TensorInfo]) -> readers.Reader:
        table = Table(Path(self.spelling.path), {"text": self.names}, self.spelling)
        return TextReader(table, inputs, self.spelling)


def _words(tokenizer: Any) -> list[str]:
    """Return the words that are one token of letters, in the order of their numbers."""
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    for mark in _WORD_MARKS:
        word_tokens = [token for token, _ in tokens if token.startswith(mark)]
        texts = [tokenizer.convert_tokens_to_string([token]).strip() for token in word_tokens]
        if words := [text for text in texts if text.isalpha()]:
            return words
    return []
