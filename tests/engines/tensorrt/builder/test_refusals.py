"""Each cause for which TensorRT's parser refuses a graph has its way out; the node at fault is named."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qcompile import build
from qcompile.engines.tensorrt.builder.refusals import hint_for
from qcompile.errors import QCompileError

pytest.importorskip("tensorrt_rtx")

IMAGE = "float[1,3,8,8] x"
GRU = '<hidden_size = 4, activations = ["Affine", "Tanh"]>'
CASES: dict[str, tuple[int, str, str, str, str]] = {
    # opset, inputs, initializers, nodes, (what is said, a part of the hint)
    "a foreign operator": (17, IMAGE, "", "[n] y = other.Odd(x)", r"refuses Odd 'n' .*not found|`plugins`"),
    "another runtime's operator": (
        17, IMAGE, "", "[n] y = other.QLinearAdd(x)",
        r"refuses QLinearAdd 'n'|must be quantized for tensorrt",
    ),
    "a boolean index": (17, IMAGE, "", "[n] y = NonZero(x)", r"has no NonZero: node 'n'|torch.where"),
    "a type of an input": (17, "int16[4] x", "", "y = Add(x, x)", r"inputs x:int16|declare the input"),
    "a type of an operand": (17, "int32[4,4] x", "", "[n] y = MatMul(x, x)", r"MatMul 'n'|to float32"),
    "two types": (17, "float[4] x, int32[4] z", "", "[n] y = Add(x, z)", r"Add 'n' .*Int32|of the other"),
    "a mode": (
        18, IMAGE, "float[4] s = {1, 1, 2, 2}", '[n] y = Resize<mode = "cubic", antialias = 1>(x, , s)',
        r"Resize 'n' .*Antialiasing|without antialias",
    ),
    "nine axes": (
        17, IMAGE, "int64[9] s = {1, 3, 2, 2, 2, 2, 2, 2, 1}", "[n] y = Reshape(x, s)",
        r"Reshape 'n' .*\(9\) is not in|merge axes",
    ),
    "an activation of no node": (
        17, "float[5,1,3] x, float[1,12,3] w, float[1,12,4] r", "", f"[n] y = GRU{GRU}(x, w, r)",
        r"refuses GRU 'n' .*Affine|activations such as",
    ),
    "a stored type of no node": (
        21, IMAGE, "float s = {0.1}, uint16 z = {7}",
        "[n] q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)",
        r"refuses QuantizeLinear 'n' .*: Failed to import initializer: z\n|quantized for tensorrt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_cause_names_its_node_and_its_way_out(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opset, inputs, stored, nodes, expected = CASES[case]
    said, _, way_out = expected.rpartition("|")
    monkeypatch.chdir(tmp_path)
    text = f"""<ir_version: 9, opset_import: ["" : {opset}, "other" : 1]>
        g ({inputs}) => (y) <{stored}> {{ {nodes} }}"""
    model = onnx.parser.parse_model(text)
    kind = onnx.TensorProto.INT64 if "NonZero" in nodes else model.graph.input[0].type.tensor_type.elem_type
    model.graph.output[0].type.tensor_type.elem_type = kind
    onnx.save(model, "mine.onnx")
    with pytest.raises(QCompileError, match=said) as caught:
        build("mine.onnx", "o.engine", target="tensorrt-rtx", gpus=("sm86",))
    assert caught.value.message.startswith("mine.onnx: ")
    assert way_out in caught.value.hint
    assert not any(noise in caught.value.message for noise in ("/tmp", "/_src/", "Cuda Runtime", '&& "'))


@pytest.mark.parametrize(
    ("operator", "words", "hint"),
    [
        ("QuantizeLinear", "TRT only supports symmetric quantization - zeroPt must be all zeros", "tensorrt"),
        ("DequantizeLinear", "db: input has type Int32 but must have type FP8", "quantized for tensorrt"),
        ("Dropout", "TensorRT does not support the Dropout operator in training mode.", "model.eval()"),
        ("Conv", "The input kernel must be an initializer.", "folds constants"),
        ("MaxPool", "TensorRT does not support the indices output in MaxPool!", "indices"),
        ("Odd", "words of tomorrow", "other operators"),
    ],
)
def test_the_words_of_other_versions_have_their_way_out_too(operator: str, words: str, hint: str) -> None:
    assert hint in hint_for(operator, words)
