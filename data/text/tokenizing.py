"""Texts to token ids: the model's tokenizer, padded lengths, and labels of words to labels of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, first_line
from ...model.moved import path_here
from ...model.preprocessing import TextPreprocessing
from ...progress import quiet
from ...tensors import TensorInfo
from ..labels import IGNORED
from ..packages import require_package
from ..preparing import preprocessing_for
from ..query import whole
from ..spelling import Spelling


def text_preprocessing(inputs: Sequence[TensorInfo], spelling: Spelling) -> TextPreprocessing:
    """Return how texts become the model's inputs, with what the spelling says of lengths.

    Raises:
        InvalidOption: If nobody says how, or what they say is not for texts.
    """
    names = "hf:NAME_OR_FOLDER (or FILE.json)"
    said = preprocessing_for(inputs, spelling, TextPreprocessing, what="texts", names=names)
    longest, multiple = (
        whole(spelling.query.get(key, str(own)), key, spelling.spec, least=1)
        for key, own in (("length", said.max_length), ("multiple", said.multiple))
    )
    return replace(said, max_length=longest, multiple=multiple)


def load_tokenizer(name: str) -> Any:
    """Return a tokenizer from a folder, or from the local cache; its code is transformers' own.

    Raises:
        EngineUnavailable: If transformers is missing.
        DataError: If there is no such tokenizer here.
    """
    require_package("transformers", "transformers", "tokenizes texts")
    from transformers import AutoTokenizer

    name = path_here(name)
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # OSError, ValueError, KeyError, ...: as its files are missing or damaged
        raise DataError(
            f"tokenizer {name}: cannot be loaded ({first_line(error)})",
            hint="" if Path(name).is_dir() else "give a folder with the tokenizer's files",
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token  # masked, so any will do
    return tokenizer


@dataclass(frozen=True)
class Tokenized:
    """One batch of token ids.

    Attributes:
        arrays: The tokenizer's name to int64 [n, length].
        words: The word of each token, None for those of none; empty where texts are not in words.
    """

    arrays: dict[str, NDArray[Any]]
    words: Sequence[Sequence[int | None]]


class Tokenizing:
    """Tokenizes batches as a preprocessing says.

    Args:
        said: The preprocessing.
        inputs: The model's inputs; a fixed length decides over the preprocessing's.
    """

    def __init__(self, said: TextPreprocessing, inputs: Sequence[TensorInfo]) -> None:
        self.said, self.tokenizer = said, load_tokenizer(said.tokenizer)
        self._dtypes = {one.name: one.dtype for one in inputs}
        fixed = {
            one.shape[1] for one in inputs
            if one.name in said.inputs and len(one.shape) == 2 and isinstance(one.shape[1], int)
        }  # fmt: skip
        self._fixed = min(fixed, default=None)
        self.longest = said.max_length if self._fixed is None else self._fixed

    def lengths(self, texts: Sequence[Sequence[Any]]) -> list[int]:
        """Return the padded length that each text would have alone."""
        return [self._padded(len(ids)) for ids in self._encode(texts)["input_ids"]]

    def __call__(self, texts: Sequence[Sequence[Any]]) -> Tokenized:
        """Tokenize one batch; each text is one or two texts, or lists of words."""
        encoded = self._encode(texts)
        in_words = isinstance(texts[0][0], list)
        if in_words and not self.tokenizer.is_fast:
            raise DataError(
                f"tokenizer {self.said.tokenizer}: is a slow one, which does not tell the word of a token",
                hint="save the fast tokenizer (tokenizer.json) beside the model",
            )
        words = [encoded.word_ids(row) for row in range(len(texts))] if in_words else []
        length = self._padded(max(len(ids) for ids in encoded["input_ids"]))
        left = self.tokenizer.padding_side == "left"
        with quiet():  # it advises another method
            padded = self.tokenizer.pad(
                dict(encoded), padding="max_length", max_length=length, return_tensors="np"
            )
        words = [
            [*[None] * (length - len(row)), *row] if left else [*row, *[None] * (length - len(row))]
            for row in words
        ]
        return Tokenized({name: np.asarray(array, np.int64) for name, array in padded.items()}, words)

    def feeds(self, tokenized: Tokenized) -> dict[str, Any]:
        """Return the model's inputs.

        Raises:
            DataError: If the tokenizer does not make one of them.
        """
        arrays = dict(tokenized.arrays)
        if "position_ids" in self.said.inputs:
            arrays["position_ids"] = np.maximum(np.cumsum(arrays["attention_mask"], 1) - 1, 0)
        feeds = {}
        for name in self.said.inputs:
            if name not in arrays:
                raise DataError(
                    f"tokenizer {self.said.tokenizer}: makes {', '.join(arrays)}, and not input {name!r}",
                    hint="give the samples as arrays (.npz) or by a function",
                    tensor=name,
                )
            feeds[name] = arrays[name].astype(self._dtypes.get(name, "int64"))
        return feeds

    def _encode(self, texts: Sequence[Sequence[Any]]) -> Any:
        firsts = [one[0] for one in texts]
        seconds = [one[1] for one in texts] if len(texts[0]) == 2 else None
        with quiet():
            return self.tokenizer(
                firsts,
                seconds,
                truncation=True,
                max_length=min(self.longest, self.said.max_length),
                return_attention_mask=True,
                return_token_type_ids="token_type_ids" in self.said.inputs,
                is_split_into_words=isinstance(firsts[0], list),
            )

    def _padded(self, length: int) -> int:
        if self._fixed is not None:
            return self._fixed
        if self.said.padding == "max_length":
            return self.longest
        multiple = self.said.multiple
        return min(-(-max(length, 1) // multiple) * multiple, max(self.longest, length))


def labels_of_tokens(
    labels: Sequence[Sequence[int]], words: Sequence[Sequence[int | None]]
) -> NDArray[np.int64]:
    """Return int64 [n, length]: the first token of each word has its label, all others `IGNORED`."""
    aligned = np.full((len(words), len(words[0])), IGNORED, np.int64)
    for row, (of_words, word_of) in enumerate(zip(labels, words, strict=True)):
        before: int | None = None
        for column, word in enumerate(word_of):
            if word is not None and word != before:
                aligned[row, column] = of_words[word]
            before = word
    return aligned
