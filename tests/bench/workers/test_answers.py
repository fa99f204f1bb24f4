"""What a worker says is read as an answer, or is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcompile.bench.workers.process import Worker, read_answer

ERROR = {"ok": False, "type": "BuildError", "message": "it failed", "hint": ""}


@pytest.mark.parametrize("answer", [{"ok": True}, {"ok": True, "ns": [1]}, {"progress": 3}, ERROR])
def test_an_answer_is_read(answer: dict[str, object]) -> None:
    assert read_answer(json.dumps(answer).encode() + b"\n") == answer


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\xff", b"7", b"[]", b"null", b"{}", b'{"ok": 1}', b'{"ok": "yes"}', b'{"ok": false}',
        b"[" * 100_000, b'{"progress": "half"}', json.dumps({**ERROR, "message": 5}).encode(), b"9" * 5000,
    ],
)  # fmt: skip
def test_anything_else_is_none(line: bytes) -> None:
    assert read_answer(line) is None


@settings(max_examples=50)
@given(
    st.binary() | st.dictionaries(st.text(), st.integers() | st.text()).map(lambda v: json.dumps(v).encode())
)
def test_any_line_is_an_answer_or_none(line: bytes) -> None:
    answer = read_answer(line)
    assert answer is None or "ok" in answer or "progress" in answer


def test_a_wait_of_any_length_can_be_asked_for() -> None:
    with Worker("tiny", threads=1, timeout_s=1e300) as worker:
        assert worker.hello()["ok"] is True
