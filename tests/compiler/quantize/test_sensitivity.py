"""The damage of each layer, against models in which that one layer is quantized by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mode_models import Floats
from onnx import numpy_helper
from written_models import model_of, normal, outputs_of

import qcompile
from qcompile.calibration import Ranges, load_ranges
from qcompile.compiler.quantize.sensitivity import LayerSensitivity, rank_layers
from qcompile.data.batches import Data
from qcompile.errors import InvalidOption
from qcompile.model.graph.graph import model_io
from qcompile.spec.words import CPU_TARGETS, GraphTarget, Isa

Feeds = dict[str, Floats]
pytestmark = pytest.mark.usefixtures("pieces")


@pytest.fixture(params=[1, 9])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut graphs behind every layer, and not at all: what a layer damages does not depend on it."""
    monkeypatch.setattr("qcompile.compiler.quantize.sensitivity._LAYERS", request.param)


named_model = partial(model_of, named=True)
TARGETS: tuple[GraphTarget, ...] = ("onnxruntime", "openvino", "tensorrt")


def fake(values: Floats, low: float, high: float, *, symmetric: bool) -> Floats:
    """Rounded to 8 bits and back, in numpy."""
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        scale = max(-low, high) / 127
        return (np.clip(np.rint(values / scale), -128, 127) * scale).astype(np.float32)
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    return ((np.clip(np.rint(values / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)


def rounded_weight(weight: Floats, axis: int) -> Floats:
    """One scale for each output channel."""
    rows = np.moveaxis(weight, axis, 0)
    peaks = np.abs(rows).reshape(len(rows), -1).max(axis=1)
    steps = np.where(peaks > 0, peaks / 127, 1).reshape(-1, *[1] * (rows.ndim - 1))
    values = np.moveaxis(np.rint(rows / steps) * steps, 0, axis)
    return np.ascontiguousarray(values).astype(np.float32)


def by_hand(
    model: onnx.ModelProto, layer: str, axis: int, ranges: Ranges, target: GraphTarget, samples: list[Feeds]
) -> float:
    """The noise of the outputs with one layer quantized: run up to it, round, run it, run on from it."""
    node = next(node for node in model.graph.node if node.name == layer)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    alone, rest = onnx.ModelProto(), onnx.ModelProto()
    for copy in (alone, rest):
        copy.CopyFrom(model)
        copy.graph.input.append(onnx.helper.make_tensor_value_info("fed", 1, None))
    twin = next(n for n in alone.graph.node if n.name == layer)
    twin.input[0], twin.input[1] = "fed", "rounded_weight"
    rounded = rounded_weight(stored[node.input[1]], axis)
    alone.graph.initializer.append(numpy_helper.from_array(rounded, "rounded_weight"))
    passed = next(n for n in rest.graph.node if n.name == layer)
    passed.CopyFrom(onnx.helper.make_node("Identity", ["fed"], [node.output[0]]))

    def as_stored(name: str, values: Floats) -> Floats:
        symmetric = target == "tensorrt"
        weighted = ("Conv", "MatMul", "Gemm")
        multiplied = any(n.op_type in weighted and n.input[0] == name for n in model.graph.node)
        low, _ = ranges.limits(name, symmetric=False)
        # OpenVINO's products take a zero point.
        symmetric |= target == "openvino" and low < 0 and not multiplied
        return fake(values, *ranges.limits(name, symmetric=symmetric), symmetric=symmetric)

    total, inputs = 0.0, {value.name for value in model.graph.input}
    source, result = node.input[0], node.output[0]
    behind = [n for n in model.graph.node if result in n.input]
    scaled = behind[0].output[0] if [n.op_type for n in behind] == ["Relu"] else result
    for feeds in samples:
        value = feeds[source] if source in inputs else outputs_of(model, feeds, source)[0]
        made = outputs_of(alone, {**feeds, "fed": as_stored(source, value)}, result)[0]
        if target == "onnxruntime" and node.op_type == "Conv":
            made = as_stored(scaled, made)  # its kernel writes integers
        clean, noisy = outputs_of(model, feeds), outputs_of(rest, {**feeds, "fed": made})
        shares = [np.square(n - c).sum() / np.square(c).sum() for c, n in zip(clean, noisy, strict=True)]
        total += float(np.mean(shares))
    return total / len(samples)


class Bench:
    """A model with its data and its ranges."""

    def __init__(self, folder: Path, model: onnx.ModelProto, arrays: Feeds, batch: int = 1) -> None:
        self.model, self.folder = model, folder
        self.path, self.data = folder / "m.onnx", folder / "d.npz"
        onnx.save(model, self.path)
        np.savez(self.data, **arrays)
        count = len(next(iter(arrays.values())))
        self.samples = [
            {name: array[i : i + batch] for name, array in arrays.items()} for i in range(0, count, batch)
        ]
        made = qcompile.calibrate(
            self.path, str(self.data), folder / "r", targets=list(TARGETS), method="minmax"
        )
        self.ranges = load_ranges(made.path)

    def rank(
        self, target: GraphTarget, *, isa: Isa = "avx512-vnni", exclude: tuple[str, ...] = ()
    ) -> list[LayerSensitivity]:
        data = Data(str(self.data), model_io(self.model).inputs, batch_size=1)
        return rank_layers(self.model, target, self.ranges, data, isa=isa, exclude=exclude)

    def check(self, target: GraphTarget, axes: dict[str, int]) -> list[LayerSensitivity]:
        """Rank with weights of eight bits, and compare every layer with what was done by hand."""
        ranked = self.rank(target)
        assert {one.layer for one in ranked} == set(axes)
        assert [one.noise for one in ranked] == sorted((one.noise for one in ranked), reverse=True)
        for one in ranked:
            expected = by_hand(self.model, one.layer, axes[one.layer], self.ranges, target, self.samples)
            assert one.noise == pytest.approx(expected, rel=0.02), (target, one.layer)
            assert one.snr_db == pytest.approx(-10 * np.log10(expected), abs=0.1)
        return ranked


def convolutions(batch: str = "N") -> onnx.ModelProto:
    """Three convolutions, one of them grouped, a residual Add, and a Gemm."""
    return named_model(
        f"""(float[{batch},4,6,6] x) => (float[{batch},3] y) {{
        c1 = Conv<pads=[1,1,1,1]>(x, w1, b1) r1 = Relu(c1) c2 = Conv<pads=[1,1,1,1], group=2>(r1, w2)
        r2 = Relu(c2) c3 = Conv(r2, w3, b3) a = Add(c3, r1) g = GlobalAveragePool(a) f = Flatten(g)
        y = Gemm<transB=1>(f, w4, b4) }}""",
        w1=normal(4, 4, 3, 3), b1=normal(4), w2=normal(4, 2, 3, 3), w3=normal(4, 4, 1, 1), b3=normal(4),
        w4=normal(3, 4), b4=normal(3),
    )  # fmt: skip


AXES = {"conv0": 0, "conv2": 0, "conv4": 0, "gemm8": 0}


@pytest.mark.parametrize("target", TARGETS)
def test_damage_is_that_of_one_layer_quantized_by_hand(target: GraphTarget, tmp_path: Path) -> None:
    Bench(tmp_path, convolutions(), {"x": normal(6, 4, 6, 6)}).check(target, AXES)


def test_stored_tensors_may_be_sparse(tmp_path: Path) -> None:
    ranked = []
    for name in ("dense", "sparse"):
        model = convolutions()
        model.graph.node[-1].output[0] = "sum"
        model.graph.node.append(onnx.helper.make_node("Add", ["sum", "shift"], ["y"], "shift"))
        if name == "dense":
            model.graph.initializer.append(numpy_helper.from_array(np.float32([0, 3, 0]), "shift"))
        else:
            values, indices = np.float32([3]), np.int64([1])
            model.graph.sparse_initializer.append(
                onnx.helper.make_sparse_tensor(
                    numpy_helper.from_array(values, "shift"), numpy_helper.from_array(indices, "places"), [3]
                )
            )
        (tmp_path / name).mkdir()
        bench = Bench(tmp_path / name, model, {"x": np.stack([normal(4, 6, 6)] * 2)})
        ranked.append(bench.rank("openvino"))
    assert ranked[0] == ranked[1]
    assert len(ranked[0]) == len(AXES)


def test_a_fixed_batch_is_fed_whole(tmp_path: Path) -> None:
    bench = Bench(tmp_path, convolutions("3"), {"x": normal(6, 4, 6, 6)}, batch=3)
    bench.check("onnxruntime", AXES)


@pytest.mark.parametrize("target", ["openvino", "tensorrt"])
def test_transposed_convolutions_are_rounded_by_output_channel(target: GraphTarget, tmp_path: Path) -> None:
    model = named_model(
        """(float[N,3,4,4] x) => (float[N,2,9,9] y) {
        c = Conv(x, w1) y = ConvTranspose<strides=[2,2]>(c, w2) }""",
        w1=normal(8, 3, 1, 1),
        w2=normal(8, 2, 3, 3) * np.array([1, 30], np.float32).reshape(1, 2, 1, 1),
    )
    Bench(tmp_path, model, {"x": normal(4, 3, 4, 4)}).check(target, {"conv0": 0, "convtranspose1": 1})


@pytest.mark.parametrize("target", TARGETS)
def test_several_inputs_and_outputs_and_shared_weights(target: GraphTarget, tmp_path: Path) -> None:
    model = named_model(
        """(float[N,8] x, float[N,8] z) => (float[N,8] y, float[N,8] v) {
        a = MatMul(x, w) b = Gemm<transB=1>(z, w) s = Add(a, b) r = Relu(s)
        y = MatMul(r, w) t = Tanh(b) v = MatMul(t, u) }""",
        w=normal(8, 8) * np.geomspace(0.01, 3, 8, dtype=np.float32), u=normal(8, 8, seed=2),
    )  # fmt: skip
    bench = Bench(tmp_path, model, {"x": normal(5, 8), "z": normal(5, 8, seed=1)})
    bench.check(target, {"matmul0": 1, "gemm1": 0, "matmul4": 1, "matmul6": 1})


def test_what_is_excluded_may_be_behind_a_choice_of_elements(tmp_path: Path) -> None:
    model = model_of(
        """(float[N,8] x) => (int64[2,M] y) <float zero = {0}> {
        [first] a = MatMul(x, w) b = Tanh(a) [second] c = MatMul(b, v)
        [post_above] d = Greater(c, zero) [post_places] y = NonZero(d) }""",
        w=normal(8, 8), v=normal(8, 8, seed=1),
    )  # fmt: skip
    bench = Bench(tmp_path, model, {"x": normal(5, 8)})
    for behind in ("post_*", "NonZero"):
        assert [one.layer for one in bench.rank("openvino", exclude=(behind, "first"))] == ["second"]


def products() -> onnx.ModelProto:
    """Two products with Tanh between them."""
    return named_model(
        "(float[N,16] x) => (float[N,16] y) { a = MatMul(x, w1) r = Tanh(a) y = MatMul(r, w2) }",
        w1=normal(16, 32),
        w2=normal(32, 16) * np.geomspace(0.03, 3, 32, dtype=np.float32)[:, None],
    )


@pytest.mark.parametrize("pieces", [9], indirect=True)
@pytest.mark.parametrize(
    ("target", "isa"),
    [*((target, isa) for target in CPU_TARGETS for isa in ("avx512-vnni", "avx2")), ("tensorrt", "auto")],
)
@pytest.mark.parametrize(
    ("make", "shape"), [(products, (32, 16)), (convolutions, (48, 4, 6, 6))], ids=["products", "convolutions"]
)
def test_the_real_quantizer_does_the_same_damage(
    make: Callable[[], onnx.ModelProto], shape: tuple[int, ...], target: GraphTarget, isa: Isa, tmp_path: Path
) -> None:
    """The damage is read from the files as they are written, so that the kernels of no processor matter."""
    bench = Bench(tmp_path, make(), {"x": normal(*shape)})
    ranked = bench.rank(target, isa=isa)
    adds = [node.name for node in bench.model.graph.node if node.op_type == "Add"]  # TensorRT rounds there
    assert len(ranked) == sum(node.op_type in ("Conv", "MatMul", "Gemm") for node in bench.model.graph.node)
    for one in ranked:
        made = qcompile.quantize(
            bench.path, tmp_path / f"{one.layer}.onnx", ranges=bench.ranges, target=target, isa=isa,
            only=[one.layer], exclude=adds,
        )  # fmt: skip
        real = onnx.load(made.path)
        noise = []
        for feeds in bench.samples:
            clean, noisy = outputs_of(bench.model, feeds)[0], outputs_of(real, feeds)[0]
            noise.append(float(np.square(noisy - clean).sum() / np.square(clean).sum()))
        assert one.noise == pytest.approx(np.mean(noise), rel=0.1), one.layer


def test_what_a_convolution_writes_as_integers_is_its_damage_too(tmp_path: Path) -> None:
    scale = np.ones((6, 1, 1, 1), np.float32)
    scale[2] = 3000
    model = named_model(
        """(float[N,4,6,6] x) => (float[N,3,6,6] y) { c = Conv(x, w1) r = Relu(c) d = Conv(r, w2)
        s = Relu(d) y = Conv(s, w3) }""",
        w1=normal(6, 4, 1, 1) * scale,
        w2=normal(6, 6, 1, 1) / scale.reshape(1, -1, 1, 1),
        w3=normal(3, 6, 1, 1),
    )
    bench = Bench(tmp_path, model, {"x": normal(4, 4, 6, 6)})
    # In ONNX Runtime leaving the reader in float is no help while the outlier is written in eight bits.
    first, second, third = bench.check("onnxruntime", {"conv0": 0, "conv2": 0, "conv4": 0})
    assert {first.layer, second.layer} == {"conv0", "conv2"}
    assert second.noise > 20 * third.noise
    first, second, _ = bench.check("openvino", {"conv0": 0, "conv2": 0, "conv4": 0})
    assert first.layer == "conv2"
    assert first.noise > 20 * second.noise


def test_only_layers_that_would_be_quantized_are_ranked(
    tiny: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    bench = Bench(tmp_path, tiny("residual"), {"x": normal(4, 4, 8, 8)})
    before = bench.model.SerializeToString()
    assert {one.layer for one in bench.rank("onnxruntime")} == {"conv1", "conv2", "gemm"}
    assert {one.layer for one in bench.rank("onnxruntime", exclude=("Conv",))} == {"gemm"}
    assert bench.rank("onnxruntime", exclude=("Conv", "gem*")) == []
    assert bench.model.SerializeToString() == before
    with pytest.raises(InvalidOption, match="'nothing'"):
        bench.rank("onnxruntime", exclude=("nothing",))


def test_a_layer_that_loses_nothing_has_no_noise(tmp_path: Path) -> None:
    model = named_model(
        "(float[N,4] x) => (float[N,2] y) { a = MatMul(x, w1) r = Relu(a) y = MatMul(r, w2) }",
        w1=np.zeros((4, 4), np.float32),
        w2=normal(4, 2),
    )
    ranked = Bench(tmp_path, model, {"x": normal(3, 4)}).rank("onnxruntime")
    assert [one.noise for one in ranked] == [0.0, 0.0]
    assert ranked[0].snr_db == float("inf")


def test_products_of_two_activations_are_ranked_too(tmp_path: Path) -> None:
    model = named_model(
        """(float[N,5,8] x) => (float[N,5,5] y) { q = MatMul(x, w1) k = MatMul(x, w2)
        t = Transpose<perm=[0,2,1]>(k) y = MatMul(q, t) }""",
        w1=normal(8, 8), w2=normal(8, 8, seed=1),
    )  # fmt: skip
    bench = Bench(tmp_path, model, {"x": normal(4, 5, 8)})
    ranked = {one.layer: one.noise for one in bench.rank("openvino")}
    both = 0.0
    for feeds in bench.samples:
        q, t, y = outputs_of(model, feeds, "q", "t", "y")
        q, t = (fake(a, *bench.ranges.limits(n), symmetric=True) for a, n in ((q, "q"), (t, "t")))
        both += float(np.square(q @ t - y).sum() / np.square(y).sum())
    assert ranked["matmul3"] == pytest.approx(both / len(bench.samples), rel=0.02)
    # Kernels that add two products in 16 bits do not multiply activations.
    assert {one.layer for one in bench.rank("openvino", isa="avx2")} == {"matmul0", "matmul1"}


@pytest.mark.parametrize("pieces", [9], indirect=True)
@pytest.mark.parametrize(("hostile", "scale"), [(32, 22), (2, 90)])
def test_layers_that_lose_alike_are_not_tried_in_float(tmp_path: Path, hostile: int, scale: int) -> None:
    """Each is 3% of the arithmetic, and of the noise, unless a channel takes the levels of two alone."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((64, 32, 24)).astype(np.float32)
    weights = {f"w{layer}": generator.standard_normal((24, 8)).astype(np.float32) for layer in range(32)}
    numbers = {f"i{layer}": np.array(layer) for layer in range(32)}
    for layer in range(hostile):
        x[:, layer, 0] *= scale
        weights[f"w{layer}"][0] = 1e-4
    np.savez(tmp_path / "d.npz", x=x)
    body = " ".join(
        f"a{layer} = Gather<axis = 1>(x, i{layer}) b{layer} = Mul(a{layer}, one) "
        f"p{layer} = MatMul(b{layer}, w{layer})" for layer in range(32)
    )  # fmt: skip
    sums = " ".join(f"s{layer} = Add(s{layer - 1}, p{layer})" for layer in range(1, 32))
    model = named_model(
        f"(float[N, 32, 24] x) => (float[N, 8] y) {{ {body} s0 = Identity(p0) {sums} y = Identity(s31) }}",
        one=np.ones(24, np.float32), **weights, **numbers,
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "d.npz"), tmp_path / "m.ranges")
    made = qcompile.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=tmp_path / "m.ranges",
        data=str(tmp_path / "d.npz"), balance=False, method="minmax",
    )  # fmt: skip
    tried: Any = made.manifest.proof["search"]
    assert 16.5 < tried[0]["snr_db"] < 20
    assert any("in float" in one["tried"] for one in tried) == (hostile == 2)
