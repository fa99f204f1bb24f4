"""ONNX Runtime's and OpenVINO's refusals name the user's file, the operator, and a way out by their cause."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qcompile import build
from qcompile.errors import BuildError

CASES = {
    "an operator": ("float[4] x", "", "[n] y = other.Odd(x)", "Odd", "operators of ONNX"),
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
