"""Tables of samples: their columns, the numbers of their labels, and the preprocessing of samples."""

from __future__ import annotations

import csv
import functools
import glob
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..core.files.temporary import temporary_folder
from ..errors import DataError, InvalidOption
from ..model.sources.load import find_preprocessing
from ..model.sources.named.description import network
from ..model.sources.preprocessing import PRESETS, Preprocessing, match_preprocessing, preprocessing_of
from ..model.sources.source import did_you_mean
from ..spec.tensors import TensorInfo
from .readers import FORMATS, require_package
from .spelling import Spelling, wrong_spelling

IGNORED_LABEL = -100
"""Label of tokens without a label."""
_MOST_DIGITS = 18  # of an int64

Kind = TypeVar("Kind", bound=Preprocessing)


def preprocessing_for(
    inputs: Sequence[TensorInfo], spelling: Spelling, kind: type[Kind], *, what: str, names: str
) -> Kind:
    """Return the preprocessing of samples: from the key `preprocessing`, else the model's.

    `kind` is its required type, `what` names the samples in messages ("images"), `names` lists valid values.
    """
    key_value = spelling.query.get("preprocessing", "")
    of_model = preprocessing_of(inputs)
    preprocessing = find_preprocessing(key_value) if key_value else of_model
    if preprocessing is None:
        raise InvalidOption(
            f"data {spelling.spec!r}: preprocessing of {what} for this model is unknown",
            hint=f"add ?preprocessing={names}, or export with `preprocessing`",
            option="preprocessing",
        )
    if not isinstance(preprocessing, kind):
        raise wrong_spelling(spelling.spec, f"the model takes {preprocessing.kind}, and these are {what}")
    if not key_value:
        return preprocessing
    fitted = next(iter(match_preprocessing(preprocessing, inputs).values()))
    assert isinstance(fitted, kind)
    # Classes belong to the model's outputs: preprocessing as for CIFAR does not imply CIFAR's classes.
    named_classes = () if key_value in PRESETS else fitted.classes
    classes, task = (of_model.classes, of_model.task) if of_model else ((), "")
    return replace(fitted, classes=classes or named_classes, task=task or fitted.task)


def class_numbers(
    names: Sequence[str], classes: Sequence[str], *, what: str = "folders"
) -> tuple[dict[str, int], list[str]]:
    """Return a number for each class name, and notes on the numbering.

    1. If the model's classes contain every name (in any case, with `_` for a space, or as one of the synonyms
       between commas), the number is the class's index.
    2. Names that are all whole numbers are the numbers.
    3. Else names are numbered in sorted order, as in torchvision's ImageFolder, with a note if the model has
       class names.
    """
    names = sorted(set(names))
    numbers, unknown = fixed_numbers(names, classes)
    if not unknown:
        return numbers, []
    notes = [
        f"{what} are numbered in sorted order: {len(unknown)} of {len(names)} names, as {unknown[0]!r}, "
        f"are none of the model's {len(classes)} classes, as {classes[0]!r}"
    ] if classes else []  # fmt: skip
    return {name: number for number, name in enumerate(names)}, notes


def fixed_numbers(names: Sequence[str], classes: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Return numbers of names by the first two rules of `class_numbers`, and the names that break these."""
    synonyms: dict[str, set[int]] = {}
    for number, text in enumerate(classes):
        for name in {_normalized(text), *(_normalized(part) for part in text.split(","))}:
            synonyms.setdefault(name, set()).add(number)
    unique = {name: min(numbers) for name, numbers in synonyms.items() if len(numbers) == 1}
    unknown = [name for name in names if _normalized(name) not in unique]
    if unique and not unknown:
        return {name: unique[_normalized(name)] for name in names}, []
    if all(name.isascii() and name.isdigit() and len(name) < 10 for name in names):
        return {name: int(name) for name in names}, []
    return {}, unknown


def _normalized(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())


def read_labels(
    values: Sequence[Any], classes: Sequence[str], *, where: Callable[[int], str], names: Sequence[str] = ()
) -> tuple[list[Any], list[str]]:
    """Return labels as numbers, and notes on the numbering.

    Whole numbers and names are classes (`class_numbers` numbers names). A number with a fraction makes all
    labels scores. A list holds one label per word. Numbers may be texts, as in files. `classes` are the
    model's class names, `names` the data set's.
    """
    distinct = set()
    for index, value in enumerate(values):
        for label in value if isinstance(value, list) else [value]:
            if not isinstance(label, str | int | float) or label == "":
                message = f"{where(index)}: label {label!r}; a number or a name is required"
                raise DataError(message, sample=index)
            distinct.add(label)
    numbers, notes = _label_numbers(distinct, classes, names)
    return [
        [numbers[label] for label in value] if isinstance(value, list) else numbers[value] for value in values
    ], notes


def _label_numbers(
    labels: set[Any], classes: Sequence[str], names: Sequence[str]
) -> tuple[dict[Any, Any], list[str]]:
    if names and not any(isinstance(label, str) for label in labels):
        number_of_name, notes = class_numbers(names, classes, what="labels") if classes else ({}, [])
        order = {n: n if notes or not classes else number_of_name[name] for n, name in enumerate(names)}
        return {IGNORED_LABEL: IGNORED_LABEL, -1: -1, **order}, notes
    texts = {label: str(int(label) if isinstance(label, bool) else label).strip() for label in labels}
    if all(
        text.isascii() and text.removeprefix("-").isdigit() and len(text) <= _MOST_DIGITS
        for text in texts.values()
    ):
        return {label: int(text) for label, text in texts.items()}, []
    try:
        return {label: float(label) for label in labels}, []
    except (ValueError, OverflowError):
        numbers, notes = class_numbers([str(label) for label in labels], classes, what="labels")
        return {label: numbers[str(label)] for label in labels}, notes


_TEXTS = (
    ("text",), ("sentence",), ("content",), ("tokens",), ("words",), ("premise", "hypothesis"),
    ("sentence1", "sentence2"), ("question1", "question2"), ("question", "sentence"),
)  # fmt: skip
"""Common names of text columns; two names are a pair."""
_LABELS = ("label", "labels", "target", "ner_tags", "tags", "fine_label", "score")
_TRANSCRIPTS = ("text", "sentence", "transcription", "transcript", "normalized_text")


class Table:
    """Columns of rows and their roles; the keys `column` and `label` override the common names.

    `rows` is a split of `datasets`, or column name to values; `names` are the files of rows that are files.
    """

    def __init__(self, path: Path, rows: Any, spelling: Spelling, names: Sequence[str] = ()) -> None:
        self._path, self._spelling, self.names = path, spelling, names
        self._features: Mapping[str, Any] = getattr(rows, "features", {})
        columns = list(rows) if isinstance(rows, dict) else rows.column_names
        self.columns: Mapping[str, Sequence[Any]] = {name: rows[name] for name in columns}
        self._named = tuple(filter(None, spelling.query.get("column", "").split(",")))
        self._named_label = spelling.query.get("label", "")
        for key, name in [*(("column", name) for name in self._named), ("label", self._named_label)]:
            if name and name not in self.columns:
                raise wrong_spelling(
                    spelling.spec,
                    f"{key}={name}: no such column; found {', '.join(self.columns)}",
                    hint=did_you_mean(name, self.columns, f"{key}="),
                )
        kinds = {"image": "Image", "audio": "Audio"} if names else {
            name: type(feature).__name__ for name, feature in self._features.items()
        }  # fmt: skip
        media = (name for name in self._named or columns if kinds.get(name) in ("Image", "Audio"))
        self._media_column = next(media, "")
        self.media = kinds.get(self._media_column, "")
        self.lines: list[int] = []
        if spelling.kind == "text":
            self.lines = [row for row, text in enumerate(self.columns["text"]) if text.strip()]
            self.columns = {"text": [self.columns["text"][row] for row in self.lines]}
        self.label = self._named_label or self._first_of(_LABELS)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def where(self, row: int) -> str:
        """Return the origin of a row: "reviews.csv row 3", "lines.txt line 4", or its file."""
        if self.names:
            return str(self._path / self.names[row])
        place = f"line {self.lines[row] + 1}" if self.lines else f"row {row}"
        return f"{self._path.name} {place}"

    @functools.cached_property
    def texts(self) -> list[Sequence[Any]]:
        """The text column, or both of a pair: from `column=`, or by common names."""
        common = (names for names in _TEXTS if all(name in self.columns for name in names))
        names, data = self._named or next(common, ()), f"data {self._spelling.spec!r}"
        if not names:
            raise InvalidOption(
                f"{data}: no column has a common name of texts; found {', '.join(self.columns)}",
                hint="add ?column=NAME, or column=FIRST,SECOND for pairs",
            )
        if len(names) > 2:
            raise InvalidOption(f"{data}: column={','.join(names)}; one column, or two of a pair")
        return [self.columns[name] for name in names]

    def labels(self, classes: Sequence[str], *, texts: bool = False) -> tuple[list[Any] | None, list[str]]:
        """Return the labels as numbers (with `texts`: the transcripts), and notes on the numbering."""
        if texts:
            name = self._named_label or self._first_of(_TRANSCRIPTS)
            return (list(self.columns[name]) if name else None), []
        if not self.label:
            return None, []
        feature = self._features.get(self.label)
        feature = getattr(feature, "feature", feature)  # element type of a list
        names = tuple(getattr(feature, "names", None) or ())
        return read_labels(list(self.columns[self.label]), classes, where=self.where, names=names)

    def file(self, row: int) -> tuple[Path | io.BytesIO, str]:
        """Return the image or recording of a row, as a path or its content, and its origin."""
        value, where = self.columns[self._media_column][row], self.where(row)
        if isinstance(value, Path):
            return value, where
        if value and value.get("bytes"):
            return io.BytesIO(value["bytes"]), where
        if value and value.get("path"):
            return Path(value["path"]), where
        raise DataError(f"{where}: column {self._media_column} holds no file", sample=row)

    def _first_of(self, names: Sequence[str]) -> str:
        return next((name for name in names if name in self.columns), "")


def load_rows(files: Sequence[Path], builder: str) -> Any:
    """Return the concatenated rows of local files of one format; images and recordings are not decoded.

    `builder` is a builder of `datasets`; if empty, the suffix determines it.
    """
    require_package("datasets", "datasets", "reads tables")
    import datasets

    suffix = files[0].suffix.lower()
    builder = builder or FORMATS.get(suffix, ("", "json"))[1]
    options: dict[str, Any] = {"encoding": "utf-8-sig"} if builder in ("csv", "json", "text") else {}
    if builder == "csv":  # read every column as text: a parser would change "007" and "NA"
        options |= {"keep_default_na": False, "sep": "\t" if suffix == ".tsv" else ","}
        with files[0].open(newline="", encoding="utf-8-sig") as text:
            head = next(csv.reader(text, delimiter=options["sep"]), [])
        options["features"] = datasets.Features({name: datasets.Value("string") for name in head})
    paths = [glob.escape(str(file)) for file in files]
    if any(not file.stat().st_size for file in files):
        raise DataError(f"{files[0]}: holds no samples; at least one is required", file=files[0])
    with network(allowed=False), temporary_folder("rows") as cache:
        rows = datasets.load_dataset(
            builder,
            data_files={"rows": paths},
            split="rows",
            cache_dir=str(cache),
            keep_in_memory=True,
            **options,
        )
    return undecoded(rows)


def undecoded(rows: Any) -> Any:
    """Return the rows without decoding of images and recordings."""
    import datasets

    for name, feature in list(rows.features.items()):
        if isinstance(feature, datasets.Image | datasets.Audio):
            rows = rows.cast_column(name, type(feature)(decode=False))
    return rows
