"""Inputs near others: bytes changed, moved and repeated; JSON with other values, keys and types."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, 5e-324, float("nan"),
    float("inf"), "", "x", "nan", "\0", "\ud800", "../x", "é" * 40, [], {}, [None], {"": None}, [1, "a"],
)  # fmt: skip


def mutated(content: bytes, inputs: Sequence[bytes], *, as_json: bool, chance: random.Random) -> bytes:
    """Return an input with a few changes."""
    if as_json and chance.randrange(5):
        try:
            root = [json.loads(content)]
            for _ in range(1 + chance.randrange(3)):
                _change(root, chance)
            return json.dumps(root[0]).encode()
        except (ValueError, RecursionError, OverflowError):
            pass
    changed = bytearray(content)
    for _ in range(1 + chance.randrange(4)):
        _edit(changed, chance.choice(inputs) or b"0", chance)
    return bytes(changed)


def _edit(content: bytearray, other: bytes, chance: random.Random) -> None:
    place, length = chance.randrange(len(content) + 1), chance.choice((1, 1, 2, 4, 16))
    start = chance.randrange(len(other))
    action = chance.randrange(5)
    if action == 0:
        del content[place : place + length]
    elif action == 1 and content:
        content[place % len(content)] ^= 1 << chance.randrange(8)
    elif action == 2:
        content[place:place] = chance.randbytes(length)
    elif action == 3:
        content[place : place + length] = other[start : start + length * 4]
    else:
        content[place : place + 1] = chance.choice(b"0129.,:;=[]{}()\"'-+ \n\0\xff").to_bytes(1, "little")


def _change(root: list[Any], chance: random.Random) -> None:
    places = _places(root)
    holder, key = chance.choice(places)
    action = chance.randrange(5)
    if holder is not root and action == 0:
        del holder[key]
    elif isinstance(holder, dict) and action == 1:
        holder[chance.choice(("", "x", "\0", "name", key + "2"))] = copy.deepcopy(holder[key])
    elif action == 2:
        other, place = chance.choice(places)
        holder[key] = copy.deepcopy(other[place])
    elif action == 3:
        holder[key] = chance.choice(([holder[key]], {"x": holder[key]}, str(holder[key])[:200]))
    else:
        holder[key] = copy.deepcopy(chance.choice(_ODD))


def _places(root: list[Any]) -> list[tuple[Any, Any]]:
    """Every container with a key of it."""
    places, waiting = [], [root]
    while waiting:
        holder: Any = waiting.pop()
        for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
            places.append((holder, key))
            if isinstance(value, dict | list):
                waiting.append(value)  # type: ignore[arg-type]
    return places
