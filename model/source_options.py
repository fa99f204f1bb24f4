"""Read and write what follows the `?` of a MODEL: `timm:resnet18?weights=random&classes=10`.

| key              | says                                                                               |
|------------------|------------------------------------------------------------------------------------|
| `weights=random` | random weights of `seed`; else a .safetensors, or a state dict of `torch.save`     |
| `download=1`     | the package may download what its cache lacks                                      |
| `classes=N`      | classes of a classifier, with weights that are random or of a file                 |
| `size=H[xW]`     | extents of its images                                                              |
| `task=TASK`      | head of a transformers model, where its configuration names another one or none    |
| `seed=N`         | of random weights                                                                  |

Functions (`model.py:build`) take `weights` alone. A character of a path that has a meaning here is written
as in an address: `%26` for `&`, `%3F` for `?`, `%25` for `%`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import quote, unquote

from ..errors import InvalidOption

RANDOM = "random"
_MOST_DIGITS = 19  # of an int64


@dataclass(frozen=True)
class SourceOptions:
    """What a spelling says beside the name; defaults where it says nothing.

    Attributes:
        weights: Empty for the package's own, "random", or a file.
        download: Whether the package may download.
        classes: Number of classes; 0 for the model's own.
        size: Height and width of its images; empty for the model's own.
        task: Of a transformers model; empty for what its configuration says.
        seed: Of random weights.
    """

    weights: str = ""
    download: bool = False
    classes: int = 0
    size: tuple[int, ...] = ()
    task: str = ""
    seed: int = 0

    @property
    def file(self) -> str:
        """The file with the weights; empty where there is none."""
        return "" if self.weights == RANDOM else self.weights

    @property
    def query(self) -> str:
        """The spelling: `?key=value&...`, or empty where everything is the default."""
        said = [
            f"{one.name}={_written(getattr(self, one.name))}"
            for one in fields(self)
            if getattr(self, one.name) != one.default
        ]
        return "?" + "&".join(said) if said else ""

    def merged(self, spec: str, *, weights: str = "", download: bool = False) -> SourceOptions:
        """Return options with what was given beside the spelling."""
        if weights and self.weights and weights != self.weights:
            raise InvalidOption(
                f"`weights` {weights}: the spelling {spec} says weights={self.weights}; one is required",
                option="weights",
            )
        return replace(self, weights=weights or self.weights, download=download or self.download)


def parse_query(query: str, spec: str, known: tuple[str, ...] = ()) -> SourceOptions:
    """Read `key=value&key=value`.

    Args:
        known: Keys that this kind of source takes; empty for all.
    """
    takes = known or tuple(_KEYS)
    values: dict[str, Any] = {}
    for part in query.split("&"):
        key, equals, text = part.partition("=")
        if key not in takes or not equals:
            raise InvalidOption(
                f"model {spec}: {part!r} is none of its options: {', '.join(takes)}",
                hint=did_you_mean(key, takes) if key not in takes else f"write {key}=VALUE",
            )
        if key in values:
            raise InvalidOption(f"model {spec}: {key} is given twice; once is required")
        pattern, read, required = _KEYS[key]
        value = unquote(text, errors="surrogateescape")
        if not re.fullmatch(pattern, value, re.ASCII | re.DOTALL):
            raise InvalidOption(f"model {spec}: {key}={text or 'nothing'}; {required} is required")
        values[key] = read(value)
    return SourceOptions(**values)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean ...?" with the nearest known name; empty where none is near."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return quote(str(value), safe="/:~+,@=!()' \\", errors="surrogateescape")


def _extents(text: str) -> tuple[int, ...]:
    height, _, width = text.partition("x")
    return int(height), int(width or height)


_POSITIVE = rf"(?=0*[1-9])\d{{1,{_MOST_DIGITS}}}"
_KEYS: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "weights": (".+", str, "random, or a file"),
    "download": ("0|1|false|true", ("1", "true").__contains__, "0 or 1"),
    "classes": (_POSITIVE, int, "a number of 1 or more"),
    "size": (
        f"{_POSITIVE}(x{_POSITIVE})?", _extents, "HEIGHT or HEIGHTxWIDTH, such as 224 or 224x320,",
    ),
    "task": (".+", str, "a task, such as text-classification,"),
    "seed": (rf"\d{{1,{_MOST_DIGITS}}}", int, "a number of 0 or more"),
}  # fmt: skip
"""Key to the pattern of its text, what reads it, and what is required in words."""
