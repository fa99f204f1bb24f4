"""Figures for people: three significant digits, a unit, a dash for a missing value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

DASH = "–"
MINUS = "\N{MINUS SIGN}"


def number(value: object) -> float | None:
    """Return a finite number as float, or None for NaN, infinity and values that are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def figure(value: float | None) -> str:
    """Return "1,234", "12.3", "1.23", "0.123"; a dash for None."""
    if value is None:
        return DASH
    rounded = float(f"{abs(value):.2e}")  # 0.9996 is 1.00
    if rounded == 0:
        return "0"
    if rounded >= 1e9 or rounded < 1e-4:
        return _signed(f"{value:.2e}")
    decimals = max(0, 2 - math.floor(math.log10(rounded)))
    return _signed(f"{value:,.{decimals}f}")


def counted(count: object, noun: str) -> str:
    """Return a count and its noun: "1 thread", "2 threads"."""
    return f"{count} {noun}{'' if str(count) == '1' else 's'}"


def times(value: float | None, decimals: int = 2) -> str:
    """Return "3.59×"."""
    if value is None:
        return DASH
    return f"{value:.{decimals}f}×" if value < 100 else f"{value:,.0f}×"


def saving(ratio: float | None) -> str:
    """Return the saving at a size ratio: "75.0%" for 4; negative for a ratio below 1."""
    if ratio is None:
        return DASH
    return f"{_fixed((1.0 - 1.0 / ratio) * 100.0, 1)}%"


def decibels(snr_db: float | None) -> str:
    """Return a signal-to-noise ratio: "31.2 dB", "equal" for `inf`, "−∞ dB" for `-inf`."""
    if snr_db is None:
        return DASH
    if math.isinf(snr_db):
        return "equal" if snr_db > 0 else f"{MINUS}∞ dB"
    return f"{_fixed(snr_db, 1)} dB"


def bytes_text(size: float | None) -> str:
    """Return "1.10 MB"; units are decimal, as in file managers."""
    if size is None:
        return DASH
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            return f"{size:.0f} B" if unit == "B" else f"{figure(size)} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def interval(low: float | None, high: float | None, decimals: int = 2) -> str:
    """Return "[3.56, 3.63]"; empty if one end is missing."""
    if low is None or high is None:
        return ""
    return f"[{_fixed(low, decimals)}, {_fixed(high, decimals)}]"


def drop_text(value: float | None, unit: str) -> str:
    """Return "0.40" for points; three significant digits for another unit."""
    if value is None:
        return DASH
    return _fixed(value, 2) if unit == "points" else figure(value)


def drop_interval(low: float | None, high: float | None, unit: str) -> str:
    """Return the interval of a drop, "[-0.20, 0.40]"; empty if one end is missing."""
    if low is None or high is None:
        return ""
    return f"[{drop_text(low, unit)}, {drop_text(high, unit)}]"


def accuracy_text(value: float | None, unit: str) -> str:
    """Return "99.60%" for a share (unit "points"); three significant digits for another unit."""
    if value is None:
        return DASH
    return f"{value:.2%}" if unit == "points" else figure(value)


def value_text(value: object) -> str:
    """Return a value of a JSON file as one line: `a 1, b 2` for a mapping, `a, b` for a list."""
    if value is None or value == "":
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return DASH if number(value) is None else f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {value_text(item)}" for key, item in value.items()) or DASH
    if isinstance(value, list | tuple):
        return ", ".join(value_text(item) for item in value) or DASH
    return str(value)


_CONVERTED = (float, dict, list, tuple)


def finite(value: Any) -> Any:
    """Return a value for JSON, with None for NaN and infinity, and lists for tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) if isinstance(item, _CONVERTED) else item for key, item in value.items()}
    if isinstance(value, list | tuple):
        if {*map(type, value)} == {float} and math.isfinite(sum(value)):
            return [*value]  # fast path for many latencies
        return [finite(item) for item in value]
    return value


def clean(value: Any) -> Any:
    """Return a JSON value with "�" for each character that cannot be displayed or encoded."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        letters = (letter if letter.isprintable() or letter in "\n\t" else "�" for letter in value)
        return "".join(letters)
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def shortened(name: str, length: int) -> str:
    """Shorten a name to `length` characters: the end of a path, or the beginning and end of other names."""
    line = " ".join(name.split())
    if len(line) <= length:
        return line
    tail = length - 1 if "/" in line else (length - 1) * 3 // 5
    return f"{line[: length - 1 - tail]}…{line[len(line) - tail :]}"


def _fixed(value: float, decimals: int) -> str:
    return _signed(f"{round(value, decimals) + 0.0:.{decimals}f}")


def _signed(text: str) -> str:
    return text.replace("-", MINUS, 1) if text.startswith("-") else text
