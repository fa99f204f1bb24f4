"""The tables of docs/tensorrt.md say which names the real modules have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/tensorrt.md").read_text(encoding="utf-8")
FILES = ("tensorrt-8.5.3.1", "tensorrt-10.16.1.11", "tensorrt-11.4.0.106", "tensorrt_rtx-1.7.1.116")
ROWS = re.findall(r"^\| `([\w.]+)` \| (yes|–) \| (yes|–) \| (yes|–) \| (yes|–) \|", GUIDE, re.M)


@pytest.mark.parametrize(("column", "file"), list(enumerate(FILES)), ids=FILES)
def test_a_version_has_the_names_that_the_guide_says(column: int, file: str) -> None:
    assert len(ROWS) == 20
    names = json.loads((ROOT / f"tests/support/trt_api/{file}.json").read_text(encoding="utf-8"))["names"]
    wrong = []
    for name, *said in ROWS:
        owner, _, member = name.partition(".")
        entry = names.get(owner)
        there = entry is not None and (
            not member or member in [*entry.get("members", []), *entry.get("enum", [])]
        )
        if there != (said[column] == "yes"):
            wrong.append(name)
    assert not wrong, f"{file}: {wrong}"
