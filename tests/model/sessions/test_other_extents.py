"""Made-up input: other extents than samples have, one extent for a name, values that samples show."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_models import model_of

from qcompile.model.graph.input_notes import AxisRange, InputNote, write_notes
from qcompile.model.sessions.other_extents import BATCHES, at_other_extents
from qcompile.model.sessions.random_input import Domain, RandomInput, random_feeds
from qcompile.spec.tensors import TensorInfo

IMAGES = "(float[batch, 3, h, w] x) => (float[batch, 3, h, w] y) { y = Relu (x) }"


@given(
    batch=st.integers(1, 9),
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    step=st.sampled_from([1, 8, 32]),
)
@settings(max_examples=60, deadline=None)
def test_other_extents_are_of_one_axis_and_within_its_range(
    batch: int, height: int, width: int, step: int
) -> None:
    model = model_of(IMAGES)
    limits = AxisRange(minimum=step, maximum=64 // step * step, multiple=step)
    height = limits.round_up(height)
    write_notes(model, {"x": InputNote(example=(1, 3, height, width), axes={2: limits})})
    x = np.random.default_rng(0).standard_normal((batch, 3, height, width)).astype(np.float32)
    shapes = []
    for feeds in at_other_extents(model, {"x": x}):
        array, changed = feeds["x"], [a for a in range(4) if feeds["x"].shape[a] != x.shape[a]]
        assert len(changed) == 1
        assert limits.round_up(array.shape[2]) == array.shape[2]
        assert np.isin(array, x).all()
        kept = tuple(slice(0, min(a, b)) for a, b in zip(array.shape, x.shape, strict=True))
        np.testing.assert_array_equal(array[kept], x[kept])
        shapes.append(array.shape)
    assert [s[0] for s in shapes if s[0] != batch] == [b for b in BATCHES if b != batch]
    assert sum(s[3] != width for s in shapes) == (width > 1)


MASKED = model_of(
    "(int64[batch, length] ids, int64[batch, length] seen) => (int64[batch, n] y) { y = Mul (ids, seen) }"
)


def test_axes_of_one_name_change_together() -> None:
    feeds = {"ids": np.ones((4, 6), np.int64), "seen": np.ones((4, 6), np.int64)}
    shapes = [{name: array.shape for name, array in made.items()} for made in at_other_extents(MASKED, feeds)]
    assert shapes == [dict.fromkeys(feeds, shape) for shape in ((1, 6), (5, 6), (4, 3))]


def test_two_axes_of_an_input_with_one_name_change_together() -> None:
    model = model_of("(float[nodes, nodes] x) => (float[nodes, nodes] y) { y = MatMul (x, x) }")
    shapes = [made["x"].shape for made in at_other_extents(model, {"x": np.ones((8, 8), np.float32)})]
    assert shapes == [(1, 1), (5, 5)]


GRU = """(float[time, batch, 8] x, int32[batch] lengths) => (float[1, batch, 4] h)
    { o, h = GRU <hidden_size = 4> (x, W, R, , lengths) }"""


def gru() -> onnx.ModelProto:
    return model_of(GRU, W=np.ones((1, 12, 8), np.float32), R=np.ones((1, 12, 4), np.float32))


@pytest.mark.parametrize("batch", [1, 3, 40])
def test_one_name_of_axes_has_one_extent_and_lengths_end_within_the_axis_of_time(batch: int) -> None:
    feeds = RandomInput(gru()).feeds(batch)
    assert feeds["x"].shape == (16, batch, 8)
    assert feeds["lengths"].tolist() == [16] * batch
    for other in at_other_extents(gru(), feeds):
        assert other["lengths"].shape == other["x"].shape[1:2]
        assert other["lengths"].max() <= other["x"].shape[0]


def test_shapes_of_some_inputs_decide_the_extents_of_the_same_names_in_others() -> None:
    inputs = [TensorInfo("x", "float32", ("t", "b", 8)), TensorInfo("m", "int64", ("b", "t", "?"))]
    feeds = random_feeds(inputs, extent=2, shapes={"x": (5, 3, 8)})
    assert feeds["m"].shape == (3, 5, 2)


@settings(max_examples=80)
@given(
    shape=st.sampled_from([(), (4,), (2, 3), (5, 2, 2)]),
    dtype=st.sampled_from(["float32", "int64", "uint8", "bool", "int8"]),
    seed=st.integers(0, 1000),
    count=st.integers(1, 4),
    fewer=st.booleans(),
)
def test_values_beside_samples_lie_between_those_of_the_samples(
    shape: tuple[int, ...], dtype: str, seed: int, count: int, fewer: bool
) -> None:
    generator = np.random.default_rng(seed)
    seen = tuple((generator.standard_normal(shape) * 50).astype(dtype) for _ in range(count))
    wanted = (*shape[:-1], max(shape[-1] - 1, 1)) if shape and fewer else shape
    tensor = TensorInfo("x", dtype, wanted)
    made = random_feeds([tensor], seed=seed, domains={"x": Domain(seen=seen)})["x"]
    assert (made.shape, made.dtype) == (wanted, np.dtype(dtype))
    every = np.concatenate([array.ravel() for array in seen])
    assert every.min() <= made.min() <= made.max() <= every.max()
    if dtype in ("float32", "bool"):
        assert np.isin(made, every).all()


def test_offsets_beside_samples_stay_in_order() -> None:
    seen = tuple(np.sort(np.random.default_rng(n).integers(0, 90, (1, 12)), -1) for n in range(3))
    made = random_feeds([TensorInfo("x", "int64", (1, 12))], domains={"x": Domain(seen=seen)})["x"]
    assert (np.diff(made) >= 0).all()
