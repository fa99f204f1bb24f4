"""Every parser takes any input: it returns, or raises an error of qcompile. So for the fuzzer's corpus, too.

`QCOMPILE_FUZZ_EXAMPLES=100000` lets the same strategies run for long; `benchmarks/reliability/fuzz.py` is
guided by coverage.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

RELIABILITY = Path(__file__).resolve().parents[2] / "benchmarks/reliability"
sys.path.insert(0, str(RELIABILITY / "parser_targets"))
try:
    target, inputs, mutations = (importlib.import_module(n) for n in ("target", "inputs", "json_mutations"))
    TARGETS = importlib.import_module("catalogue").TARGETS
finally:
    sys.path.pop(0)

EXAMPLES = int(os.environ.get("QCOMPILE_FUZZ_EXAMPLES", "20"))
HEAVY = {"report": 10, "image": 2, "migrate": 2, "results": 2, "audio": 5}
"""Targets that take more than a millisecond, and the part of the examples that they get."""

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name == "report")) for name in TARGETS]


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path) -> None:
    """Parsers that open a file find it in the test's folder."""
    target.use_folder(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus_shows_no_defect(name: str) -> None:
    kept = sorted((RELIABILITY / "corpus" / name).glob("*"))
    assert kept
    for content in [*TARGETS[name].seeds, *(path.read_bytes() for path in kept)]:
        error = target.defect(TARGETS[name], content)
        assert error is None, (content, target.place_of(error))


@pytest.mark.parametrize("name", NAMES)
def test_inputs_near_a_good_one_are_read_or_refused(name: str) -> None:
    one = TARGETS[name]

    @settings(max_examples=max(EXAMPLES // HEAVY.get(name, 1), 1), database=None)
    @given(st.sampled_from(one.seeds), st.randoms(use_true_random=False), st.integers(1, 3))
    def holds(content: bytes, chance: random.Random, times: int) -> None:
        for _ in range(times):
            content = inputs.mutated(one, content, chance)
        error = target.defect(one, content)
        if error is not None:
            raise AssertionError(content, target.place_of(error)) from error

    holds()


@settings(max_examples=50)
@given(st.randoms(use_true_random=False))
def test_mutations_of_json_are_json(chance: random.Random) -> None:
    value = {"a": [1, 2.5, "x", None, True, {"b": []}]}
    before = json.dumps(value)
    json.loads(mutations.encode(mutations.mutate(value, chance)))
    assert json.dumps(value) == before


def test_a_defect_is_named_by_the_line_of_ours() -> None:
    def parse(content: bytes) -> None:
        raise KeyError(content)

    error = target.defect(target.Target("x", parse, ()), b"")
    assert isinstance(error, KeyError)
    assert target.place_of(error).startswith("KeyError at ")
