"""Inputs near those that a parser accepts: for the fuzzer, and for the tests."""

from __future__ import annotations

import random

from json_mutations import mutated_bytes
from target import Target


def mutated(target: Target, content: bytes, chance: random.Random, longest: int = 0) -> bytes:
    """Return an input with a few changes, no longer than the target takes."""
    limit = longest or target.longest
    if target.is_json and chance.randrange(5):
        changed = mutated_bytes(content, chance)
        if changed is not None and len(changed) <= limit:
            return changed
    text = bytearray(content)
    for _ in range(1 + chance.randrange(4)):
        _edit(text, target, chance)
    return bytes(text[:limit])


def _edit(text: bytearray, target: Target, chance: random.Random) -> None:
    place = chance.randrange(len(text) + 1)
    length = chance.choice((1, 1, 2, 4, 16))
    action = chance.randrange(7)
    if action == 0 and target.words:
        word = chance.choice(target.words).encode("utf-8", "surrogatepass")
        text[place : place + chance.choice((0, len(word)))] = word
    elif action == 1:
        del text[place : place + length]
    elif action == 2 and text:
        text[place % len(text)] ^= 1 << chance.randrange(8)
    elif action == 3:
        text[place:place] = chance.randbytes(length)
    elif action == 4:
        other = chance.choice(target.seeds) or b"0"
        start = chance.randrange(len(other))
        text[place : place + length] = other[start : start + length * 4]
    elif action == 5:
        start = chance.randrange(len(text) + 1)
        text[place:place] = text[start : start + length]
    else:
        text[place : place + 1] = chance.choice(b"0129.,:;=[]{}()\"'-+ \n\0\xff").to_bytes(1, "little")
