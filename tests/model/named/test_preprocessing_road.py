"""What an export says of how samples become inputs reaches every artifact that is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qcompile import build, calibrate, quantize, simplify
from qcompile.artifact import load_artifact
from qcompile.compiler.export import export
from qcompile.errors import InvalidOption
from qcompile.model.onnx_file import model_io
from qcompile.model.preprocessing import ImagePreprocessing, Preprocessing, preprocessing_of
from qcompile.model.preprocessing_names import find_preprocessing
from qcompile.model.preprocessing_presets import PRESETS


def write_convolutions(path: Path) -> Path:
    """Two convolutions over images [batch, 3, 16, 16], and a product: what every target takes."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((random.standard_normal(shape) / 4).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["image", "w0", "b0"], ["c0"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"], "relu"),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c1"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "w2"], ["logits"], "head"),
    ]
    stored = [weight("w0", 8, 3, 3, 3), weight("b0", 8), weight("w1", 8, 8, 3, 3), weight("b1", 8),
              weight("w2", 8, 4)]  # fmt: skip
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 16, 16])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph(nodes, "g", [image], [logits], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file given as MODEL, with `preprocessing` imagenet."""
    folder = tmp_path_factory.mktemp("road")
    write_convolutions(folder / "given.onnx")
    export(str(folder / "given.onnx"), folder / "model.onnx", preprocessing="imagenet")
    np.savez(
        folder / "samples.npz", image=np.random.default_rng(1).standard_normal((4, 3, 16, 16), np.float32)
    )
    return folder / "model.onnx"


def noted(path: Path) -> Preprocessing | None:
    """What a file or its manifest says, which must be one."""
    manifest = load_artifact(path).manifest
    assert manifest.io is not None
    said = preprocessing_of(manifest.io.inputs)
    if path.suffix == ".onnx":
        assert preprocessing_of(model_io(onnx.load(path)).inputs) == said
    return said


def test_a_name_is_fitted_to_the_input_of_an_onnx_file(exported: Path) -> None:
    said = noted(exported)
    assert isinstance(said, ImagePreprocessing)
    usual = PRESETS["imagenet"]
    assert isinstance(usual, ImagePreprocessing)
    assert (said.input, said.height, said.width, said.mean, said.std) == (
        "image", 16, 16, usual.mean, usual.std,
    )  # fmt: skip
    assert said.resize == (18,), "256 of 224, as 18 of 16"


def test_graphs_keep_it(exported: Path) -> None:
    folder, samples = exported.parent, str(exported.parent / "samples.npz")
    simplify(exported, folder / "simple.onnx")
    calibrate(exported, samples, folder / "m.ranges")
    quantize(exported, folder / "int8.onnx", ranges=folder / "m.ranges")
    quantize(exported, folder / "dynamic.onnx", mode="dynamic")
    quantize(exported, folder / "half.onnx", precision="fp16")
    for name in ("simple", "int8", "dynamic", "half"):
        assert noted(folder / f"{name}.onnx") == noted(exported), name
    export(str(folder / "int8.onnx"), folder / "again.onnx")
    assert noted(folder / "again.onnx") == noted(exported)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("onnxruntime", {}),
        ("onnxruntime", {"precision": "int8", "mode": "dynamic"}),
        ("openvino", {}),
        ("tensorrt-rtx", {"gpus": ("sm86",)}),
        ("tensorrt-rtx", {"gpus": ("sm86",), "precision": "fp16"}),
    ],
)
def test_artifacts_keep_it(exported: Path, target: str, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip({"openvino": "openvino", "tensorrt-rtx": "tensorrt_rtx"}.get(target, "onnxruntime"))
    suffix = ".engine" if target == "tensorrt-rtx" else ".onnx"
    shapes = {"opt_shapes": ("image:2x3x16x16",), "min_shapes": ("image:1x3x16x16",),
              "max_shapes": ("image:4x3x16x16",)} if suffix == ".engine" else {}  # fmt: skip
    path = tmp_path / f"built{suffix}"
    build(exported, path, target=target, **options, **shapes)  # type: ignore[arg-type]
    manifest = load_artifact(path).manifest
    assert manifest.io is not None
    assert preprocessing_of(manifest.io.inputs) == noted(exported)


def test_a_file_and_a_wrong_name_are_read_and_refused(tmp_path: Path) -> None:
    write_convolutions(tmp_path / "m.onnx")
    (tmp_path / "own.json").write_text(
        '{"kind": "image", "height": 16, "width": 16, "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}'
    )
    export(str(tmp_path / "m.onnx"), tmp_path / "out.onnx", preprocessing=str(tmp_path / "own.json"))
    said = noted(tmp_path / "out.onnx")
    assert isinstance(said, ImagePreprocessing)
    assert (said.input, said.mean) == ("image", (0.1, 0.2, 0.3))
    (tmp_path / "text.json").write_text('{"kind": "text", "tokenizer": "t", "inputs": ["input_ids"]}')
    for name, message in (
        ("imagnet", "imagenet"),
        (str(tmp_path / "text.json"), "image:batchx3x16x16|image:"),
    ):
        with pytest.raises(InvalidOption, match=message):
            export(str(tmp_path / "m.onnx"), tmp_path / "no.onnx", preprocessing=name)
    assert not (tmp_path / "no.onnx").exists()


def test_a_model_by_name_is_a_preprocessing() -> None:
    said = find_preprocessing("timm:resnet18")
    assert isinstance(said, ImagePreprocessing)
    assert (said.height, said.interpolation, said.resize) == (224, "bicubic", (235,))
