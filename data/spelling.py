"""Parse the spelling of DATA (docs/data.md): `[KIND:]PATH[?key=value&...]`, or `file.py:function`.

The query begins at the first `?`. In PATH and in values, `%3F` stands for `?`, `%26` for `&` and `%25` for
`%`. A kind is a known word before the first `:`; write `./` before a path that begins with a word and a
colon. Without a kind, `kinds` detects it from the files at the path.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.files import absolute_path, digest_files
from ..errors import InvalidOption
from ..model.sources.load import digest_preprocessing
from ..model.sources.source import did_you_mean, parse_source

FUNCTION = "function"
PARTS = ("calibration", "evaluation")
_SAMPLING = ("samples", "seed", "part")
_BALANCED = (*_SAMPLING, "balanced", "split", "preprocessing")
_TEXT = (*_BALANCED, "column", "label", "bucket", "multiple", "length")
KEYS: Mapping[str, tuple[str, ...]] = {
    "images": (*_BALANCED, "masks", "annotations"),
    **dict.fromkeys(("text", "jsonl", "csv", "audio", "datasets"), _TEXT),
    "vocabulary": (*_SAMPLING, "preprocessing", "bucket", "multiple", "length"),
    "polygraphy": _SAMPLING,
    "npz": (*_SAMPLING, "balanced"),
    "npy": _SAMPLING,
    "arrays": (*_SAMPLING, "balanced"),
}
"""Kind to the keys that its query accepts."""
FILE_KEYS = ("masks", "annotations")
"""Keys with a path as value; `preprocessing` may be a path, too."""
_ALL_KEYS = tuple(dict.fromkeys(key for keys in KEYS.values() for key in keys))
_WORD = re.compile(r"[A-Za-z_]\w*")
_ESCAPES = {"%": "%25", "?": "%3F", "&": "%26"}
_ESCAPED_MARK = "a `?` that belongs to the path is written %3F"


@dataclass(frozen=True)
class Query:
    """Selection of samples: number (None: all), seed, balance over classes, and half (`PARTS`; "": both)."""

    samples: int | None = None
    seed: int = 0
    balanced: bool = True
    part: str = ""


def read_query(values: Mapping[str, str], spec: str) -> Query:
    """Read the keys `samples`, `seed`, `balanced` and `part`; other keys are ignored."""
    for key, words in (("balanced", ("true", "false")), ("part", PARTS)):
        if (word := values.get(key, words[0])) not in words:
            hint = did_you_mean(word, words, f"{key}=")
            raise wrong_spelling(spec, f"{key}={word}; {' or '.join(words)} is required", hint)
    return Query(
        samples=parse_whole(values["samples"], "samples", spec, least=1) if "samples" in values else None,
        seed=parse_whole(values.get("seed", "0"), "seed", spec, least=0),
        balanced=values.get("balanced") != "false",
        part=values.get("part", ""),
    )


def wrong_spelling(spec: str, problem: str, hint: str = "") -> InvalidOption:
    """Return the error for a wrong spelling."""
    return InvalidOption(f"data {spec!r}: {problem}", hint=hint)


def parse_whole(text: str, key: str, spec: str, *, least: int) -> int:
    """Return a whole number; raise InvalidOption if it is malformed or below `least`."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
    if number < least:
        raise wrong_spelling(spec, f"{key}={text}; a whole number of at least {least} is required")
    return number


@dataclass(frozen=True)
class Spelling:
    """A parsed spelling, unescaped. `path` of a function is the whole text; `kind` is "" until detected."""

    spec: str = field(compare=False)
    kind: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return a text that parses to this spelling."""
        if self.kind == FUNCTION:
            return self.path
        path = _escape(self.path)
        if not self.kind and ":" in path:
            path = path if path.startswith(("/", ".", "~")) else f"./{path}"
            path += "/" if _is_function(path) else ""  # a folder named like a function
        text = f"{self.kind}:{path}" if self.kind else path
        query = "&".join(f"{key}={_escape(value)}" for key, value in self.query.items())
        return f"{text}?{query}" if query else text

    def with_kind(self, kind: str) -> Spelling:
        """Return the spelling with this kind; raise InvalidOption for a key that the kind does not accept."""
        keys = KEYS.get(kind, () if kind == FUNCTION else _ALL_KEYS)
        for key, value in self.query.items():
            if key in keys:
                if not value:
                    raise wrong_spelling(self.spec, f"{key} has no value", f"write {key}=VALUE")
                continue
            if kind == FUNCTION:
                raise wrong_spelling(self.spec, f"a function takes no keys; {key}= was given")
            subject = f"data of kind {kind}" if kind else "data"
            hint = "" if key in _ALL_KEYS else did_you_mean(key, keys)
            raise wrong_spelling(
                self.spec, f"{key}= is no key of {subject}; {', '.join(keys)} are", hint or _ESCAPED_MARK
            )
        return replace(self, kind=kind)

    def located(self, base: Path) -> Spelling:
        """Return the spelling with absolute paths; files in keys are first searched beside the data."""
        if self.kind == FUNCTION:
            return replace(self, path=parse_source(self.path, base=base).absolute)
        path = absolute_path(self.path, base)
        query = dict(self.query)
        for key, value in query.items():
            if _is_path(key, value):
                beside = absolute_path(value, path if path.is_dir() else path.parent)
                query[key] = str(beside if beside.exists() else absolute_path(value, base))
            elif key == "preprocessing" and ":" in value:
                query[key] = parse_source(value, base=base).absolute  # a folder after hf:
        return replace(self, path=str(path), query=query)

    def relative_to(self, folder: Path) -> Spelling:
        """Return the spelling with paths relative to `folder`."""
        folder = folder.resolve()
        if self.kind == FUNCTION:
            source = parse_source(self.path)
            path = os.path.relpath(source.path, folder) if source.path else source.module
            return replace(self, path=f"{path}:{source.function}")
        located = self.located(Path.cwd())
        query = {
            key: os.path.relpath(value, folder) if _is_path(key, value) else value
            for key, value in located.query.items()
        }
        return replace(self, path=os.path.relpath(located.path, folder), query=query)

    def digest_parts(self) -> list[str]:
        """Return the values that determine reading, for a digest: kind and keys, with files by content."""
        texts = [self.kind]
        for key, value in sorted(self.query.items()):
            if key == "preprocessing":
                value = digest_preprocessing(value)
            elif key in FILE_KEYS:  # the digest of the samples covers files in a folder
                value = digest_files([Path(value)]) if Path(value).is_file() else ""
            texts.append(f"{key}={value}")
        return texts


def parse_spelling(spec: str) -> Spelling:
    """Parse a spelling; raise InvalidOption if it is wrong."""
    head, question, text = spec.partition("?")
    kind, path = _kind_and_path(spec, head)
    query: dict[str, str] = {}
    for part in text.split("&") if question else ():
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise wrong_spelling(
                spec, f"{part!r} after the `?`; key=value is required, joined by `&`", _ESCAPED_MARK
            )
        if key in query:
            raise wrong_spelling(spec, f"{key}= is given twice")
        query[key] = _unescape(value)
    return Spelling(spec, "", path, query).with_kind(kind)


def _kind_and_path(spec: str, head: str) -> tuple[str, str]:
    word, colon, path = head.partition(":")
    if colon and word in KEYS:
        if not path:
            raise wrong_spelling(spec, f"a path is required after {word}:")
        return word, _unescape(path)
    is_function = _is_function(head)
    if colon and _WORD.fullmatch(word):
        hint = did_you_mean(word, KEYS)
        if not is_function or (hint and importlib.util.find_spec(word) is None):
            raise wrong_spelling(
                spec,
                f"unknown kind {word!r}; {', '.join(KEYS)} are known",
                hint=hint or f"a path that begins like this is written ./{head}",
            )
    if is_function:
        return FUNCTION, head
    if not head:
        raise wrong_spelling(spec, "a path is required")
    return "", _unescape(head)


def _is_function(head: str) -> bool:
    source, _, last = head.rpartition(":")
    is_module = all(part.isidentifier() for part in source.split("."))
    return last.isidentifier() and (source.endswith(".py") or is_module)


def _is_path(key: str, value: str) -> bool:
    return key in FILE_KEYS or (key == "preprocessing" and value.endswith(".json"))


def _escape(text: str) -> str:
    return re.sub(r"[%?&]", lambda match: _ESCAPES[match[0]], text)


def _unescape(text: str) -> str:
    return re.sub(r"%(?:25|3F|26)", lambda match: chr(int(match[0][1:], 16)), text, flags=re.IGNORECASE)
