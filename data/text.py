"""Texts as token ids: the model's tokenizer, padded lengths, and labels of words as labels of tokens.

Each batch is padded to its longest text, and further to the preprocessing's multiple. `bucket=true` puts
texts of like padded length together, so that batches hold less padding; `bucket=64` makes every length a
multiple of 64 besides, so that fewer shapes occur.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, first_line
from ..model.preprocessing import TextPreprocessing
from ..model.source_paths import path_here
from ..progress import quiet
from ..tensors import TensorInfo
from .preparing import IGNORED, preprocessing_for
from .readers import Batch
from .samples import Reader, Sample, join_labels, require_package, where_of
from .spelling import Spelling, whole

if TYPE_CHECKING:
    from .rows import Table

_AT_ONCE = 1024
"""Texts that are tokenized at once to find their lengths."""


def load_processor(kind: str, name: str, what: str) -> Any:
    """Return a tokenizer or feature extractor of a folder or the local cache, never with its own code."""
    require_package("transformers", "transformers", f"loads a {what}")
    import transformers

    name = path_here(name)
    try:
        with quiet():
            return getattr(transformers, kind).from_pretrained(
                name, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # OSError, ValueError, KeyError, ...: as its files are missing or damaged
        raise DataError(
            f"{what} {name}: cannot be loaded ({first_line(error)})",
            hint="" if Path(name).is_dir() else f"give a folder with the {what}'s files",
        ) from error


def feeds_of(
    arrays: Mapping[str, Any], names: Sequence[str], dtypes: Mapping[str, Any], processor: str
) -> dict[str, NDArray[Any]]:
    """Return what a processor made, by the names of the inputs; `processor` names it in messages."""
    for name in names:
        if name not in arrays:
            raise DataError(
                f"{processor}: makes {', '.join(arrays)}, and not input {name!r}",
                hint="give the samples as arrays (.npz) or by a function",
                tensor=name,
            )
    return {name: np.asarray(arrays[name], dtypes.get(name)) for name in names}


class TextReader(Reader):
    """Tokenizes the texts, or pairs of texts, of a table batch by batch."""

    threads = 1  # the tokenizer has threads of its own

    def __init__(self, table: Table, inputs: Sequence[TensorInfo], spelling: Spelling) -> None:
        names = "hf:NAME_OR_FOLDER (or FILE.json)"
        told = preprocessing_for(inputs, spelling, TextPreprocessing, what="texts", names=names)
        query, bucket = spelling.query, spelling.query.get("bucket", "false")
        multiple = query.get("multiple", str(told.multiple)) if bucket in ("true", "false") else bucket
        self.preprocessing = replace(
            told,
            max_length=whole(query.get("length", str(told.max_length)), "length", spelling.spec, least=1),
            multiple=whole(multiple, "bucket" if multiple == bucket else "multiple", spelling.spec, least=1),
        )
        self._table, self._in_buckets = table, bucket != "false"
        self.tokenizer = load_processor("AutoTokenizer", told.tokenizer, "tokenizer")
        if self.tokenizer.pad_token is None:  # masked, so any will do
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        self._dtypes = {tensor.name: tensor.dtype for tensor in inputs}
        fixed = {
            tensor.shape[1] for tensor in inputs
            if tensor.name in told.inputs and len(tensor.shape) == 2 and isinstance(tensor.shape[1], int)
        }  # fmt: skip
        self._fixed = min(fixed, default=None)
        self._longest = self.preprocessing.max_length if self._fixed is None else self._fixed
        self._lengths: dict[int, int] = {}
        self._labels, self.notes = table.labels(told.classes)

    def text(self, row: int) -> tuple[Any, ...]:
        """Return the text of a row, or both of a pair: strings, or lists of words."""
        texts = tuple(column[row] for column in self._table.texts)
        for text in texts:
            words = isinstance(text, list) and text and all(isinstance(word, str) for word in text)
            if not isinstance(text, str) and not words:
                raise DataError(
                    f"{self._table.where(row)}: {str(text)[:40]!r}; a text or a list of words is required",
                    sample=row,
                )
        return texts

    def read(self, index: int) -> Sample:
        label = None if self._labels is None else self._labels[index]
        text, where = self.text(index), self._table.where(index)
        if isinstance(label, list) and len(label) != len(text[0]):
            raise DataError(f"{where}: {len(label)} labels; one for each of {len(text[0])} words is required")
        return Sample({"text": text}, label, where)

    def join(self, samples: Sequence[Sample]) -> Batch:
        arrays, words = self._tokenized([sample.feeds["text"] for sample in samples])
        labels: Any = join_labels(samples) if not isinstance(samples[0].label, list) else (
            labels_of_tokens([sample.label for sample in samples], words)
        )  # fmt: skip
        if labels is None and self.preprocessing.task == "language-model":
            labels = np.where(arrays["attention_mask"] == 1, arrays["input_ids"], IGNORED)
        if "position_ids" in self.preprocessing.inputs:
            arrays["position_ids"] = np.maximum(np.cumsum(arrays["attention_mask"], 1) - 1, 0)
        names, processor = self.preprocessing.inputs, f"tokenizer {self.preprocessing.tokenizer}"
        feeds = feeds_of(arrays, names, dict.fromkeys(names, "int64") | self._dtypes, processor)
        return Batch(feeds, labels, where_of(samples))

    def arrange(self, order: list[int], batch_size: int, *, fixed: bool) -> list[list[int]]:
        if self._in_buckets:
            unknown = [index for index in order if index not in self._lengths]
            for start in range(0, len(unknown), _AT_ONCE):
                part = unknown[start : start + _AT_ONCE]
                encoded = self._encode([self.text(index) for index in part])["input_ids"]
                self._lengths.update(
                    (row, self._padded(len(ids))) for row, ids in zip(part, encoded, strict=True)
                )
            order = sorted(order, key=self._lengths.__getitem__)  # stable: the order stays within a length
        return super().arrange(order, batch_size, fixed=fixed)

    def notes_of(self, groups: Sequence[Sequence[int]]) -> list[str]:
        if not self._in_buckets:
            return []
        counts = sorted(Counter(max(self._lengths[index] for index in group) for group in groups).items())
        return ["padded lengths (batches): " + ", ".join(f"{length} ({count})" for length, count in counts)]

    def _tokenized(
        self, texts: Sequence[Sequence[Any]]
    ) -> tuple[dict[str, NDArray[np.int64]], list[list[int | None]]]:
        """Arrays [n, length] by the tokenizer's names, and the word of each token of texts in words."""
        encoded = self._encode(texts)
        in_words = isinstance(texts[0][0], list)
        if in_words and not self.tokenizer.is_fast:
            raise DataError(
                f"tokenizer {self.preprocessing.tokenizer}: is a slow one, without words of tokens",
                hint="save the fast tokenizer (tokenizer.json) beside the model",
            )
        length = self._padded(max(len(ids) for ids in encoded["input_ids"]))
        with quiet():  # it advises another method
            padded = self.tokenizer.pad(
                dict(encoded), padding="max_length", max_length=length, return_tensors="np"
            )
        words = []
        for row in range(len(texts)) if in_words else ():
            of_tokens = encoded.word_ids(row)
            padding = [None] * (length - len(of_tokens))
            left = self.tokenizer.padding_side == "left"
            words.append([*padding, *of_tokens] if left else [*of_tokens, *padding])
        return {name: np.asarray(array, np.int64) for name, array in padded.items()}, words

    def _encode(self, texts: Sequence[Sequence[Any]]) -> Any:
        firsts = [pair[0] for pair in texts]
        with quiet():
            return self.tokenizer(
                firsts,
                [pair[1] for pair in texts] if len(texts[0]) == 2 else None,
                truncation=True,
                max_length=min(self._longest, self.preprocessing.max_length),
                return_attention_mask=True,
                return_token_type_ids="token_type_ids" in self.preprocessing.inputs,
                is_split_into_words=isinstance(firsts[0], list),
            )

    def _padded(self, length: int) -> int:
        if self._fixed is not None:
            return self._fixed
        if self.preprocessing.padding == "max_length":
            return self._longest
        multiple = self.preprocessing.multiple
        return min(-(-max(length, 1) // multiple) * multiple, max(self._longest, length))


def labels_of_tokens(
    labels: Sequence[Sequence[int]], words: Sequence[Sequence[int | None]]
) -> NDArray[np.int64]:
    """Return int64 [n, length]: the first token of each word has its label, all others `IGNORED`."""
    aligned = np.full((len(words), len(words[0])), IGNORED, np.int64)
    for row, (of_words, word_of) in enumerate(zip(labels, words, strict=True)):
        for column, word in enumerate(word_of):
            if word is not None and word != (word_of[column - 1] if column else None):
                aligned[row, column] = of_words[word]
    return aligned
