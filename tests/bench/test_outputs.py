"""The batch that is timed is made of the first batches of the data, which must be of one shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import qcompile
from qcompile.bench.outputs import describe, timing_feeds
from qcompile.errors import DataError
from qcompile.tensors import ModelIO, parse_input

IO = ModelIO((parse_input("x:[batch,length,2]"),), ())
SOURCE = """
import numpy as np

def falling():
    for length in (5, 5, 3):
        yield np.full((4, length, 2), length, np.float32)
"""


@pytest.fixture
def data(tmp_path: Path) -> str:
    (tmp_path / "lines.py").write_text(SOURCE)
    return f"{tmp_path}/lines.py:falling"


@pytest.mark.parametrize(("batch_size", "samples"), [(None, 4), (3, 3), (8, 8)])
def test_batches_of_one_length_are_joined(batch_size: int | None, samples: int, data: str) -> None:
    assert timing_feeds(IO, data, batch_size=batch_size)["x"].shape == (samples, 5, 2)


def test_batches_of_different_lengths_cannot_be_joined(data: str) -> None:
    with pytest.raises(DataError, match=r"'x' has batches of \[batch,5,2\] and \[batch,3,2\]; 12") as caught:
        timing_feeds(IO, data, batch_size=12)
    assert caught.value.hint == "measure batches of 4, or let the first batch hold 12"


def test_a_graph_quantized_for_tensorrt_warns_elsewhere(tiny_file: Callable[..., Path]) -> None:
    model = tiny_file("mlp")
    for target, warned in (("tensorrt", 1), ("onnxruntime", 0)):
        made = qcompile.quantize(model, model.with_name(f"{target}.onnx"), mode="weights", target=target)
        said = describe(str(made.path)).warnings
        assert len(said) == warned
        assert all("quantized for tensorrt, and onnxruntime runs it" in text for text in said)
