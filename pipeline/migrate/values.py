"""The values of options as trtexec and Polygraphy spell them."""

from __future__ import annotations

import math
import re

from ...errors import InvalidOption, UsageError
from ...tensors import parse_shape
from .intent import Shape

DTYPES = {
    "fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16",
}  # fmt: skip
"""Names that TensorRT's tools give to types, to the names here; others are the same."""
PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}
"""Type of a layer to the precision of that name."""
POOLS = {
    "dlaSRAM": "dla-managed-sram", "dlaLocalDRAM": "dla-local-dram", "dlaGlobalDRAM": "dla-global-dram",
    "tacticSharedMem": "tactic-shared-memory",
}  # fmt: skip
"""trtexec's names of memory pools, to those of `memory_pools`."""
_SUFFIXES = "BKMG"


def wrong(flag: str, problem: str, hint: str = "") -> InvalidOption:
    """Return the error for the value of another tool's option."""
    return InvalidOption(f"{flag}: {problem}", hint=hint, flag=flag)


def dtype_of(name: str) -> str:
    """Return the name of a type here, as "float16" for "fp16"."""
    return DTYPES.get(name.lower(), name.lower())


def trtexec_pairs(flag: str, text: str) -> list[tuple[str, str]]:
    """Read `NAME:VALUE,...`; a name may be quoted, and hold colons (splitNameAndValue).

    Raises:
        InvalidOption: If a quote does not close, or a value has no name.
    """
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
    """Read `NAME:1x3x224x224,...`.

    Raises:
        InvalidOption: If a shape is not of numbers between `x`.
    """
    if "[" in text or "]" in text:
        raise wrong(flag, f"{text!r}: trtexec reads no brackets", "it writes NAME:1x3x224x224,NAME:1x10")
    shapes = {}
    for name, value in trtexec_pairs(flag, text):
        extents = () if value in ("", "scalar") else value.split("x")
        if not all(re.fullmatch(r"[0-9]{1,18}", extent) for extent in extents):
            raise wrong(flag, f"{value!r} of {name!r} is no shape", "it writes NAME:1x3x224x224")
        shapes[name] = tuple(map(int, extents))
    return shapes


def trtexec_size(flag: str, text: str) -> str:
    """Read a size: a number of MiB, or with B, K, M or G (addDefaultUnitSuffixIfNotSpecified).

    Raises:
        InvalidOption: If it is none.
    """
    number = text[:-1] if text[-1:].upper() in _SUFFIXES else text
    try:
        size = float(number)
    except ValueError:
        raise wrong(flag, f"{text!r} is no size") from None
    if not 0 <= size < math.inf:
        raise wrong(flag, f"{text!r} is no size; a finite number from 0 is required")
    unit = text[-1:].upper() if text[-1:].upper() in _SUFFIXES else "M"
    return f"{size:g}{unit}" if size < 1e6 else f"{size:.0f}{unit}"


def polygraphy_size(flag: str, text: str) -> str:
    """Read a size: a number of bytes, as 1e9 too, or with K, M or G (parse_num_bytes).

    Raises:
        InvalidOption: If it is none.
    """
    unit = text[-1:].upper() if text[-1:].upper() in _SUFFIXES[1:] else ""
    try:
        size = float(text[: len(text) - len(unit)])
    except ValueError:
        raise wrong(flag, f"{text!r} is no size") from None
    if not 0 <= size < math.inf:
        raise wrong(flag, f"{text!r} is no size; a finite number from 0 is required")
    return f"{size:g}{unit}" if unit and size < 1e6 else f"{size:.0f}{unit}"


def polygraphy_pairs(flag: str, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """Read `NAME:VALUE NAME:VALUE`; the name is empty where there is none.

    Raises:
        InvalidOption: If there is no value.
    """
    if not values:
        raise wrong(flag, "a value is required")
    return [(name, value) for name, _, value in (text.rpartition(":") for text in values)]


def polygraphy_shapes(flag: str, values: tuple[str, ...]) -> dict[str, Shape]:
    """Read `NAME:[1,3,224,224] ...`.

    Raises:
        InvalidOption: If a shape is not of numbers.
    """
    shapes = {}
    for name, value in polygraphy_pairs(flag, values):
        try:
            shape = parse_shape(value.strip("'\"")) if value not in ("[]", "") else ()
        except UsageError as error:
            raise wrong(flag, f"{value!r} of {name!r} is no shape", "it writes NAME:[1,3,224,224]") from error
        if not name or not all(isinstance(extent, int) and extent >= 0 for extent in shape):
            raise wrong(flag, f"{name}:{value} is not NAME:[1,3,224,224]")
        shapes[name] = tuple(int(extent) for extent in shape)
    return shapes
