"""Static INT8 is chosen by the outputs: methods, balanced channels, corrected biases, layers in float."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from written_models import model_of, outputs_of

import qcompile
from qcompile.artifact import Artifact
from qcompile.calibration import load_ranges
from qcompile.errors import InvalidOption, QuantizationError
from qcompile.model.output_error import output_error
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
    plain_db = snr_db(folder)
    made = quantized(folder, target)
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
    assert names[-3:] == ["minmax", "percentile:99.99", "entropy"]
    assert {"smoothed", "corrected biases"} <= set(names)
    assert snr_db(folder) > 45
    # A method that is asked for is not put aside for another.
    made = quantized(folder, method="entropy")
    assert "minmax" not in [one["tried"] for one in made.manifest.proof["search"]]
    assert made.manifest.proof["method"] == "entropy"


def test_one_ranges_file_serves_the_balanced_model_too(folder: Path) -> None:
    before = (folder / "ranges").read_bytes()
    made = quantized(folder)
    assert made.manifest.proof["smoothed"]
    assert (folder / "ranges").read_bytes() == before
    assert not any("smoothed" in name for name in load_ranges(folder / "ranges").names())


def test_nothing_is_searched_without_data(folder: Path) -> None:
    made = quantized(folder, data=None)
    assert "search" not in made.manifest.proof
    assert "search" not in made.manifest.proof


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_the_most_damaging_layers_stay_in_float_until_it_is_enough(folder: Path, target: GraphTarget) -> None:
    plain = quantized(folder, target)
    wanted = max(one["snr_db"] for one in plain.manifest.proof["search"]) + 3
    made = quantized(folder, target, max_damage=wanted)
    assert snr_db(folder) > wanted - 5
    left = {n: r for n, r in made.manifest.proof["left_in_float"].items() if "alone in INT8" in r}
    assert 0 < len(left) < 4
    steps = {one["tried"]: one["snr_db"] for one in made.manifest.proof["search"]}
    assert steps[f"{len(left)} layers in float"] >= wanted
    assert steps.get(f"{len(left) - 1} layers in float", 0) < wanted  # no more than it takes
    assert made.manifest.options["max_damage"] == wanted


def test_damage_that_no_layers_spare_is_an_error(folder: Path) -> None:
    with pytest.raises(
        QuantizationError, match=r"encoder.onnx: .* 3 of 4 layers in float; 300 dB is required"
    ):
        quantized(folder, max_damage=300)
    with pytest.raises(InvalidOption, match="`max_damage` is measured on samples"):
        quantized(folder, data=None, max_damage=20)
    with pytest.raises(InvalidOption, match="`max_damage` needs a search; `search` is off"):
        quantized(folder, search=False, max_damage=20)


def test_what_is_good_enough_already_stays_as_it_is(folder: Path) -> None:
    made = quantized(folder, max_damage=1)
    assert not any("alone in INT8" in reason for reason in made.manifest.proof["left_in_float"].values())


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
    weights = np.random.default_rng(5).standard_normal((16, 8)).astype(np.float32)
    onnx.save(
        model_of("(float[N,16] x) => (float[N,8] y) { y = MatMul(x, w) }", named=True, w=weights),
        tmp_path / "m.onnx",
    )
    (tmp_path / "data.py").write_text(
        "import numpy as np\n\n\ndef samples():\n    generator = np.random.default_rng(0)\n"
        "    for number in range(16):\n        faint = 0.002 if number == 0 else 1\n"
        "        yield {'x': generator.standard_normal((1, 16)).astype(np.float32) * np.float32(faint)}\n"
    )
    data = f"{tmp_path / 'data.py'}:samples"
    qcompile.calibrate(tmp_path / "m.onnx", data, tmp_path / "m.ranges")
    made = qcompile.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", ranges=tmp_path / "m.ranges", data=data
    )
    (check,) = made.manifest.checks
    found = qcompile.diff(str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx"), data=data)
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
    assert warning == f"left in float, because `diff` would not let the outputs pass otherwise: {first}"
    assert "alone in INT8" in made.manifest.proof["left_in_float"][first]  # type: ignore[index]
    assert made.manifest.checks[0].passed
