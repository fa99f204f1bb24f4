"""Static INT8 is chosen by the outputs: methods, balanced channels, corrected biases, layers in float."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from mode_models import normal, static, written
from numpy.typing import NDArray
from written_models import model_of, outputs_of

import qcompile
from qcompile.compiler.quantize import methods, search
from qcompile.compiler.quantize.activations import observe_rows, run_samples
from qcompile.compiler.quantize.int8.static import inspect_execution
from qcompile.compiler.quantize.judge import Judge
from qcompile.compiler.quantize.request import Outcome, QuantizeRequest
from qcompile.compiler.quantize.weights.hessians import collect_hessians
from qcompile.core.artifact import Artifact
from qcompile.core.figures import counted
from qcompile.data.batches import Data
from qcompile.errors import CalibrationError, InvalidOption, QuantizationError
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import Graph, read_graph
from qcompile.model.outputs.judgement import output_error
from qcompile.spec.artifacts import QuantizeSpec
from qcompile.spec.words import GraphTarget

Floats = NDArray[np.float32]


def encoder(folder: Path) -> Path:
    """Two blocks of a post-norm encoder, whose norms have channels far larger than the others."""
    generator = np.random.default_rng(0)
    outlier = np.ones(16, np.float32)
    outlier[[3, 9]] = 60, 200

    def normal(*shape: int) -> Floats:
        return (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    model = model_of(
        """(float[N,6,16] x) => (float[N,6,16] y) {
        n = LayerNormalization(x, g1) a = MatMul(n, w1) t = Tanh(a) b = MatMul(t, w2) r = Add(b, n)
        m = LayerNormalization(r, g2) c = MatMul(m, w3) s = Tanh(c) d = MatMul(s, w4) q = Add(d, m)
        y = LayerNormalization(q, g3) }""",
        named=True, g1=outlier, g2=outlier, g3=np.ones(16, np.float32),
        w1=normal(16, 32) / outlier[:, None], w2=normal(32, 16) * 20, w3=normal(16, 32) / outlier[:, None],
        w4=normal(32, 16) * 20,
    )  # fmt: skip
    onnx.save(model, folder / "encoder.onnx")
    x = generator.standard_normal((80, 6, 16)).astype(np.float32)
    np.savez(folder / "data.npz", x=x[:64])
    np.savez(folder / "unseen.npz", x=x[64:])
    qcompile.calibrate(folder / "encoder.onnx", str(folder / "data.npz"), folder / "ranges")
    return folder


def quantized(folder: Path, target: GraphTarget = "onnxruntime", **options: Any) -> Artifact:
    return qcompile.quantize(
        folder / "encoder.onnx", folder / "q.onnx", ranges=folder / "ranges", target=target,
        **{"data": str(folder / "data.npz"), **options},
    )  # fmt: skip


def snr_db(folder: Path) -> float:
    """Of what was quantized, on samples that were never seen."""
    with np.load(folder / "unseen.npz") as file:
        x = file["x"]
    models = (onnx.load(folder / name) for name in ("encoder.onnx", "q.onnx"))
    expected, found = (outputs_of(model, x)[0] for model in models)
    return output_error(expected, found).snr_db


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder(tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt"])
def test_channels_are_smoothed_where_the_outputs_gain(folder: Path, target: GraphTarget) -> None:
    quantized(folder, target, balance=False)
    plain_db, ranges = snr_db(folder), (folder / "ranges").read_bytes()
    made = quantized(folder, target)
    assert (folder / "ranges").read_bytes() == ranges, "one file serves the balanced model too"
    assert snr_db(folder) > plain_db + 6
    proof = made.manifest.proof
    assert {"n", "m"} <= set(proof["smoothed"])
    assert all("by a multiplication" in proof["smoothed"][name] for name in ("n", "m"))
    assert "search" in made.manifest.proof


def test_the_best_of_what_was_tried_is_kept(folder: Path) -> None:
    made = quantized(folder)
    tried = made.manifest.proof["search"]
    names = [one["tried"] for one in tried]
    assert names[0] == "auto"
    assert {"smoothed", "corrected biases"} <= set(names)
    assert snr_db(folder) > 45
    # 57 dB on 16 samples do not tell which method is better on others.
    assert "minmax" not in names
    made = quantized(folder, balance=False, allow_loss=True)
    names = [one["tried"] for one in made.manifest.proof["search"]]
    assert names[-3:] == ["minmax", "percentile:99.99", "entropy"]
    # A method that is asked for is not put aside for another.
    made = quantized(folder, method="entropy", max_damage=1)
    assert not any("alone in INT8" in reason for reason in made.manifest.proof["left_in_float"].values())
    assert "minmax" not in [one["tried"] for one in made.manifest.proof["search"]]
    assert made.manifest.proof["method"] == "entropy"
    assert "search" not in quantized(folder, data=None).manifest.proof


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_the_most_damaging_layers_stay_in_float_until_it_is_enough(folder: Path, target: GraphTarget) -> None:
    plain = quantized(folder, target)
    wanted = max(one["snr_db"] for one in plain.manifest.proof["search"]) + 3
    made = quantized(folder, target, max_damage=wanted)
    assert snr_db(folder) > wanted - 10  # of 16 other samples
    left = {n: r for n, r in made.manifest.proof["left_in_float"].items() if "alone in INT8" in r}
    assert 0 < len(left) < 4
    steps = {one["tried"]: one["snr_db"] for one in made.manifest.proof["search"]}
    assert steps[f"{counted(len(left), 'layer')} in float"] >= wanted
    assert steps.get(f"{counted(len(left) - 1, 'layer')} in float", 0) < wanted  # no more than it takes
    assert made.manifest.options["max_damage"] == wanted


def test_damage_that_no_layers_spare_is_an_error(folder: Path) -> None:
    said = r"encoder.onnx: .* 3 of 4 layers in float; 300 dB is required"
    with pytest.raises(QuantizationError, match=said):
        quantized(folder, max_damage=300)
    two = [node.name for node in onnx.load(folder / "encoder.onnx").graph.node if node.op_type == "MatMul"][
        :2
    ]
    with pytest.raises(QuantizationError, match="1 of 2 layers in float"):  # the others never were in INT8
        quantized(folder, max_damage=300, only=two)
    with pytest.raises(InvalidOption, match="`max_damage` is measured on samples"):
        quantized(folder, data=None, max_damage=20)
    with pytest.raises(InvalidOption, match="`max_damage` needs a search; `search` is off"):
        quantized(folder, search=False, max_damage=20)


def hostile(folder: Path) -> Path:
    """Four products; one channel of the first one's input takes the whole range, and means nothing."""
    generator = np.random.default_rng(5)
    weights = {f"w{i}": (generator.standard_normal((16, 16)) / 4).astype(np.float32) for i in range(4)}
    weights["w0"][3] = 0.0
    nodes = " ".join(f"a{i} = MatMul(h{i}, w{i}) h{i + 1} = Tanh(a{i})" for i in range(3))
    text = "(float[N,16] x) => (float[N,16] y) { h0 = Identity(x) " + nodes + " y = MatMul(h3, w3) }"
    onnx.save(model_of(text, named=True, **weights), folder / "hostile.onnx")
    x = generator.standard_normal((64, 16)).astype(np.float32)
    x[:, 3] *= 1000
    np.savez(folder / "hostile.npz", x=x)
    qcompile.calibrate(folder / "hostile.onnx", str(folder / "hostile.npz"), folder / "hostile.ranges")
    return folder / "hostile.onnx"


def test_quantize_judges_all_samples_together_as_diff_does(tmp_path: Path) -> None:
    # The first sample is faint: alone it drowns in the noise of a scale that fits the others.
    body = "(float[N,16] x) => (float[N,8] y) { y = MatMul(x, w) }"
    model = written(tmp_path / "m.onnx", body, w=normal(16, 8, scale=1.0))
    x = normal(16, 16, scale=1.0)
    x[0] *= 0.002
    np.savez(tmp_path / "x.npz", x=x)
    made = static(model, tmp_path, method="auto")
    (check,) = made.manifest.checks
    found = qcompile.diff(str(model), str(made.path), data=str(tmp_path / "x.npz"))
    assert found
    assert check.detail.startswith(f"{found.outputs[0].snr_db:.1f} dB")


def test_layers_stay_in_float_where_diff_would_not_let_the_outputs_pass(tmp_path: Path) -> None:
    model = hostile(tmp_path)
    options: dict[str, Any] = {
        "ranges": tmp_path / "hostile.ranges",
        "data": str(tmp_path / "hostile.npz"),
        "method": "minmax",
        "balance": False,
        "correct_bias": False,
    }
    kept = qcompile.quantize(model, tmp_path / "kept.onnx", **options, allow_loss=True)
    assert any("SNR ≥ 15 dB" in warning for warning in kept.manifest.warnings)
    made = qcompile.quantize(model, tmp_path / "made.onnx", **options)
    first = onnx.load(model).graph.node[1].name
    (warning,) = made.manifest.warnings
    assert warning == f"left in float, because `diff` would reject the outputs otherwise: {first}"
    assert "alone in INT8" in made.manifest.proof["left_in_float"][first]  # type: ignore[index]
    assert made.manifest.checks[0].passed


BODY = """(float[n,16,4,4] x) => (float[n,4,4,4] y) {
    [first] a = Conv(x, w1) b = Relu(a)  [second] c = Conv(b, w2) d = Relu(c)
    [third] y = Conv(d, w3) }"""


def test_a_balanced_model_is_planned_again_without_what_stays_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uneven = normal(16, 16, 1, 1) * np.logspace(-2, 2, 16, dtype=np.float32)[:, None, None, None]
    weights = {"w1": uneven, "w2": normal(16, 16, 1, 1), "w3": normal(4, 16, 1, 1)}
    model = written(tmp_path / "m.onnx", BODY, **weights)
    np.savez(tmp_path / "x.npz", x=normal(32, 16, 4, 4, scale=1.0))
    monkeypatch.setattr(search, "LEAST_GAIN_DB", -1000.0)  # balanced in any case

    def without_first(graph: Graph, planned: list[str], **options: bool) -> object:
        counts, missed, run = inspect_execution(graph, planned, **options)
        return counts, {**missed, **({"first": "for a test"} if "first" in planned else {})}, run

    monkeypatch.setattr(methods, "inspect_execution", without_first)
    artifact = static(model, tmp_path)
    assert artifact.manifest.proof["equalized_pairs"]
    left = artifact.manifest.proof["left_in_float"]
    assert isinstance(left, dict)
    assert "first" in left
    graph = onnx.load(artifact.path).graph
    sources = {output: node.op_type for node in graph.node for output in node.output}
    (first,) = [node for node in graph.node if node.name == "first"]
    assert "DequantizeLinear" not in {sources.get(name) for name in first.input[1:]}


def test_what_gains_by_computing_fewer_layers_in_integers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"w1": normal(16, 16, 1, 1), "w2": normal(16, 16, 1, 1), "w3": normal(4, 16, 1, 1)}
    model = written(tmp_path / "m.onnx", BODY, **weights)
    np.savez(tmp_path / "x.npz", x=normal(32, 16, 4, 4, scale=1.0))
    calls: list[Path] = []

    def without_first_later(graph: Graph, planned: list[str], **options: bool) -> object:
        calls.append(graph.path)
        counts, missed, run = inspect_execution(graph, planned, **options)
        more = {"first": "for a test"} if len(calls) > 1 and "first" in planned else {}
        return counts, missed | more, run

    monkeypatch.setattr(methods, "inspect_execution", without_first_later)
    proof = static(model, tmp_path, balance=False, method="auto").manifest.proof
    assert proof["nodes_by_precision"]["int8"] == {"Conv": 3}  # type: ignore[index]
    refused = [entry.get("refused") for entry in proof["search"]]  # type: ignore[attr-defined]
    assert "fewer layers are computed in integers" in refused


FLOAT = "(float[N,64] x) => (float[N,64] y, float[N,64] z) { y = Add(x, a) z = Add(x, b) }"


@pytest.mark.parametrize("worse", ["a", "b"])
def test_a_graph_is_worth_as_much_as_its_worst_output(tmp_path: Path, worse: str) -> None:
    x = np.random.default_rng(0).choice([-1.0, 1.0], (48, 64)).astype(np.float32)  # of power 1
    x[31] = 1000.0  # the last sample that is learnt from: candidates are judged on those behind it
    np.savez(tmp_path / "x.npz", x=x)

    def model(**added: float) -> onnx.ModelProto:
        return model_of(FLOAT, **{name: np.full(1, added.get(name, 0.0), np.float32) for name in "ab"})

    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    judge = Judge(QuantizeRequest(read_graph(path), "sha256:00", QuantizeSpec(data=str(tmp_path / "x.npz"))))
    better = "a" if worse == "b" else "b"
    judged = judge(Outcome(model(**{worse: 0.5, better: 0.1}), {}))
    assert judged.snr_db == pytest.approx(10 * math.log10(1 / 0.25), abs=1e-3)
    assert {one.output: one.passed for one in judged.outputs} == {"y": worse != "a", "z": worse != "b"}
    assert [one.output for one in judged.failed] == ["y" if worse == "a" else "z"]
    assert judge(Outcome(model(), {})).snr_db == math.inf


MODELS = {
    "a running sum over time": "a = CumSum(x, first) y = MatMul(a, w)",
    "a state over time": """
        u = Unsqueeze(x, second) h = RNN <hidden_size = 4> (u, in, by) a = Squeeze(h, both) y = MatMul(a, w)
    """,
    "attention between rows": """
        t = Transpose(x) m = MatMul(x, t) s = Softmax(m) a = MatMul(s, x) y = MatMul(a, w)
    """,
}


def model_and_data(body: str, batches: list[NDArray[np.float32]], folder: Path) -> tuple[Path, Data]:
    weights: dict[str, NDArray[Any]] = {
        "w": normal(4, 3), "in": normal(1, 4, 4), "by": normal(1, 4, 4), "first": np.array(0),
        "second": np.array([1]), "both": np.array([1, 2]),
    }  # fmt: skip
    read = {name: array for name, array in weights.items() if re.search(rf"\b{name}\b", body)}
    model = model_of(f"(float[n, 4] x) => (float[n, 3] y) {{ {body} }}", **read)
    onnx.save(model, folder / "m.onnx")
    (folder / "d").mkdir()
    for index, batch in enumerate(batches):
        np.save(folder / "d" / f"{index}.npy", batch)
    return folder / "m.onnx", Data(str(folder / "d"), model_io(model).inputs)


@pytest.mark.parametrize("name", MODELS)
def test_rows_that_meet_in_the_model_are_run_together(name: str, tmp_path: Path) -> None:
    batches = [normal(7, 4), normal(5, 4)]
    batches[0][:2] = 0  # two samples of zeros are the same alone and together, whatever the model does
    path, data = model_and_data(MODELS[name], batches, tmp_path)
    whole = np.concatenate([outputs_of(path, batch, "a")[0] for batch in batches])
    found = observe_rows(read_graph(path), {"a": -1}, data)["a"].amax
    np.testing.assert_allclose(found, np.abs(whole).max(axis=0), rtol=1e-5)
    hessian = collect_hessians(read_graph(path), ["a"], data, limit=100)["a"]
    np.testing.assert_allclose(hessian, 2 * whole.T @ whole, rtol=1e-4, atol=1e-4)


def test_samples_of_a_batch_axis_are_run_one_by_one(tmp_path: Path) -> None:
    path, data = model_and_data("a = Relu(x) y = MatMul(a, w)", [normal(7, 4), normal(5, 4)], tmp_path)
    for limit in (None, 1, 7, 9):
        extents = [arrays["a"].shape[0] for arrays in run_samples(read_graph(path), ["a"], data, limit)]
        assert extents == [1] * (limit or 12)


def three_hostile(folder: Path, rest: str) -> Artifact:
    """Quantize three products whose input has a channel that no weight reads, and others behind `i`."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((64, 3, 24)).astype(np.float32)
    scales = np.ones((3, 24), np.float32)
    scales[:, 0] = 60, 10, 10  # it takes the levels
    np.savez(folder / "d.npz", x=x)
    small = generator.standard_normal((3, 24, 8)).astype(np.float32)
    small[:, 0] = 1e-4
    model = model_of(
        """(float[N, 3, 24] x) => (float[N, 8] y) <float[72, 128] u, float[128, 128] m, float[128, 8] v> {
        a, b, c = Split<axis = 1>(x, ones) d = Squeeze(a, one) e = Squeeze(b, one) f = Squeeze(c, one)
        a0 = Mul(d, k0) b0 = Mul(e, k1) c0 = Mul(f, k2)
        p = MatMul(a0, w0) q = MatMul(b0, w1) r = MatMul(c0, w2) s = Add(p, q) t = Add(s, r)
        g = Concat<axis = 1>(d, e, f) h = Tanh(g) i = MatMul(h, u)
        """ + rest + """ z = MatMul(o, v) y = Add(t, z) }""",
        named=True, ones=np.array([1, 1, 1]), one=np.array([1]),
        w0=small[0], w1=small[1], w2=small[2], k0=scales[0], k1=scales[1], k2=scales[2],
    )  # fmt: skip
    onnx.save(model, folder / "m.onnx")
    qcompile.calibrate(folder / "m.onnx", str(folder / "d.npz"), folder / "m.ranges")
    return qcompile.quantize(
        folder / "m.onnx", folder / "q.onnx", ranges=folder / "m.ranges",
        data=str(folder / "d.npz"), balance=False, method="minmax",
    )  # fmt: skip


def test_more_than_half_of_the_layers_stay_in_float_where_they_are_little_of_the_arithmetic(
    tmp_path: Path,
) -> None:
    """It was refused: 25 of 32 convolutions of a transcriber are the filters of its spectrogram."""
    made = three_hostile(tmp_path, "o = Tanh(i)")
    assert made.manifest.proof["nodes_by_precision"]["int8"] == {"MatMul": 2}  # type: ignore[index]


def test_layers_stay_in_float_up_to_the_knee(tmp_path: Path) -> None:
    """Three hostile products, of which one makes the difference between refused and passing.

    The search stopped there, a little above what `diff` asks for: the other two are 1% of the arithmetic.
    """
    made = three_hostile(tmp_path, "j = Tanh(i) k = MatMul(j, m) l = Tanh(k) n = MatMul(l, m) o = Tanh(n)")
    tried: Any = made.manifest.proof["search"]
    enough = {one["tried"]: one["snr_db"] for one in tried if one["snr_db"] >= 16}
    assert enough["1 layer in float"] < 30  # where it stopped
    assert enough["3 layers in float"] > 40
    left: Any = made.manifest.proof["left_in_float"]
    assert sorted(left) == ["matmul7", "matmul8", "matmul9"]
    assert sum("worth its time with others" in reason for reason in left.values()) in (1, 2)
    (warning,) = made.manifest.warnings
    assert warning.startswith("left in float, because `diff` would reject the outputs otherwise")


def test_a_refusal_names_the_layers_that_lose_most(tmp_path: Path) -> None:
    """It said 'try another method' after a search that had shown that none helps."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((48, 16)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x)
    scale = np.ones(16, np.float32)
    scale[0] = 3000  # no weight reads it
    weights = generator.standard_normal((2, 16, 16)).astype(np.float32)
    weights[:, 0] = 0
    model = model_of(
        """(float[N, 16] x) => (float[N, 16] y) {
        a = Mul(x, s) p = MatMul(a, w0) b = Mul(p, s) y = MatMul(b, w1) }""",
        named=True, s=scale, w0=weights[0], w1=weights[1],
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "d.npz"), tmp_path / "m.ranges")
    with pytest.raises(QuantizationError) as caught:
        qcompile.quantize(
            tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=tmp_path / "m.ranges",
            data=str(tmp_path / "d.npz"), balance=False, method="minmax",
        )  # fmt: skip
    assert re.search(
        r"with \d of 2 layers in float; 16 dB is required; most is lost in matmul[13], matmul[13]$",
        caught.value.message,
    )
    assert caught.value.hint.startswith("INT8 does not suit this model")


def test_a_network_of_lstms_is_told_of_dynamic_int8(tmp_path: Path) -> None:
    model = model_of(
        """(float[4, 2, 8] x) => (float[4, 1, 2, 16] y) <float[1, 64, 8] w, float[1, 64, 16] r>
        { y, a, b = LSTM<hidden_size = 16>(x, w, r) }""",
        named=True,
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.ones((4, 2, 8), np.float32))
    qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "d.npz"), tmp_path / "m.ranges")
    with pytest.raises(QuantizationError, match="nothing to quantize") as caught:
        qcompile.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=tmp_path / "m.ranges")
    assert "`mode` dynamic computes LSTM in 8 bits" in caught.value.hint


def test_a_recurrence_written_as_a_loop_is_said_to_stay_in_float(tmp_path: Path) -> None:
    body = onnx.parser.parse_graph(
        "body (int64 n, bool c, float[2, 8] h) => (bool d, float[2, 8] k) "
        "<float[8, 8] w = {" + ",".join(["0.1"] * 64) + "}> { d = Identity(c) m = MatMul(h, w) k = Tanh(m) }"
    )
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)], "g",
        [onnx.helper.make_tensor_value_info("x", 1, [2, 8])],
        [onnx.helper.make_tensor_value_info("y", 1, [2, 8])],
        [onnx.numpy_helper.from_array(np.int64(3), "count")],
    )  # fmt: skip
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.ones((2, 8), np.float32))
    with pytest.raises(CalibrationError, match="no operator would be quantized") as caught:
        qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "d.npz"), tmp_path / "m.ranges")
    assert caught.value.hint.startswith("products inside Loop, Scan and If stay in float")


def test_dynamic_int8_is_named_where_it_loses_much_less(tmp_path: Path) -> None:
    """Samples of very different magnitude: one scale for all of them loses the small ones."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((64, 16, 32)).astype(np.float32)
    x *= np.exp(generator.uniform(-5, 5, (64, 1, 1))).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x)
    model = model_of(
        """(float[N, 16, 32] x) => (float[N, 16, 8] y) <float[32, 32] u, float[32, 8] v>
        { p = MatMul(x, u) n = LayerNormalization(p, g) y = MatMul(n, v) }""",
        named=True,
        g=np.ones(32, np.float32),
    )
    onnx.save(model, tmp_path / "m.onnx")
    qcompile.calibrate(tmp_path / "m.onnx", str(tmp_path / "d.npz"), tmp_path / "m.ranges")
    made = qcompile.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=tmp_path / "m.ranges", allow_loss=True,
        data=str(tmp_path / "d.npz"),
    )  # fmt: skip
    (warning,) = [text for text in made.manifest.warnings if "dynamic" in text]
    assert re.match(r"`mode` dynamic has [\d.]+ dB on the data, where static INT8 has [\d.-]+:", warning)
