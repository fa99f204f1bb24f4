"""One lowering: `build` and `run` make the same bytes of the same wishes, or refuse them alike."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from simulated_machine import install
from written_models import model_of, normal

import qcompile
from qcompile.core.artifact import Manifest, read_manifest
from qcompile.core.progress import silent
from qcompile.engines.base import BuildRequest
from qcompile.engines.openvino import OpenVino
from qcompile.errors import InvalidOption, QCompileError
from qcompile.model.graph.onnx_file import read_graph
from qcompile.pipeline.run import RunReport
from qcompile.pipeline.stages.graph import carry_out
from qcompile.pipeline.stages.stage import Stage, StageFile
from qcompile.spec.tensorrt import TensorRTOptions
from qcompile.spec.words import PRECISIONS

HEAD = """
version = 1
name = "tiny"
[model]
source = "residual.onnx"
simplify = false
[data]
calibration = "calibration.npz"
[calibrate]
method = "minmax"
"""
Wishes = Mapping[str, Any]
MakeFile = Callable[..., Path]

EVERY: dict[str, Wishes] = {
    **{name: {"precision": name} for name in (*PRECISIONS, "best") if name != "int4"},
    "int4": {"precision": "int4", "mode": "weights", "block_size": 16},
    "w8": {"precision": "int8", "mode": "weights", "block_size": 32, "quant_format": "qdq"},
    "dynamic": {"precision": "int8", "mode": "dynamic"},
    "excluded": {"precision": "int8", "exclude": ["conv1"], "method": "percentile:99", "search": False},
    "only": {"precision": "int8", "only": ["Conv"], "correct_bias": False, "search": False},
    "layers": {"precision": "int8", "layers": ["gemm=fp32"], "isa": "avx2", "strict": True},
    "float_precision": {"precision": "int8", "float_precision": "fp16"},
    "gptq": {"precision": "int8", "rounding": "gptq", "search": False},
    "mixed": {"precision": "fp16", "layers": ["conv1=fp32"], "exclude": ["gemm"]},
    "typed": {"precision": "fp16", "io_formats": ["x=float16"]},
}


@pytest.fixture
def folder(tiny_file: MakeFile, samples: MakeFile, tmp_path: Path) -> Path:
    """A folder with the tiny residual model of a new opset, and samples that it was not made for."""
    tiny_file("residual", opset=20)
    samples("residual", 32).rename(tmp_path / "calibration.npz")
    return tmp_path


def run(folder: Path, artifacts: Mapping[str, Wishes]) -> RunReport:
    """Run a recipe of these artifacts."""
    text = HEAD
    for name, wishes in artifacts.items():
        options = {key: value for key, value in wishes.items() if key != "io_formats"}
        text += f"[[artifact]]\nname = {json.dumps(name)}\n"
        text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
        if "io_formats" in wishes:
            text += f"[artifact.tensorrt]\nio_formats = {json.dumps(wishes['io_formats'])}\n"
    (folder / "recipe.toml").write_text(text)
    return qcompile.run(folder / "recipe.toml")


def build(folder: Path, output: Path, wishes: Wishes) -> Manifest:
    """Build from the float model and the ranges that a recipe's run left behind."""
    (model,) = folder.glob("out/.qcompile/export-*/tiny.onnx")
    options = {name: value for name, value in wishes.items() if name != "io_formats"}
    if "layers" in options:
        options["layers"] = dict(text.split("=") for text in options["layers"])
    if options["precision"] in ("int8", "fp8", "nvfp4", "best") and options.get("mode", "static") == "static":
        options["ranges"] = folder / "out/tiny.ranges"
    if "io_formats" in wishes:
        options["tensorrt"] = TensorRTOptions(io_formats=tuple(wishes["io_formats"]))
    return qcompile.build(model, output, data=str(folder / "calibration.npz"), **options).manifest


Outcome = Path | QCompileError


def manifest_of(path: Path) -> Manifest:
    manifest = read_manifest(path)
    assert manifest is not None
    return manifest


def reached_alike(
    folder: Path, artifacts: Mapping[str, Wishes], content: Callable[[Path], bytes] = Path.read_bytes
) -> set[str]:
    """Make each artifact by `run` and by `build`, compare them, and return those that were reached."""
    report = run(folder, artifacts)
    for name, wishes in artifacts.items():
        first = report.artifacts.get(name) or report.failures[name]
        output = folder / "built" / (first.name if isinstance(first, Path) else name)
        try:
            build(folder, output, wishes)
        except QCompileError as error:
            assert_equal(first, error, content)
        else:
            assert_equal(first, output, content)
    again = qcompile.run(folder / "recipe.toml")
    assert set(again.stages.values()) <= {"skipped", "failed"}
    return set(report.artifacts) & set(artifacts)


def assert_equal(first: Outcome, second: Outcome, content: Callable[[Path], bytes]) -> None:
    """The graph, what is said of the artifact, and its bytes; or the error.

    Not its checks: `build` runs an artifact on the data, `run` on random input.
    """
    if not isinstance(first, Path) or not isinstance(second, Path):
        assert type(first) is type(second)
        assert without_files(first) == without_files(second)
        return
    manifests = manifest_of(first), manifest_of(second)
    for what in ("sources", "precision", "options", "proof", "io"):
        by_run, by_build = (getattr(manifest, what) for manifest in manifests)
        assert by_run == by_build, what
    by_run, by_build = ([*map(without_files, manifest.warnings)] for manifest in manifests)
    assert by_run == by_build
    assert content(first) == content(second)


def without_files(text: object) -> str:
    """The two roads write to different files, and some messages name them."""
    return re.sub(r"\S+\.(onnx|engine|rejected)\b", "FILE", str(text))


def without_node_names(path: Path) -> bytes:
    """ONNX Runtime's optimizer numbers the nodes that it adds differently each time."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = ""
    return model.SerializeToString(deterministic=True)


def nothing_more(_: Path) -> bytes:
    """TensorRT-RTX numbers names inside a plan differently each time; its graph is among the sources."""
    return b""


def wishes_for(target: str, **more: Any) -> dict[str, Wishes]:
    tensorrt = target.startswith("tensorrt")
    return {
        name: {"target": target, **more, **wishes}
        for name, wishes in EVERY.items()
        if tensorrt or "io_formats" not in wishes
    }


STATIC = {"int8", "excluded", "only", "layers", "gptq"}


def test_build_and_run_make_the_same_for_onnxruntime(folder: Path) -> None:
    reached = reached_alike(folder, wishes_for("onnxruntime"), without_node_names)
    assert reached == {"fp32", "int4", "dynamic", *STATIC}


def test_build_and_run_make_the_same_for_openvino(folder: Path, on_processor: Callable[..., None]) -> None:
    pytest.importorskip("openvino")
    on_processor("avx512_bf16", "avx512_fp16")
    wishes = wishes_for("openvino")
    few = {name: wishes[name] for name in ("fp32", "bf16", "int4", "int8", "layers", "mixed")}
    assert reached_alike(folder, few) >= {"fp32", "int8", "layers"}  # of 16 bits the processor decides


def test_build_and_run_make_the_same_for_tensorrt_rtx(folder: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    wishes = wishes_for("tensorrt-rtx", gpus=["sm86"])
    few = {name: wishes[name] for name in ("tf32", "int4", "best", "float_precision", "mixed", "fp8", "gptq")}
    assert reached_alike(folder, few, nothing_more) >= few.keys() - {"fp8"}


@pytest.mark.parametrize("version", ["8.5.3", "11.4"])  # of weak types and of strong ones
def test_build_and_run_make_the_same_for_tensorrt(
    version: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, folder, version)
    reached = reached_alike(folder, wishes_for("tensorrt"))
    expected = {"fp32", "tf32", "fp16", "best", "float_precision", "mixed", "typed", *STATIC}
    if version != "8.5.3":
        expected |= {"bf16", "int4"}
    assert reached == expected


def test_a_build_with_the_data_corrects_biases_and_one_without_says_that_it_does_not(folder: Path) -> None:
    wishes = {"target": "onnxruntime", "precision": "int8"}
    report = run(folder, {"cpu": wishes})
    assert manifest_of(report.output / "cpu.graph.onnx").proof["corrected_biases"] == 3
    with_data = build(folder, folder / "m.onnx", wishes)
    assert with_data.sources["graph"] == read_graph(report.output / "cpu.graph.onnx").digest()
    assert with_data.warnings == ()
    without = qcompile.build(
        folder / "out/tiny.onnx", folder / "w.onnx", ranges=folder / "out/tiny.ranges", **wishes
    ).manifest
    assert without.sources["graph"] != with_data.sources["graph"]
    (warning,) = without.warnings
    assert warning.startswith("no data was given: biases were not corrected")


def test_gptq_of_static_int8_waits_for_the_data_where_openvino_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    asked: list[str] = []

    def missed(_: OpenVino, request: BuildRequest) -> dict[str, str]:
        asked.append(request.model)
        return {"gemm": "for a test"} if len(asked) == 1 else {}

    monkeypatch.setattr(OpenVino, "missed_layers", missed)
    report = run(folder, {"ov": {"target": "openvino", "precision": "int8", "rounding": "gptq"}})
    assert len(asked) == 2
    graph, artifact = (manifest_of(report.output / name) for name in ("ov.graph.onnx", "ov.onnx"))
    assert graph.proof["rounded_weights"] == 2
    assert artifact.proof["left_in_float"] == {"gemm": "for a test"}
    assert any("1 of 3 layers stay in float" in text for text in artifact.warnings)


def test_layers_of_a_graph_that_is_quantized_already_cannot_be_given_another_precision(folder: Path) -> None:
    model, graph = folder / "residual.onnx", folder / "int8.onnx"
    data = str(folder / "calibration.npz")
    ranges = qcompile.calibrate(model, data, folder / "m.ranges").path
    qcompile.quantize(model, graph, ranges=ranges, data=data, correct_bias=False)
    wishes: Wishes = {"target": "onnxruntime", "precision": "int8"}
    for named in ({"exclude": ["conv1"]}, {"only": ["gemm"]}, {"layers": {"conv1": "fp32"}}):
        with pytest.raises(InvalidOption, match=r"graph is int8 already; int8 with (conv1|gemm)"):
            qcompile.build(graph, folder / "m.onnx", **wishes, **named)
    assert qcompile.build(graph, folder / "m.onnx", **wishes).manifest.precision == "int8"


def test_layers_that_an_engine_would_not_keep_are_refused(
    folder: Path, on_processor: Callable[..., None]
) -> None:
    pytest.importorskip("openvino")
    on_processor("avx512_bf16")
    wishes: Wishes = {"target": "openvino", "precision": "bf16", "layers": {"conv1": "fp32"}}
    said = "bf16 for openvino: it chooses the types of all layers by itself"
    with pytest.raises(InvalidOption, match=said):
        qcompile.build(folder / "residual.onnx", folder / "m.onnx", **wishes)


def test_shapes_of_an_artifact_stay_where_a_large_batch_is_measured(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    text = (
        '[[artifact]]\nname = "e"\ntarget = "tensorrt-rtx"\ngpus = ["sm86"]\nmin_shapes = ["x:2x4x8x8"]\n'
        'max_shapes = ["x:40x4x8x8"]\n[bench]\nbatch_size = 32\n'
    )
    (folder / "recipe.toml").write_text(HEAD + text)
    recipe = qcompile.read_recipe(folder / "recipe.toml")
    stage = Stage(
        kind="build", artifact="e", files={"model": StageFile(folder / "residual.onnx", "sha256:0")}
    )
    carry_out(recipe, stage, tmp_path / "built", tmp_path, silent)
    (built,) = (tmp_path / "built").glob("e.*[!n]")
    assert manifest_of(built).options["max_shapes"] == ["x:40x4x8x8"]


def test_what_data_judges_is_not_judged_on_random_input_before(tmp_path: Path) -> None:
    """The mask decoder of Segment Anything takes the size of its masks, of which made up ones are none."""
    pytest.importorskip("openvino")
    weights, x = normal(8, 8), normal(6, 8)
    proto = model_of(
        """(float[n,8] x, float[1] size) => (float[values] y) {
        m = MatMul(x, w) large = Abs(size) shape = Cast <to = 7> (large) y = Reshape(m, shape) }""",
        opset=17, w=weights,
    )  # fmt: skip
    onnx.save(proto, tmp_path / "m.onnx")
    for name in range(4):
        np.savez(tmp_path / f"{name}.npz", x=x + name, size=np.array([48], np.float32))
    (tmp_path / "data.py").write_text(
        "from pathlib import Path\n\nimport numpy as np\n\ndef read():\n"
        "    return (dict(np.load(path)) for path in Path(__file__).parent.glob('*.npz'))\n"
    )
    model, data = tmp_path / "m.onnx", f"{tmp_path}/data.py:read"
    ranges = qcompile.calibrate(model, data, tmp_path / "m.ranges").path
    wishes: Wishes = {"target": "openvino", "precision": "int8", "ranges": ranges, "data": data}
    built = qcompile.build(model, tmp_path / "o.onnx", **wishes)
    assert all(check.passed for check in built.manifest.checks)
