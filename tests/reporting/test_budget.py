"""A budget of size and latency against rows: which limit each exceeds, and what is not known."""

from __future__ import annotations

import pytest

from qcompile.bench.results.row import Latency, Row
from qcompile.reporting.summary import excesses
from qcompile.spec.measure import Budget

ROW = Row("int8", "int8.onnx", "onnxruntime", size_bytes=500_000, latency=Latency(2.0))
FLOAT = Row("float", "model.py:build", "pytorch", latency=Latency(9.0))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_size_mb": 0.5}, ()),  # the limit itself is kept
        ({"max_size_mb": 0.499}, ("size 0.500 MB, at most 0.499",)),
        ({"max_latency_ms": 2.0}, ()),
        ({"max_latency_ms": 1.9}, ("latency 2.00 ms, at most 1.90",)),
        (
            {"max_size_mb": 0.1, "max_latency_ms": 1},
            ("size 0.500 MB, at most 0.100", "latency 2.00 ms, at most 1.00"),
        ),
        ({"max_drop": 0.0}, ()),  # another rule's
    ],
)  # fmt: skip
def test_each_limit_is_compared_with_its_figure(limits: dict[str, float], words: tuple[str, ...]) -> None:
    assert excesses(Budget(**limits), ROW) == words


def test_what_was_not_measured_is_not_known_to_be_kept() -> None:
    assert excesses(Budget(max_size_mb=1), FLOAT) == ("it has no file whose size is known",)
    assert excesses(Budget(max_latency_ms=1), Row("a", "a.onnx", "onnxruntime")) == (
        "its latency was not measured",
    )


def test_limits_are_those_that_are_set() -> None:
    assert Budget().limits == {}
    assert Budget(max_drop=0, max_size_mb=2).limits == {"max_drop": 0, "max_size_mb": 2}
