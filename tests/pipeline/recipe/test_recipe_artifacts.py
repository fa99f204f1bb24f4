"""A recipe's artifacts: their stages, what they reach, what builds them again, and what their keys hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from recipes import artifact
from simulated_machine import install

import qcompile
from qcompile.calibration import load_ranges
from qcompile.calibration.tensorrt_cache import format_cache
from qcompile.core.artifact import Manifest, read_manifest
from qcompile.engines.base import BuildRequest
from qcompile.errors import CalibrationError, MissingFile
from qcompile.pipeline.auto import _isa
from qcompile.pipeline.recipe.recipe import Recipe, parse_recipe, read_recipe
from qcompile.pipeline.recipe.write import portable_text
from qcompile.pipeline.run import RunReport
from qcompile.pipeline.stages.graph import key_of
from qcompile.pipeline.stages.stage import Stage, StageFile
from qcompile.pipeline.stages.stages import with_isa
from qcompile.pipeline.stages.trial_stages import trial_text
from qcompile.pipeline.tune.trials import TrialMaker, TrialRequest, TrialSetting

WriteRecipe = Callable[..., Path]
INT4 = artifact("w4", precision="int4", mode="weights", block_size=16)
STATIC = artifact("cpu", precision="int8")
OPENVINO = artifact("ov", "openvino", "int8")
RTX = artifact("engine", "tensorrt-rtx", gpus=["sm86"])
RTX_INT8 = artifact("engine", "tensorrt-rtx", "int8", gpus=["sm86"])


@pytest.fixture
def recipe(write_recipe: WriteRecipe) -> WriteRecipe:
    """`recipe(ARTIFACT, ...)` writes a recipe over the tiny residual network as it is."""
    return lambda *tables, **lines: write_recipe(*tables, **{"model": "simplify = false", **lines})


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
    text = artifact("ov", "openvino", "int8", float_precision=float_precision, exclude=["gemm"])
    report = qcompile.run(recipe(text))
    assert list(report.stages) == ["export", "calibrate", "quantize-ov", "build-ov"]
    manifest = manifests(report)["ov"]
    assert (manifest.target, manifest.precision) == ("openvino", "int8")
    assert manifest.options.get("float_precision", "fp32") == float_precision
    assert manifest.proof["reached_in_precision"] == manifest.proof["planned_in_precision"] == 2
    path, graph = graph_of(report, "ov")
    assert (graph.target, graph.options.get("float_precision", "fp32")) == ("openvino", "fp32")
    halves = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16)
    assert not any(tensor.data_type in halves for tensor in onnx.load(path).graph.initializer)


def test_int4_weights_need_no_ranges_and_gptq_learns_from_the_data(recipe: WriteRecipe) -> None:
    report = qcompile.run(recipe(INT4, data=""))
    assert list(report.stages) == ["export", "quantize-w4", "build-w4"]
    manifest = manifests(report)["w4"]
    assert manifest.precision == "int4"
    assert manifest.proof["layers_by_precision"]["int4"] == {"MatMulNBits": 1}  # type: ignore[index]
    _, graph = graph_of(report, "w4")
    assert (graph.options["mode"], graph.options["block_size"]) == ("weights", 16)
    assert graph.proof["quant_format"] == "nbits"
    report = qcompile.run(recipe(INT4 + 'rounding = "gptq"'))
    assert "calibrate" not in report.stages
    assert graph_of(report, "w4")[1].options["rounding"] == "gptq"


def test_whatever_changes_a_graph_is_in_its_key(recipe: WriteRecipe) -> None:
    """And what a build alone reads is not."""
    lines = (
        'only = ["Conv"]', "correct_bias = false", 'rounding = "gptq"', 'method = "minmax"',
        'layers = ["gemm=fp32"]', 'isa = "avx2"',
    )  # fmt: skip
    plain = keys(read_recipe(recipe(STATIC)))
    for line in lines:
        changed = keys(read_recipe(recipe(f"{STATIC}{line}\n")))
        assert changed[0]["options"] != plain[0]["options"], line
    renamed = keys(read_recipe(recipe(STATIC.replace('"cpu"', '"other"'))))
    assert renamed[0]["options"] == plain[0]["options"]


def test_a_recipes_graph_is_planned_without_what_openvino_computes_in_float(
    recipe: WriteRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    from qcompile.engines.openvino import OpenVino

    asked: list[int] = []

    def missed(_: OpenVino, request: BuildRequest) -> dict[str, str]:
        asked.append(len(request.onnx.model.graph.node))
        return {"gemm": "for a test"} if len(asked) == 1 else {}

    monkeypatch.setattr(OpenVino, "missed_layers", missed)
    report = qcompile.run(recipe(OPENVINO))
    assert len(asked) == 2
    assert asked[1] < asked[0]  # the Q/DQ of what is left out are gone
    assert graph_of(report, "ov")[1].proof["left_in_float"] == {"gemm": "for a test"}
    proof = manifests(report)["ov"].proof
    assert (proof["planned_in_precision"], proof["left_in_float"]) == (2, {"gemm": "for a test"})
    qcompile.run(recipe(f"{OPENVINO}strict = true"))
    assert len(asked) == 2  # a strict artifact is not planned again


def built(path: Path) -> Manifest:
    """Run a recipe and return its engine's manifest."""
    return manifests(qcompile.run(path))["engine"]


def test_tensorrts_own_calibrator_gets_the_calibration_data(
    recipe: WriteRecipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from qcompile.engines.tensorrt.builder import calibration

    class Memory:
        """A device that keeps nothing."""

        def __init__(self, device: int) -> None:
            assert device == 0

        def copy(self, name: str, array: object) -> int:
            return 1

        def close(self) -> None:
            """Nothing to free."""

    monkeypatch.setattr(calibration, "DeviceBuffers", Memory)
    here = install(monkeypatch, tmp_path, "8.5.3")
    path = recipe(artifact("engine", "tensorrt", "int8", calibrator="native"))
    manifest = built(path)
    assert manifest.proof["calibration_batches"] == 32
    assert "INT8" in here.flags()
    assert not any(name.startswith(("calibrate", "quantize")) for name in qcompile.run(path).stages)


@pytest.fixture
def folder(tmp_path: Path, tiny_file: Callable[..., Path], samples: Callable[..., Path]) -> Path:
    """A folder with residual.onnx, its ranges, and the cache of these."""
    pytest.importorskip("tensorrt_rtx")
    model = tiny_file("residual")
    qcompile.calibrate(model, samples("residual", 16), tmp_path / "m.ranges", method="minmax")
    ranges = load_ranges(tmp_path / "m.ranges")
    (tmp_path / "m.cache").write_text(format_cache(ranges, version="8.5.3"))
    return tmp_path


@pytest.fixture
def scaled(folder: Path, write_recipe: WriteRecipe) -> WriteRecipe:
    """`scaled("ranges = 'm.ranges'", more=LINE)` writes a recipe of static INT8 without data."""

    def write(calibrate: str = "", *, source: str = "residual.onnx", more: str = "") -> Path:
        path = write_recipe(RTX_INT8, more, f"[calibrate]\n{calibrate}\n", model="simplify = false", data="")
        assert path.parent == folder
        path.write_text(path.read_text().replace("residual.onnx", source))
        return path

    return write


def test_a_cache_takes_the_place_of_ranges(scaled: WriteRecipe) -> None:
    assert "calibrate" not in qcompile.run(scaled('ranges = "m.cache"')).stages
    failed = qcompile.run(scaled('ranges = "m.cache"', more='method = "entropy"\n')).failures["engine"]
    assert isinstance(failed, CalibrationError)
    assert "a TensorRT cache has one scale per tensor" in failed.message


def test_other_ranges_build_again_and_the_same_do_not(folder: Path, scaled: WriteRecipe) -> None:
    path = scaled('ranges = "m.ranges"')
    layers = {"int8": {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}}
    assert built(path).proof["layers_by_precision"] == layers
    (folder / "m.ranges").write_bytes((folder / "m.ranges").read_bytes())
    assert set(qcompile.run(path).stages.values()) == {"skipped"}
    cache = (folder / "m.cache").read_text().splitlines()
    (folder / "m.cache").write_text("\n".join([*cache[:-1], cache[-1].rpartition(": ")[0] + ": 3f000000"]))
    report = qcompile.run(scaled('ranges = "m.cache"'))
    assert report.stages["quantize-engine"] == "done"
    assert manifests(report)["engine"].proof["layers_by_precision"] == layers
    with pytest.raises(MissingFile, match=r"ranges file .*n\.ranges does not exist"):
        qcompile.run(scaled('ranges = "n.ranges"'))


@pytest.mark.parametrize("float_precision", ["fp32", "fp16", "bf16"])
def test_a_model_with_qdq_needs_no_ranges_and_its_rest_gets_the_float_precision(
    float_precision: str, folder: Path, scaled: WriteRecipe
) -> None:
    """A weakly typed TensorRT made the rest FP16 by a flag; a strongly typed one takes the graph's types.

    A file that has half types already keeps them: whoever quantized it chose them.
    """
    quantized = {"ranges": folder / "m.ranges", "target": "tensorrt", "exclude": ["gemm"]}
    for typed in ("fp32", "fp16"):
        qcompile.quantize(folder / "residual.onnx", folder / "q.onnx", **quantized, float_precision=typed)
        manifest = built(scaled(source="q.onnx", more=f'float_precision = "{float_precision}"\n'))
        layers = manifest.proof["layers_by_precision"]
        assert layers["int8"] == {"CONVOLUTION": 2}
        assert layers[float_precision if typed == "fp32" else typed] == {"MATRIX_MULTIPLY": 1}


OnProcessor = Callable[..., None]


@pytest.fixture
def parsed(write_recipe: Callable[..., Path]) -> Callable[..., Recipe]:
    """`parsed("openvino", isa="avx2")` is a recipe of one INT8 artifact for a processor."""

    def read(target: str = "onnxruntime", **options: str) -> Recipe:
        cpu = artifact("cpu", target, "int8", **options)
        return read_recipe(write_recipe(cpu, artifact("rtx", "tensorrt-rtx", gpus=["sm86"])))

    return read


def keys(recipe: Recipe) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of quantization and build, as they are stored."""
    one, made = recipe.artifact[0], StageFile(recipe.folder / "residual.onnx", "sha256:0")
    files = {"model": made, "ranges": made}
    quantized, built = (
        json.loads(json.dumps(key_of(recipe, Stage(kind=kind, artifact=one.name, files=files))))
        for kind in ("quantize", "build")
    )
    return quantized, built


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_another_instruction_set_has_another_key(
    target: str, parsed: Callable[..., Recipe], on_processor: OnProcessor
) -> None:
    pytest.importorskip(target)
    on_processor()
    older = keys(parsed(target))
    on_processor("avx512_vnni")
    newer = keys(parsed(target))
    assert [key["options"]["isa"] for key in older] == ["avx2", "avx2"]
    assert [key["options"]["isa"] for key in newer] == ["avx512-vnni", "avx512-vnni"]


def test_a_graph_for_onnx_runtime_is_that_of_every_processor_with_the_instruction_set(
    parsed: Callable[..., Recipe], on_processor: OnProcessor
) -> None:
    on_processor("avx512_vnni")
    key = keys(parsed())[0]
    on_processor("avx512_vnni", "avx512_bf16")
    assert keys(parsed())[0] == key
    on_processor()
    assert keys(parsed(isa="avx512-vnni"))[0] == key
    read = parsed()  # what is sent elsewhere names it
    sent = replace(read, artifact=tuple(with_isa(one, "avx2") for one in read.artifact))
    assert portable_text(sent).count(b'isa = "avx2"') == 1
    assert parse_recipe(portable_text(sent), read.path) == sent


def test_an_instruction_set_that_a_recipe_names_is_obeyed(
    parsed: Callable[..., Recipe], on_processor: OnProcessor
) -> None:
    on_processor("avx512_vnni")
    for name in ("avx2", "neon"):
        assert [key["options"]["isa"] for key in keys(parsed(isa=name))] == [name, name]
    one, on_gpu = parsed(isa="avx2").artifact
    assert with_isa(one, "amx") == one
    assert with_isa(on_gpu, "amx").isa == "auto"
    assert (_isa(parsed()), _isa(parsed(isa="avx2"))) == ("auto", "avx2")  # of a search


def test_trials_are_for_the_instruction_set_of_their_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = TrialSetting(tmp_path / "m.onnx", tmp_path / "m.ranges", "data.npz", "cosine", isa="avx2")
    assert json.loads(trial_text(setting))["isa"] == "avx2"
    maker = TrialMaker.__new__(TrialMaker)
    monkeypatch.setattr(maker, "setting", setting, raising=False)
    assert maker._spec(TrialRequest("int8", "onnxruntime", "int8")).isa == "avx2"
