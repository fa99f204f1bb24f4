"""One spec for any target: the graph is brought to the precision that the target needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import MakePath

from qcompile.building.build import build
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.compiler.quantize.quantize import quantize
from qcompile.core.processor import isa_here
from qcompile.engines import load, names
from qcompile.errors import IntentNotReached, InvalidOption
from qcompile.model.graph.onnx_file import read_graph
from qcompile.model.outputs.judgement import output_error
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import TARGETS

GPUS = ["sm86"]
INT8: dict[str, Any] = {"target": "onnxruntime", "precision": "int8"}


FOR_TARGET: dict[str, dict[str, Any]] = {"onnxruntime": {}, "tensorrt-rtx": {"gpus": GPUS}}


@pytest.fixture
def model(tiny_file: MakePath) -> Path:
    """The tiny residual model."""
    return tiny_file("residual")


@pytest.fixture
def ranges(model: Path, samples: MakePath, tmp_path: Path) -> Path:
    """Its ranges."""
    return calibrate(model, str(samples("residual")), tmp_path / "m.ranges", method="minmax").path


def test_a_float_model_with_ranges_becomes_int8_for_onnxruntime_and_still_computes(
    model: Path, ranges: Path, tmp_path: Path
) -> None:
    artifact = build(model, tmp_path / "out.onnx", **INT8, ranges=ranges)
    assert artifact.manifest.proof["layers_by_precision"]["int8"] == {"QLinearConv": 2, "QGemm": 1}  # type: ignore[index]
    assert artifact.manifest.precision == "int8"
    x = np.random.default_rng(1).standard_normal((8, 4, 8, 8)).astype(np.float32)
    with load(artifact.path) as int8, load(model) as fp32:
        assert output_error(fp32.infer({"x": x})["y"], int8.infer({"x": x})["y"]).snr_db > 20


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_one_float_model_and_one_ranges_file_serve_every_precision_of_rtx(
    precision: str, model: Path, ranges: Path, tmp_path: Path
) -> None:
    artifact = build(
        model, tmp_path / "m.engine", target="tensorrt-rtx", precision=precision, ranges=ranges, gpus=GPUS
    )
    assert artifact.manifest.proof["layers_by_precision"] == {
        precision: {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}
    }


def test_the_manifest_names_the_file_given_and_the_graph_built_from_it(
    model: Path, ranges: Path, tmp_path: Path
) -> None:
    sources = build(model, tmp_path / "m.onnx", **INT8, ranges=ranges).manifest.sources
    assert sources["model"] == read_graph(model).digest() != sources["graph"]
    plain = build(model, tmp_path / "p.onnx", target="onnxruntime").manifest.sources
    assert plain["model"] == plain["graph"] == read_graph(model).digest()


def test_the_method_can_be_chosen_at_the_build(model: Path, ranges: Path, tmp_path: Path) -> None:
    graphs = {
        build(model, tmp_path / "m.onnx", **INT8, ranges=ranges, method=method).manifest.sources["graph"]
        for method in ("minmax", "percentile:90")
    }
    assert len(graphs) == 2


def test_a_graph_that_is_quantized_already_needs_no_ranges(model: Path, ranges: Path, tmp_path: Path) -> None:
    quantized = quantize(model, tmp_path / "q.onnx", ranges=ranges, target="tensorrt").path
    wide = {"target": "tensorrt-rtx", "precision": "int8", "gpus": GPUS}
    artifact = build(quantized, tmp_path / "m.engine", float_precision="fp32", **wide)  # type: ignore[arg-type]
    assert artifact.manifest.sources["graph"] == read_graph(quantized).digest()
    artifact = build(quantized, tmp_path / "half.engine", **wide)  # type: ignore[arg-type]
    assert artifact.manifest.options["float_precision"] == "fp16"
    assert artifact.manifest.sources["graph"] != read_graph(quantized).digest()


@pytest.mark.parametrize(
    ("found", "asked"), [("int8", "fp32"), ("int8", "fp16"), ("fp16", "fp32"), ("fp16", "int8")]
)
@pytest.mark.parametrize("target", FOR_TARGET)
def test_a_graph_of_another_precision_is_refused_with_the_way_out(
    found: str, asked: str, target: str, model: Path, ranges: Path, tmp_path: Path
) -> None:
    typed = quantize(model, tmp_path / "t.onnx", ranges=ranges, precision=found, target="tensorrt").path  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=f"its graph is {found} already; {asked} was requested") as caught:
        build(
            typed, tmp_path / "out" / "m", target=target, precision=asked, ranges=ranges, **FOR_TARGET[target]
        )
    assert f"`precision` {found}" in caught.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", FOR_TARGET)
def test_int8_of_a_float_graph_without_ranges_is_refused(target: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="holds no quantized layer, and int8 was requested") as caught:
        build(model, tmp_path / "out" / "m", target=target, precision="int8", **FOR_TARGET[target])
    assert caught.value.data["option"] == "ranges"
    assert "qcompile calibrate" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_fp16_that_the_runtime_does_not_compute_is_not_reached_unless_a_fallback_is_allowed(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(IntentNotReached, match="fp16 was requested") as caught:
        build(model, tmp_path / "m.onnx", target="onnxruntime", precision="fp16")
    assert str(model) in caught.value.message
    kept = build(model, tmp_path / "m.onnx", target="onnxruntime", precision="fp16", allow_fallback=True)
    assert kept.manifest.warnings


def test_a_spec_builds_what_its_keyword_arguments_build(model: Path, ranges: Path, tmp_path: Path) -> None:
    spec = BuildSpec(**INT8, ranges=ranges, exclude=("gemm",))
    by_spec = build(model, tmp_path / "a.onnx", spec).manifest
    by_name = build(model, tmp_path / "b.onnx", **INT8, ranges=str(ranges), exclude=["gemm"]).manifest
    assert by_spec.sources == by_name.sources
    isa = {"isa": isa_here()}
    assert by_spec.options == by_name.options == {"exclude": ["gemm"], **isa}
    other = build(model, tmp_path / "c.onnx", spec, exclude=[]).manifest
    assert other.sources["graph"] != by_spec.sources["graph"]
    assert other.options == isa


def test_mappings_and_none_are_keyword_arguments_too(model: Path, tmp_path: Path) -> None:
    found = build(
        model, tmp_path / "m.engine", target="tensorrt-rtx", precision="fp16", gpus=["SM86", "sm86"],
        max_shapes={"x": (4, 4, 8, 8)}, layers={"conv1": "fp32"}, data=None, tensorrt={"workspace": "1G"},
    ).manifest  # fmt: skip
    shapes, layers = ["x:4x4x8x8"], ["conv1=fp32"]
    assert found.options == {"gpus": GPUS, "max_shapes": shapes, "layers": layers, "workspace": "1G"}


KNOWN = "one of fp32, tf32, fp16, bf16, int8, fp8, int4, nvfp4, mxfp8, best is required"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targt": "openvino"}, "`targt`: is unknown\n  hint: did you mean target"),
        ({}, "`target`: is missing"),
        ({"target": "tpu"}, ", ".join(TARGETS)),
        ({"target": "pytorch"}, "`target` 'pytorch': one of"),  # an engine that has nothing to build
        *(({"target": "onnxruntime", "precision": name}, KNOWN) for name in ("int3", "best2", "", "FP16")),
        ({"target": "onnxruntime", "threads": "4"}, "`threads` '4': a whole number is required"),
        ({"target": "tensorrt", "min_shapes": {"x": "?"}}, "`min_shapes`"),
        ({"target": "tensorrt", "layers": {"conv1": "int4"}}, "`layers\\[0\\]` 'conv1=int4': PATTERN"),
        ({"target": "openvino", "tensorrt": {"refit": True}}, "`tensorrt.refit`: is for tensorrt and"),
    ],
)
def test_a_wrong_keyword_argument_is_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert set(TARGETS) == {*names()} - {"pytorch"}
    with pytest.raises(InvalidOption, match=message):
        build(tmp_path / "nothing.onnx", tmp_path / "m", **options)
