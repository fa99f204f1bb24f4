"""ONNX Runtime's and OpenVINO's refusals name the user's file, the operator, and a way out by their cause."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from written_models import model_of

from qcompile import build
from qcompile.errors import BuildError, IntentNotReached

CASES = {
    "an operator": ("float[4] x", "", "[n] y = other.Odd(x)", "Odd", "ONNX operators"),
    "types": ("float[4] x", "int64[4] w = {1, 2, 3, 4}", "[n] y = Add(x, w)", "type", "cast the inputs"),
    "shapes": ("float[2,4] x", "float[3] w = {1, 2, 3}", "[n] y = Add(x, w)", "Add", "contradict"),
}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("case", CASES)
def test_a_refusal_has_the_way_out_of_its_cause(
    case: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(target)
    inputs, stored, nodes, said, way_out = CASES[case]
    monkeypatch.chdir(tmp_path)
    text = f"""<ir_version: 8, opset_import: ["" : 17, "other" : 1]>
        g ({inputs}) => (float[N] y) <{stored}> {{ {nodes} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, "mine.onnx")
    with pytest.raises(BuildError, match=rf"^mine\.onnx: .* refuses it: .*{said}") as caught:
        build("mine.onnx", "o.onnx", target=target)  # type: ignore[arg-type]
    assert way_out in caught.value.hint
    assert "/tmp" not in caught.value.message
    assert "Load model from" not in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["mine.onnx"]


def test_an_engine_without_a_layer_in_its_precision_says_why(tmp_path: Path) -> None:
    """It said "0 of 0 layers reached it"; before, that the parser refuses an LSTM of halves with lengths."""
    pytest.importorskip("tensorrt_rtx")
    text = """(float[5,1,8] x, int32[1] n) => (float[5,1,1,4] y) <float[1,16,8] w, float[1,16,4] r> {
        [lstm] h = LSTM <hidden_size = 4> (x, w, r, , n) y = Relu(h) }"""
    onnx.save(model_of(text), tmp_path / "m.onnx")
    with pytest.raises(IntentNotReached, match=r"lstm \(100\.0%: with sequence lengths"):
        build(
            tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", precision="fp16", gpus=["sm86"]
        )
