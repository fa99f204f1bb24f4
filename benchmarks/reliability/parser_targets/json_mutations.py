"""Mutations of JSON that keep it JSON: values of other types, keys that are gone, twice, or new."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    2**31,
    2**63,
    -(2**63),
    10**30,
    10**400,
    0.0,
    -0.0,
    0.5,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "nan",
    "1",
    "\0",
    "\ud800",
    "../x",
    "é" * 40,
    [],
    {},
    [[]],
    [None],
    {"": None},
    [1, "a"],
    {"a": {"b": []}},
    json.loads("[" * 300 + "]" * 300),
)


def mutate(value: Any, chance: random.Random, times: int = 0) -> Any:
    """Return a JSON value with a few changes."""
    changed = [copy.deepcopy(value)]
    for _ in range(times or 1 + chance.randrange(3)):
        _change(changed, chance)
    return changed[0]


def encode(value: Any) -> bytes:
    """Return a value as a file holds it."""
    return json.dumps(value, ensure_ascii=True).encode()


def mutated_bytes(content: bytes, chance: random.Random) -> bytes | None:
    """Return JSON with a few changes; None where it is none."""
    try:
        value = json.loads(content)
        return encode(mutate(value, chance))
    except (ValueError, RecursionError, OverflowError):
        return None


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every container with a key of it."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, inner in items:
            found.append((one, key))
            if isinstance(inner, dict | list):
                waiting.append(inner)
    return found


def _change(root: list[Any], chance: random.Random) -> None:
    places = _places(root, [])
    holder, key = chance.choice(places)
    action = chance.randrange(8)
    if action == 0 and isinstance(holder, dict):
        del holder[key]
    elif action == 1 and isinstance(holder, list) and holder is not root:
        holder.insert(key, copy.deepcopy(holder[key]))
    elif action == 2 and isinstance(holder, list) and holder is not root:
        del holder[key]
    elif action == 3 and isinstance(holder, dict):
        holder[chance.choice(("", "x", "\0", "name", key + "2", "1"))] = copy.deepcopy(holder[key])
    elif action == 4:
        other, place = chance.choice(places)
        holder[key] = copy.deepcopy(other[place])
    elif action == 5:
        holder[key] = _near(holder[key], chance)
    elif action == 6:
        holder[key] = chance.choice(([holder[key]], {"x": holder[key]}, str(holder[key])[:200]))
    else:
        holder[key] = copy.deepcopy(chance.choice(ODD))


def _near(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((value + 1, value - 1, -value, value * 2, float(value % 2**60), str(value)[:80]))
    if isinstance(value, float):
        return chance.choice((-value, value * 1e300, value / 1e300, value + 1))
    if isinstance(value, str):
        return chance.choice((value + "\0", value[1:], value * 2, value[:-1] + "\u2028", value.upper()))
    return copy.deepcopy(chance.choice(ODD))
