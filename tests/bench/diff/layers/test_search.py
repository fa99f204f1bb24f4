"""The search finds what all measurements say: on graphs of numbers, and in ResNet-50 and BERT-base."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_faults import perturbed

import qcompile
from qcompile.bench.diff.layers.compare import layer_diff
from qcompile.bench.diff.layers.outcome import LayerDiff
from qcompile.bench.diff.layers.search import Search, pack_groups
from qcompile.model.graph.graph import producers, weighted_nodes

CAP, THRESHOLD = 30.0, 15.0


def everything(_: object) -> bool:
    return True


@st.composite
def graphs(draw: st.DrawFn) -> list[int]:
    """Upstream of each tensor: it reads one to three earlier ones; the last reads whatever nobody did."""
    count = draw(st.integers(2, 60))
    upstream: list[int] = [0]
    unread = {0}
    for index in range(1, count):
        read = set(draw(st.lists(st.integers(max(0, index - 6), index - 1), min_size=1, max_size=3)))
        read = unread | read if index == count - 1 else read
        unread = (unread - read) | {index}
        before = 0
        for one in read:
            before |= upstream[one] | 1 << one
        upstream.append(before)
    return upstream


def searched(upstream: list[int], snr_db: list[float], most: int) -> tuple[int | None, int]:
    """What is found from the last tensor on, and how many rounds it took."""
    search = Search(upstream, cap_db=CAP)
    search.record({len(upstream) - 1: snr_db[-1]})
    rounds = 0
    while region := search.region(THRESHOLD):
        chosen = search.choose(region, everything, most)
        assert chosen
        assert not set(chosen) & set(search.snr_db)
        search.record({index: snr_db[index] for index in chosen})
        rounds += 1
    return search.first_bad(THRESHOLD), rounds


@given(graphs(), st.data(), st.integers(1, 5))
def test_a_fault_that_reaches_the_output_is_found_wherever_it_is(
    upstream: list[int], data: st.DataObject, most: int
) -> None:
    fault = data.draw(st.integers(0, len(upstream) - 1))
    behind = [i == fault or bool(upstream[i] >> fault & 1) for i in range(len(upstream))]
    # Behind the fault the ratio changes as it likes, but a branch without it is healthy.
    snr = [data.draw(st.floats(-9, 9)) if bad else data.draw(st.floats(25, 50)) for bad in behind]
    snr[fault] = data.draw(st.floats(0, 5))  # more is lost here than may be lost again behind it
    found, rounds = searched(upstream, snr, most)
    search = Search(upstream, cap_db=CAP)
    search.record(dict(enumerate(snr)))
    assert search.first_bad(THRESHOLD) == fault
    assert found == fault
    assert rounds <= len(upstream)


def chain(count: int) -> list[int]:
    return [(1 << index) - 1 for index in range(count)]


def test_a_chain_of_a_thousand_takes_ten_rounds_of_one_tap_and_four_of_seven() -> None:
    for fault in range(0, 1000, 37):
        snr = [40.0 if index < fault else 3.0 for index in range(1000)]
        assert searched(chain(1000), snr, 1)[0] == fault
        assert searched(chain(1000), snr, 1)[1] <= 10
        assert searched(chain(1000), snr, 7)[0] == fault
        assert searched(chain(1000), snr, 7)[1] <= 4


def test_noise_that_adds_up_is_gradual_and_the_first_below_the_threshold_is_named() -> None:
    snr = [40.0 - index for index in range(40)]
    found, _ = searched(chain(40), snr, 4)
    assert found == next(index for index, value in enumerate(snr) if value < THRESHOLD)


def test_a_mask_that_outweighs_the_noise_takes_no_blame_from_the_fault() -> None:
    # MatMul is wrong, a mask of -1e4 is added, Softmax shows the fault again.
    snr = [40.0, 2.0, 90.0, -3.0]
    assert searched(chain(4), snr, 4)[0] == 1


def test_equal_and_infinitely_wrong_are_ratios_too() -> None:
    snr = [math.inf, math.inf, -math.inf, 20.0]
    search = Search(chain(4), cap_db=CAP)
    search.record(dict(enumerate(snr)))
    assert search.first_bad(THRESHOLD) == 2
    assert search.drops()[0] == 0.0
    search = Search(chain(2), cap_db=CAP)
    search.record({0: math.inf, 1: math.inf})
    assert search.first_bad(THRESHOLD) is None


def test_a_skipped_tensor_is_not_asked_for_again() -> None:
    search = Search(chain(3), cap_db=CAP)
    search.record({2: 0.0})
    search.skip(1)
    assert search.region(THRESHOLD) == [0]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(1, 10), st.integers(50, 200))
def test_groups_hold_everything_once_and_fit(costs: list[int], most: int, budget: int) -> None:
    def fits(chosen: list[int]) -> bool:
        return sum(costs[index] for index in chosen) <= budget

    groups = pack_groups(range(len(costs)), fits, most)
    assert [index for group in groups for index in group] == list(range(len(costs)))
    assert all(len(group) == 1 or (fits(group) and len(group) <= most) for group in groups)


MODEL = """
import sys

import torch

sys.path.insert(0, {support!r})
from road_models import FULL, started


def build():
    torch.manual_seed(0)
    return started(FULL[{name!r}].make())
"""


@pytest.fixture(scope="module", params=["resnet", "bert"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model.onnx`, `int8.onnx` and `data.npz` of a network."""
    from road_models import FULL

    folder, recipe = tmp_path_factory.mktemp(request.param), FULL[request.param]
    support = str(Path(__file__).parents[3] / "support")
    (folder / "net.py").write_text(MODEL.format(support=support, name=request.param))
    qcompile.export(f"{folder / 'net.py'}:build", folder / "model.onnx", inputs=list(recipe.inputs))
    generator = np.random.default_rng(0)
    if recipe.words:
        tokens = generator.integers(0, recipe.words, (8, 128))
        np.savez(folder / "data.npz", tokens=tokens, mask=np.ones_like(tokens))
    else:
        np.savez(folder / "data.npz", image=generator.standard_normal((8, 3, 224, 224), np.float32))
    data = str(folder / "data.npz")
    qcompile.calibrate(folder / "model.onnx", data, folder / "model.ranges")
    qcompile.quantize(folder / "model.onnx", folder / "int8.onnx", ranges=folder / "model.ranges")
    return folder


def layers_of_faulty(
    network: Path, model: onnx.ModelProto, layer: onnx.NodeProto, place: int, times: float, **options: Any
) -> LayerDiff:
    """Multiply an input of the DequantizeLinear of a layer's weight, and compare the layers."""
    dequantize = producers(model.graph)[layer.input[1]]
    onnx.save(perturbed(model, dequantize.input[place], times=times), network / "bad.onnx")
    files = (str(network / "model.onnx"), str(network / "bad.onnx"))
    return layer_diff(*files, data=str(network / "data.npz"), samples=4, **options)


def check(diff: LayerDiff, layer: onnx.NodeProto, model: onnx.ModelProto) -> None:
    assert diff.first_bad.node == layer.name
    assert not diff.gradual
    layers = sum(map(len, weighted_nodes(model).values()))
    assert diff.runs <= 3 + math.log2(layers)
    for side in diff.memory_bytes.values():
        assert side["tapped"] <= 1.3 * side["plain"]


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.2, 0.7])
@pytest.mark.parametrize(("place", "times"), [(0, -1.0), (1, 4.0)], ids=["values", "scale"])
def test_a_planted_fault_is_found(network: Path, place: int, times: float, part: float) -> None:
    """In the values of a weight, or in its scale."""
    model = onnx.load(network / "int8.onnx")
    layers = weighted_nodes(model)["int8"]
    layer = layers[int(part * len(layers))]
    diff = layers_of_faulty(network, model, layer, place, times)
    check(diff, layer, model)
    assert diff.complete


@pytest.mark.slow
def test_eight_taps_find_a_fault_that_the_output_shows(network: Path) -> None:
    model = onnx.load(network / "int8.onnx")
    layers = weighted_nodes(model)["int8"]
    dense = [node for node in layers if node.op_type in ("Conv", "Gemm") or "wide" in node.input[1]]
    layer = dense[len(dense) // 2]
    diff = layers_of_faulty(network, model, layer, 1, 4.0, taps=8)
    check(diff, layer, model)
    assert not diff.complete
