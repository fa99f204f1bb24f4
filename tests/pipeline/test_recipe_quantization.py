"""A recipe's ways to quantize: which stages it becomes, what they reach, and which keys are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import qcompile
from qcompile.artifact import Manifest, read_manifest
from qcompile.engines.base import BuildRequest
from qcompile.pipeline.run import RunReport

HEAD = """
version = 1
name = "tiny"
[model]
source = "residual.onnx"
simplify = false
[data]
calibration = "calibration.npz"
"""
WriteRecipe = Callable[..., Path]


@pytest.fixture
def recipe(tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path) -> WriteRecipe:
    """`recipe(TEXT, ...)` writes a recipe over the tiny residual network with these artifacts."""
    tiny_file("residual")
    samples("residual", 32).rename(tmp_path / "calibration.npz")

    def write(*artifacts: str, more: str = "", head: str = HEAD) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(head + more + "".join(f"[[artifact]]\n{text}\n" for text in artifacts))
        return path

    return write


OPENVINO = 'name = "ov"\ntarget = "openvino"\nprecision = "int8"'
INT4 = 'name = "w4"\ntarget = "onnxruntime"\nprecision = "int4"\nmode = "weights"\nblock_size = 16'
STATIC = 'name = "cpu"\ntarget = "onnxruntime"\nprecision = "int8"'


def manifests(report: RunReport) -> dict[str, Manifest]:
    found = {name: read_manifest(path) for name, path in report.artifacts.items()}
    return {name: manifest for name, manifest in found.items() if manifest is not None}


def graph_of(report: RunReport, name: str) -> tuple[Path, Manifest]:
    path = report.output / f"{name}.graph.onnx"
    manifest = read_manifest(path)
    assert manifest is not None
    return path, manifest


@pytest.mark.parametrize("float_precision", ["fp32", "bf16"])
def test_openvino_int8_with_its_rest_told_while_it_loads(
    float_precision: str, recipe: WriteRecipe, on_processor: Callable[..., None]
) -> None:
    pytest.importorskip("openvino")
    on_processor("avx512_bf16")
    report = qcompile.run(recipe(f'{OPENVINO}\nfloat_precision = "{float_precision}"\nexclude = ["gemm"]'))
    assert list(report.stages) == ["export", "calibrate", "quantize-ov", "build-ov"]
    manifest = manifests(report)["ov"]
    assert (manifest.target, manifest.precision, manifest.options.get("float_precision", "fp32")) == (
        "openvino",
        "int8",
        float_precision,
    )
    assert manifest.proof["reached_in_precision"] == manifest.proof["planned_in_precision"] == 2
    path, graph = graph_of(report, "ov")
    assert (graph.target, graph.options.get("float_precision", "fp32")) == ("openvino", "fp32")
    halves = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16)
    assert not any(tensor.data_type in halves for tensor in onnx.load(path).graph.initializer)


def test_int4_weights_need_no_calibration(recipe: WriteRecipe) -> None:
    report = qcompile.run(recipe(INT4, head=HEAD.replace('[data]\ncalibration = "calibration.npz"\n', "")))
    assert list(report.stages) == ["export", "quantize-w4", "build-w4"]
    manifest = manifests(report)["w4"]
    assert manifest.precision == "int4"
    assert manifest.proof["layers_by_precision"]["int4"] == {"MatMulNBits": 1}  # type: ignore[index]
    _, graph = graph_of(report, "w4")
    assert (graph.options["mode"], graph.options["block_size"]) == ("weights", 16)
    assert graph.proof["quant_format"] == "nbits"


def test_gptq_learns_from_the_recipes_data(recipe: WriteRecipe) -> None:
    report = qcompile.run(recipe(INT4 + '\nrounding = "gptq"'))
    assert "calibrate" not in report.stages
    assert graph_of(report, "w4")[1].options["rounding"] == "gptq"


def test_only_layers_and_correct_bias_reach_the_graph(recipe: WriteRecipe) -> None:
    text = f'{STATIC}\nonly = ["Conv", "gemm"]\nlayers = ["conv[1]=fp32"]\ncorrect_bias = false\nisa = "neon"'
    report = qcompile.run(recipe(STATIC.replace("cpu", "plain"), text.replace("neon", "avx512-vnni")))
    stages = ["quantize-plain", "build-plain", "quantize-cpu", "build-cpu"]
    assert list(report.stages) == ["export", "calibrate", *stages]
    _, graph = graph_of(report, "cpu")
    assert graph.options["only"] == ["Conv", "gemm"]
    assert graph.options["layers"] == ["conv[1]=fp32"]
    assert graph.options["correct_bias"] is False
    assert graph.proof["left_in_float"] == {"conv1": "excluded by 'conv[1]'"}
    assert graph.proof["corrected_biases"] == 0
    _, plain = graph_of(report, "plain")
    assert plain.proof["corrected_biases"] == 3
    assert "correct_bias" not in plain.options
    reached = {name: found.proof["reached_in_precision"] for name, found in manifests(report).items()}
    assert reached == {"plain": 3, "cpu": 2}


def test_a_changed_option_of_one_artifact_makes_that_one_again(recipe: WriteRecipe) -> None:
    qcompile.run(recipe(STATIC, INT4))
    options = ('only = ["Conv"]', 'layers = ["gemm=fp32"]', "correct_bias = false", 'isa = "avx2"')
    for option in (*options, 'rounding = "gptq"'):
        stages = qcompile.run(recipe(f"{STATIC}\n{option}", INT4)).stages
        done = [name for name, state in stages.items() if state == "done"]
        assert done[0] == "quantize-cpu", option
        assert not any("w4" in name or name in ("export", "calibrate") for name in done)
    stages = qcompile.run(recipe(STATIC, INT4.replace("16", "32"))).stages
    assert next(name for name, state in stages.items() if state == "done") == "quantize-w4"
    assert set(qcompile.run(recipe(STATIC, INT4)).stages.values()) == {"skipped"}


def test_a_recipes_graph_is_planned_without_what_openvino_computes_in_float(
    recipe: WriteRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    from qcompile.engines.openvino import OpenVino

    asked: list[int] = []

    def missed(_: OpenVino, request: BuildRequest) -> dict[str, str]:
        asked.append(len(onnx.load(request.model).graph.node))
        return {"gemm": "for a test"} if len(asked) == 1 else {}

    monkeypatch.setattr(OpenVino, "missed_layers", missed)
    report = qcompile.run(recipe(OPENVINO))
    assert len(asked) == 2
    assert asked[1] < asked[0]  # the Q/DQ of what is left out are gone
    assert graph_of(report, "ov")[1].proof["left_in_float"] == {"gemm": "for a test"}
    proof = manifests(report)["ov"].proof
    assert (proof["planned_in_precision"], proof["left_in_float"]) == (2, {"gemm": "for a test"})
    qcompile.run(recipe(f"{OPENVINO}\nstrict = true"))
    assert len(asked) == 2  # a strict artifact is not planned again
