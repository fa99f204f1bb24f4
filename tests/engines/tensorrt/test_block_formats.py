"""Graphs in NVFP4 and MXFP8 of the form that Model-Optimizer writes: `build` takes them, but makes none.

Source: modelopt/onnx/export/nvfp4_exporter.py and mxfp8_exporter.py of NVIDIA/Model-Optimizer.
`tests/samples/blocks` has two products of float16 in each format, x [n,5,64] to y [n,5,16].
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from rtx_builds import rtx_build

import qcompile
from qcompile.errors import InvalidOption
from qcompile.model.graph.graph import graph_precision, weighted_nodes
from qcompile.spec.words import BLOCK_FORMATS, BlockFormat

SAMPLES = Path(__file__).parents[2] / "samples/blocks"


@pytest.fixture(params=BLOCK_FORMATS)
def kind(request: pytest.FixtureRequest) -> BlockFormat:
    found: BlockFormat = request.param
    return found


@pytest.fixture
def model(kind: BlockFormat, tmp_path: Path) -> Path:
    return Path(shutil.copy(SAMPLES / f"{kind}.onnx", tmp_path))


def test_the_products_of_a_graph_are_found_in_its_format(model: Path, kind: BlockFormat) -> None:
    proto = onnx.load(model)
    onnx.checker.check_model(proto, full_check=True)
    assert graph_precision(proto) == kind
    assert [node.name for node in weighted_nodes(proto)[kind]] == ["wide", "narrow"]


def test_tensorrt_rtx_builds_it_for_blackwell(model: Path, kind: BlockFormat, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    artifact = qcompile.build(
        model, tmp_path / "e.engine", target="tensorrt-rtx", precision=kind, gpus=["sm120", "sm121"],
        min_shapes={"x": (1, 5, 64)}, opt_shapes={"x": (2, 5, 64)}, max_shapes={"x": (4, 5, 64)},
    )  # fmt: skip
    assert artifact.manifest.precision == kind
    assert artifact.manifest.proof["layers_by_precision"] == {kind: {"MATRIX_MULTIPLY": 2}}
    assert any("multiplies floats" in text for text in artifact.manifest.warnings) is (kind == "mxfp8")


def test_engines_of_mxfp8_dequantize_and_those_of_nvfp4_do_not(model: Path, kind: BlockFormat) -> None:
    # Source: the programs in engines of TensorRT-RTX 1.7.1; a version with a product of MXFP8 fails here.
    _, plan = rtx_build(onnx.load(model), "SM120")
    assert (b"CastReplCastMulCast" in plan) is (kind == "mxfp8")


@pytest.mark.parametrize(
    ("target", "gpus", "problem", "hint"),
    [
        ("tensorrt-rtx", ["sm120", "sm89"], "sm89 has no {}; it begins with sm100", "sm120"),
        ("tensorrt-rtx", ["sm100"], "`gpus` sm100: tensorrt_rtx .* builds for sm75", ""),
        ("onnxruntime", [], "target onnxruntime has fp32", "only TensorRT supports it, from sm100 on"),
        ("openvino", [], "target openvino has fp32", "only TensorRT supports it, from sm100 on"),
    ],
)
def test_other_gpus_and_runtimes_are_refused_by_name_with_the_way_out(
    model: Path, kind: BlockFormat, target: str, gpus: list[str], problem: str, hint: str
) -> None:
    pytest.importorskip(target.replace("-", "_"))
    with pytest.raises(InvalidOption, match=problem.format(kind.upper())) as caught:
        qcompile.build(model, model.with_name("e"), precision=kind, target=target, gpus=gpus)  # type: ignore[arg-type]
    assert hint in caught.value.hint


def test_a_float_model_is_refused_and_the_tool_that_quantizes_it_is_named(
    kind: BlockFormat, tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    with pytest.raises(InvalidOption, match=rf"mlp\.onnx: holds no {kind.upper()}") as caught:
        qcompile.build(
            tiny_file("mlp"), tmp_path / "e", target="tensorrt-rtx", precision=kind, gpus=["sm120"]
        )
    assert "Model-Optimizer" in caught.value.hint
