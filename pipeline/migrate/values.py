"""The values of options as trtexec and Polygraphy spell them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from ...errors import InvalidOption, UsageError
from ...tensors import parse_shape
from .intent import Shape

_DTYPES = {
    "fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16",
}  # fmt: skip
"""Names that TensorRT's tools give to types, to the names here; others are the same."""


def wrong(flag: str, problem: str, hint: str = "") -> InvalidOption:
    """Return the error for the value of another tool's option."""
    return InvalidOption(f"{flag}: {problem}", hint=hint, flag=flag)


def dtype_of(name: str) -> str:
    """Return the name of a type here, as "float16" for "fp16"."""
    return _DTYPES.get(name.lower(), name.lower())


def trtexec_pairs(flag: str, text: str) -> list[tuple[str, str]]:
    """Read `NAME:VALUE,...`; a name may be quoted, and hold colons (splitNameAndValue)."""
    pairs = []
    for part in filter(None, text.split(",")):
        if part.count("'") == 2:
            before, name, after = part.split("'")
            pairs.append((before + name, after.removeprefix(":")))
        else:
            name, colon, value = part.rpartition(":")
            if not colon or "'" in part:
                raise wrong(flag, f"{part!r} is not NAME:VALUE")
            pairs.append((name, value))
    return pairs


def trtexec_shapes(flag: str, text: str) -> dict[str, Shape]:
    """Read `NAME:1x3x224x224,...`."""
    if "[" in text or "]" in text:
        raise wrong(flag, f"{text!r}: trtexec reads no brackets", "it writes NAME:1x3x224x224,NAME:1x10")
    shapes = {}
    for name, value in trtexec_pairs(flag, text):
        extents = () if value in ("", "scalar") else value.split("x")
        if not all(re.fullmatch(r"[0-9]{1,18}", extent) for extent in extents):
            raise wrong(flag, f"{value!r} of {name!r} is no shape", "it writes NAME:1x3x224x224")
        shapes[name] = tuple(map(int, extents))
    return shapes


def polygraphy_shapes(flag: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Shape]:
    """Read `NAME:[1,3,224,224] ...`."""
    shapes = {}
    for name, value in pairs:
        try:
            shape: Sequence[Any] = parse_shape(value.strip("'\"")) if value not in ("[]", "") else ()
        except UsageError as error:
            raise wrong(flag, f"{value!r} of {name!r} is no shape", "it writes NAME:[1,3,224,224]") from error
        if not name or not all(isinstance(extent, int) and extent >= 0 for extent in shape):
            raise wrong(flag, f"{name}:{value} is not NAME:[1,3,224,224]")
        shapes[name] = tuple(shape)
    return shapes


def read_size(flag: str, text: str, *, unit: str = "") -> str:
    """Read a size: a number, as 1e9 too, with K, M or G behind it.

    Without one it is in bytes for Polygraphy (parse_num_bytes), and in MiB, `unit` "M", for trtexec,
    which has B for bytes (addDefaultUnitSuffixIfNotSpecified).
    """
    suffix = text[-1:].upper() if text[-1:].upper() in tuple("BKMG" if unit else "KMG") else ""
    try:
        size = float(text[: len(text) - len(suffix)])
    except ValueError:
        raise wrong(flag, f"{text!r} is no size") from None
    if not 0 <= size < math.inf:
        raise wrong(flag, f"{text!r} is no size; a finite number from 0 is required")
    suffix = suffix or unit
    return f"{size:g}{suffix}" if suffix and size < 1e6 else f"{size:.0f}{suffix}"
