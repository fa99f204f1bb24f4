"""The keys of a DATA spelling that say which samples, with their types."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidOption

Part = Literal["", "calibration", "evaluation"]
PARTS: tuple[Part, ...] = ("calibration", "evaluation")


@dataclass(frozen=True)
class Query:
    """Which samples of a set, in which order.

    Attributes:
        samples: Draw so many at random; None takes all, in their own order.
        seed: Of the drawing, and of the halves.
        balanced: Draw as many of each class as of any other, where there are labels; else as they come.
        part: One of two disjoint halves; empty for the whole.
    """

    samples: int | None = None
    seed: int = 0
    balanced: bool = True
    part: Part = ""


def read_query(values: Mapping[str, str], spec: str) -> Query:
    """Read the keys `samples`, `seed`, `balanced` and `part`; others are left to the kinds.

    Raises:
        InvalidOption: If a value is none.
    """
    samples = values.get("samples")
    return Query(
        samples=None if samples is None else whole(samples, "samples", spec, least=1),
        seed=whole(values.get("seed", "0"), "seed", spec, least=0),
        balanced=one_of(values.get("balanced", "true"), ("true", "false"), "balanced", spec) == "true",
        part=_part(values.get("part", ""), spec),
    )


def whole(text: str, key: str, spec: str, *, least: int) -> int:
    """Read a whole number.

    Raises:
        InvalidOption: If it is none, or below `least`.
    """
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
    if number < least:
        raise InvalidOption(f"data {spec!r}: {key}={text}; a whole number of at least {least} is required")
    return number


def one_of(text: str, known: Sequence[str], key: str, spec: str) -> str:
    """Read one of some words.

    Raises:
        InvalidOption: If it is another word, with the nearest.
    """
    if text in known:
        return text
    near = difflib.get_close_matches(text, known, n=1)
    raise InvalidOption(
        f"data {spec!r}: {key}={text}; {' or '.join(known)} is required",
        hint=f"did you mean {key}={near[0]}?" if near else "",
    )


def _part(text: str, spec: str) -> Part:
    if not text:
        return ""
    one_of(text, PARTS, "part", spec)
    return "calibration" if text == "calibration" else "evaluation"
