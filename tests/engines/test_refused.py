"""Layers that a runtime refuses are found by trying, and no others are given up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mode_models import normal, written

import qcompile
from qcompile.engines.build import refused_layers


@given(
    count=st.integers(1, 60),
    pairs=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), min_size=1, max_size=4),
)
def test_every_refused_combination_is_broken_by_as_few_as_it_takes(
    count: int, pairs: list[tuple[int, int]]
) -> None:
    # A graph is refused where it holds both layers of a pair; of a pair of equals, that one.
    conflicts = [{f"n{a % count}", f"n{b % count}"} for a, b in pairs]
    layers = [f"n{index}" for index in range(count)]
    tried = 0

    def takes(some: Sequence[str]) -> bool:
        nonlocal tried
        tried += 1
        return not any(conflict <= set(some) for conflict in conflicts)

    found = refused_layers(layers, takes, trials=10**6)
    assert found is not None
    assert takes([layer for layer in layers if layer not in found])
    for layer in found:  # none of them is given back for nothing
        assert not takes([other for other in layers if other not in found or other == layer])
    assert len(found) <= len(conflicts)
    assert tried <= 4 * len(pairs) * (math.log2(count) + 2)


def test_too_many_trials_are_not_made() -> None:
    tried: list[int] = []
    assert refused_layers([str(i) for i in range(64)], lambda _: bool(tried.append(1)), trials=20) is None
    assert len(tried) == 20


def test_one_layer_needs_one_trial() -> None:
    assert refused_layers(["only"], lambda _: False) == ["only"]


def test_an_artifact_is_built_without_the_layer_for_which_openvino_refuses_the_graph(tmp_path: Path) -> None:
    # Positions of two scales, one behind the other, in front of a product: its passes fail on that (2026.4).
    model = written(
        tmp_path / "m.onnx",
        """(float[n,3,8,8] x) => (float[n,80,6] y) {
            a = Conv<pads=[1,1,1,1]>(x, w) ar = Relu(a) as = Reshape(ar, one) at = Transpose<perm=[0,2,1]>(as)
            b = Conv<pads=[1,1,1,1], strides=[2,2]>(x, v)
            bs = Reshape(b, two) bt = Transpose<perm=[0,2,1]>(bs)
            c = Concat<axis=1>(at, bt) [product] y = MatMul(c, u) }""",
        w=normal(16, 3, 3, 3),
        v=normal(16, 3, 3, 3, seed=1),
        u=normal(16, 6),
        one=np.array([0, 16, 64]),
        two=np.array([0, 16, 16]),
    )
    data = str(tmp_path / "x.npz")
    np.savez(data, x=normal(8, 3, 8, 8, scale=1))
    qcompile.calibrate(model, data, tmp_path / "m.ranges")
    made = qcompile.build(
        model, tmp_path / "made.onnx", target="openvino", precision="int8", ranges=tmp_path / "m.ranges",
        data=data,
    )  # fmt: skip
    left = made.manifest.proof["left_in_float"]
    assert isinstance(left, dict)
    assert list(left) == ["product"]
    assert "openvino refuses the graph with it in INT8" in left["product"]
    assert made.manifest.proof["reached_in_precision"] == 2
