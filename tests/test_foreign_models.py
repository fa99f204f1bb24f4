"""The whole road for ONNX files that qcompile did not make: old opsets, other exporters, real networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from written_models import model_of

import qcompile
from qcompile.errors import QCompileError, UnsupportedOperator
from qcompile.model.graph import weighted_nodes
from qcompile.model.onnx_graph import read_graph, read_weightless

SMALL = ("squeezenet",)
LARGE = "shufflenet inception_v1 inception_v2 resnet50 densenet121 bvlc_alexnet zfnet512 vgg19".split()


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_a_model_of_an_old_opset_goes_down_the_whole_road(
    name: str, light_models: dict[str, Path], tmp_path: Path
) -> None:
    """Simplify, calibrate, quantize for both targets, build both, compare."""
    model = light_models[name]
    (tensor,) = read_weightless(model).io.inputs
    x = np.random.default_rng(0).standard_normal((2, *tensor.shape[1:])).astype(np.float32)
    data = tmp_path / "x.npz"
    np.savez(data, **{tensor.name: x})
    simple = qcompile.simplify(model, tmp_path / "simple.onnx")
    assert simple.manifest.warnings == ()
    ranges = qcompile.calibrate(simple.path, str(data), tmp_path / "model.ranges")
    for target, engine in (("onnxruntime", "onnxruntime"), ("tensorrt", "tensorrt-rtx")):
        int8 = qcompile.quantize(
            simple.path, tmp_path / f"{target}.onnx", ranges=ranges.path, target=target, data=str(data)
        )
        planned = weighted_nodes(read_graph(int8.path).load())["int8"]
        assert len(planned) >= 20 or model.stem.endswith(("alexnet", "zfnet512", "vgg19"))
        built = qcompile.build(
            int8.path,
            tmp_path / f"built-{target}{'.onnx' if engine == 'onnxruntime' else '.engine'}",
            target=engine,
            precision="int8",
            gpus=["sm86"] if engine == "tensorrt-rtx" else [],
        )
        assert built.manifest.proof["reached_in_precision"] == len(planned)
    assert qcompile.diff(str(simple.path), str(tmp_path / "built-onnxruntime.onnx"), data=str(data))


def test_an_unsimplified_file_is_built_and_not_calibrated(
    light_models: dict[str, Path], tmp_path: Path
) -> None:
    """Here weights are made by nodes at run time: only `simplify` turns them into weights."""
    model = light_models["squeezenet"]
    np.savez(tmp_path / "x.npz", data_0=np.ones((1, 3, 224, 224), np.float32))
    with pytest.raises(QCompileError, match="simplify first"):
        qcompile.calibrate(model, str(tmp_path / "x.npz"), tmp_path / "m.ranges")
    built = qcompile.build(model, tmp_path / "b.onnx", target="onnxruntime")
    assert built.manifest.proof["reached_in_precision"] == 26


def test_an_operator_that_nobody_knows_is_named(tmp_path: Path) -> None:
    node = "[frob] y = com.acme.Frobnicate(x)"
    model = model_of(f"(float[1, 4] x) => (float[1, 4] y) {{ {node} }}", imports=', "com.acme" : 1')
    path = tmp_path / "frob.onnx"
    onnx.save(model, path)
    for attempt in (
        lambda: qcompile.simplify(path, tmp_path / "s.onnx"),
        lambda: qcompile.build(path, tmp_path / "b.onnx", target="onnxruntime"),
        lambda: qcompile.build(path, tmp_path / "b.engine", target="tensorrt-rtx", gpus=["sm86"]),
    ):
        with pytest.raises(QCompileError, match="Frobnicate"):
            attempt()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["frob.onnx"]


def test_a_graph_for_onnxruntime_is_refused_by_the_tensorrt_parser_with_its_node(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_file("residual")
    ranges = qcompile.calibrate(model, str(samples("residual")), tmp_path / "m.ranges")
    qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges.path, target="onnxruntime")
    with pytest.raises(UnsupportedOperator, match="DequantizeLinear"):
        qcompile.build(
            tmp_path / "q.onnx", tmp_path / "q.engine", target="tensorrt-rtx", precision="int8", gpus=["sm86"]
        )
