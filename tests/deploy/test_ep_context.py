"""Engines as EPContext files: held against ONNX Runtime's own schema, loader and metadata reader.

The engines are those of the real TensorRT-RTX builder. ONNX Runtime reads the files as far as it can without
the provider, which is the last thing that it asks for.

EPContext files of whole networks, built for all GPUs that the provider takes: inputs of int64, two dynamic
axes, several profiles and outputs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from packaging_engines import make_engine
from road_models import COMPACT, started

import qcompile
from qcompile.artifact import load_artifact
from qcompile.deploy import ep_context, package_ep_context, package_triton
from qcompile.errors import ArtifactError, InvalidOption, MissingFile, ModelError, QCompileError
from qcompile.model.onnx_file import load_onnx, model_io

RTX = "NvTensorRTRTXExecutionProvider"
BATCHES = {"min_shapes": ["x:1x16"], "opt_shapes": ["x:2x16"], "max_shapes": ["x:8x16"]}


@pytest.fixture
def engine(tiny_file: Callable[..., Path], tmp_path: Path) -> Path:
    """An engine of TensorRT-RTX for two GPUs, of x [batch,16] to y [batch,8]."""
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    path = tmp_path / "built/model.engine"
    qcompile.build(tiny_file("mlp"), path, target="tensorrt-rtx", gpus=["sm86", "sm120"], **BATCHES)
    return path


def node_of(path: Path) -> dict[str, Any]:
    """The attributes of the one node."""
    (node,) = load_onnx(path).graph.node
    assert (node.op_type, node.domain) == ("EPContext", "com.microsoft")
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}


def test_every_attribute_is_one_of_onnx_runtimes_schema(engine: Path, tmp_path: Path) -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    (schema,) = (one for one in state.get_all_operator_schema() if one.name == "EPContext")
    written = load_onnx(package_ep_context(engine, tmp_path / "m.onnx").path)
    (node,) = written.graph.node
    assert schema.domain == node.domain
    assert schema.since_version == {item.domain: item.version for item in written.opset_import}[node.domain]
    for item in node.attribute:
        kind = onnx.AttributeProto.AttributeType.Name(item.type)
        assert str(schema.attributes[item.name].type).endswith(kind), item.name
    left_out = set(schema.attributes) - {item.name for item in node.attribute}
    assert left_out == {"max_size", "notes", "onnx_model_filename"}


def test_attributes_say_what_the_manifest_says(engine: Path, tmp_path: Path) -> None:
    packaged = package_ep_context(engine, tmp_path / "m.onnx")
    node, manifest = node_of(packaged.path), load_artifact(engine).manifest
    assert node["source"].decode() == packaged.provider == RTX
    assert node["ep_sdk_version"].decode() == manifest.tools["tensorrt-rtx"]
    assert node["hardware_architecture"] == b"86,120"
    assert node["main_context"] == 1
    assert manifest.digest.removeprefix("sha256:")[:16] in node["partition_name"].decode()
    assert model_io(load_onnx(packaged.path)) == manifest.io


def test_the_engine_comes_back_byte_by_byte(engine: Path, tmp_path: Path) -> None:
    plan = engine.read_bytes()
    apart = package_ep_context(engine, tmp_path / "apart.onnx")
    inside = package_ep_context(engine, tmp_path / "inside.onnx", embed=True)
    assert node_of(apart.path)["embed_mode"] == 0
    assert node_of(apart.path)["ep_cache_context"] == b"apart.onnx.data"
    assert (tmp_path / "apart.onnx.data").read_bytes() == plan
    assert node_of(inside.path)["embed_mode"] == 1
    assert node_of(inside.path)["ep_cache_context"] == plan
    assert [len(one.files) for one in (apart, inside)] == [2, 1]
    for one in (apart, inside):
        manifest = load_artifact(one.path).manifest  # its digest covers the file with the engine
        assert manifest.sources["engine"] == f"sha256:{hashlib.sha256(plan).hexdigest()}"
        assert manifest.proof["has_run"] is False
        assert manifest.device == {"gpus": ["sm86", "sm120"]}
        assert manifest.warnings[-1] == "not run: no GPU has loaded this file"


@pytest.mark.parametrize("embed", [False, True])
def test_onnx_runtime_lacks_nothing_but_the_provider(engine: Path, tmp_path: Path, embed: bool) -> None:
    import onnxruntime

    path = package_ep_context(engine, tmp_path / "m.onnx", embed=embed).path
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in tmp_path.glob("m.onnx*"):
        shutil.copy(file, moved)
    for folder in (tmp_path, moved):
        with pytest.raises(Exception, match="not compatible with any execution provider") as caught:
            onnxruntime.InferenceSession(str(folder / path.name), providers=["CPUExecutionProvider"])
        assert type(caught.value).__name__ == "NotImplemented"
        assert f"generated by '{RTX}'" in str(caught.value)


def test_onnx_runtime_finds_the_header_that_it_will_ask_the_provider_about(
    engine: Path, tmp_path: Path
) -> None:
    import tensorrt_rtx as trt
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    path = package_ep_context(engine, tmp_path / "m.onnx").path
    header = bytes.fromhex(state.get_compatibility_info_from_model(str(path), RTX))
    runtime = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR))
    assert header == engine.read_bytes()[: runtime.engine_header_size]
    malformed = int(trt.EngineInvalidityDiagnostics.MALFORMED_ENGINE)
    assert not runtime.get_engine_validity(header)[1] & malformed
    assert runtime.get_engine_validity(header[:32])[1] & malformed
    assert state.get_compatibility_info_from_model(str(path), "OpenVINOExecutionProvider") is None


def test_what_contradicts_the_schema_or_the_engine_is_never_written(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ep_context.engine_graph

    def attribute(model: onnx.ModelProto, name: str) -> onnx.AttributeProto:
        return next(item for item in model.graph.node[0].attribute if item.name == name)

    def text_for_a_number(model: onnx.ModelProto) -> None:
        attribute(model, "main_context").CopyFrom(onnx.helper.make_attribute("main_context", "1"))

    def outside(model: onnx.ModelProto) -> None:
        attribute(model, "ep_cache_context").s = b"../m.onnx.data"

    def another_engine(model: onnx.ModelProto) -> None:
        attribute(model, "embed_mode").i = 1

    def unknown_operator(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "EPContexts"

    def another_shape(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3

    for change, said in (
        (text_for_a_number, "Mismatched attribute type"),
        (outside, "does not lie beside it"),
        (another_engine, "has digest"),
        (unknown_operator, "is not a registered function/op"),
        (another_shape, "inputs and outputs are not the engine's"),
    ):

        def damaged(*given: Any, change: Any = change, **named: Any) -> onnx.ModelProto:
            model = made(*given, **named)
            change(model)
            return model

        monkeypatch.setattr(ep_context, "engine_graph", damaged)
        with pytest.raises(ModelError, match=said):
            package_ep_context(engine, tmp_path / "m.onnx")
        assert list(tmp_path.glob("*m.onnx*")) == []


def test_neither_provider_is_given_the_others_engine(engine: Path, tmp_path: Path) -> None:
    plain = make_engine(tmp_path / "plain.engine", device={"gpus": ["sm86"]})
    with pytest.raises(InvalidOption, match=f"built by tensorrt, which {RTX} cannot load"):
        package_ep_context(plain, tmp_path / "m.onnx", provider="tensorrt-rtx")
    with pytest.raises(InvalidOption, match="which TensorrtExecutionProvider cannot load"):
        package_ep_context(engine, tmp_path / "m.onnx", provider="tensorrt")
    packaged = package_ep_context(plain, tmp_path / "m.onnx", provider="tensorrt")
    assert node_of(packaged.path)["source"] == b"TensorrtExecutionProvider"
    assert not load_onnx(packaged.path).metadata_props


def refusals(folder: Path) -> dict[str, tuple[Path, type[QCompileError]]]:
    """What is said of an engine that cannot be packaged, to the engine and the error."""

    def rtx(name: str, gpus: tuple[str, ...] = ("sm86",), **more: Any) -> Path:
        more = {"target": "tensorrt-rtx", "device": {"gpus": list(gpus)}, **more}
        return make_engine(folder / name, **more)

    unknown, changed = rtx("unknown.engine"), rtx("changed.engine")
    unknown.with_name("unknown.engine.json").unlink()
    changed.write_bytes(b"something else")
    return {
        "has no manifest": (unknown, ArtifactError),
        "differs from its manifest's": (changed, ArtifactError),
        "does not exist": (folder / "absent.engine", MissingFile),
        "stored without weights": (rtx("bare.engine", options={"strip_weights": True}), ArtifactError),
        "memory format of its own": (
            rtx("chw.engine", options={"io_formats": ["x=float16:chw32"]}), InvalidOption,
        ),
        "is float64": (rtx("double.engine", dtypes={"x": "float64"}), InvalidOption),
        "names no GPU": (rtx("nowhere.engine", device={}), ArtifactError),
        "takes sm86, sm89 and sm120 and newer": (rtx("old.engine", ("sm75", "sm80")), InvalidOption),
    }  # fmt: skip


def test_engines_that_no_provider_could_load_are_refused(tmp_path: Path) -> None:
    for said, (engine, error) in refusals(tmp_path).items():
        with pytest.raises(error, match=said):
            package_ep_context(engine, tmp_path / "m.onnx")
    with pytest.raises(InvalidOption, match=r"an \.onnx file is required"):
        package_ep_context(tmp_path / "old.engine", tmp_path / "m.engine2")
    assert list(tmp_path.glob("m.*")) == []


def test_a_gpu_among_others_that_the_provider_does_not_take_is_named(tmp_path: Path) -> None:
    device = {"gpus": ["sm80", "sm89"]}
    engine = make_engine(tmp_path / "e.engine", target="tensorrt-rtx", device=device)
    assert package_ep_context(engine, tmp_path / "m.onnx").warnings[0].startswith("sm80: not usable")


def test_an_engine_too_large_for_a_protobuf_file_lies_beside_it(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ep_context, "LARGEST_EMBEDDED", engine.stat().st_size - 1)
    with pytest.raises(InvalidOption, match="less than 2 GB"):
        package_ep_context(engine, tmp_path / "m.onnx", embed=True)
    assert len(package_ep_context(engine, tmp_path / "m.onnx").files) == 2


@pytest.mark.parametrize("name", ["", "/e", "../e", "a/../../e", "C:\\e", "C:e", "..\\e", "\\\\host\\e"])
def test_names_that_leave_the_folder_on_linux_or_windows_are_known(name: str) -> None:
    assert not ep_context.is_inside(name)
    assert ep_context.is_inside("model_ctx.onnx.data")
    assert ep_context.is_inside("engines/a..b.engine")


def test_triton_is_not_given_such_a_file(engine: Path, tmp_path: Path) -> None:
    path = package_ep_context(engine, tmp_path / "m.onnx").path
    with pytest.raises(ArtifactError, match=f"holds an engine for {RTX}"):
        package_triton(path, tmp_path / "repository", name="net")


def test_the_command_says_what_was_checked_and_that_nothing_ran(
    engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from qcompile.cli import main

    def run(*arguments: object) -> tuple[str, str]:
        with pytest.raises(SystemExit) as done:
            main(["package", "ep-context", str(engine), *map(str, arguments)])
        assert not done.value.code
        said = capsys.readouterr()
        return said.out, said.err

    out, err = run("-o", tmp_path / "m.onnx")
    assert f"for {RTX}, GPUs 86,120, the engine beside it, in m.onnx.data" in out
    assert "nv_engine_deserialization_enable=1" in out
    assert "not run" in err
    told = json.loads(run("-o", tmp_path / "n.onnx", "--embed", "--json")[0])
    assert told["files"] == [str(tmp_path / "n.onnx")]
    assert told["embedded"]
    assert all(check["passed"] for check in told["checks"])


EXTENTS = {"batch": (1, 4, 8), "length": (16, 32, 64)}
GPUS = ["sm86", "sm89", "sm120"]


def profile(inputs: list[str], times: int) -> str:
    """One profile of a recipe's inputs, its largest extents so many times as large."""
    parts = []
    for spelling in inputs:
        name, shape = spelling.split(":")[:2]
        axes = [EXTENTS.get(axis, (axis,) * 3) for axis in shape.strip("[]").split(",")]
        kinds = ["x".join(str(axis[kind]) for axis in axes) for kind in range(3)]
        low, opt, high = kinds if times == 1 else [kinds[2]] * 3
        parts.append(f"{name}:{low}..{opt}..{high}")
    return ",".join(parts)


@pytest.mark.parametrize("name", ["bert-length", "unet"])
def test_a_network_is_packaged_for_every_gpu_of_the_provider(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    recipe = COMPACT[name]
    torch.manual_seed(0)
    model, engine = tmp_path / "m.onnx", tmp_path / "m.engine"
    qcompile.export(started(recipe.make()), model, inputs=recipe.inputs)
    profiles = [profile(list(recipe.inputs), times) for times in (1, 2)]
    options: dict[str, Any] = {"precision": "fp16", "tensorrt": {"profiles": profiles}}
    qcompile.build(model, engine, target="tensorrt-rtx", gpus=GPUS, **options)
    packaged = package_ep_context(engine, tmp_path / "m_ctx.onnx")
    assert any(text.startswith("2 optimization profiles: the first is used") for text in packaged.warnings)
    assert packaged.architecture == "86,89,120"
    assert [check.passed for check in packaged.checks] == [True] * 5
    written = model_io(onnx.load(packaged.path))
    assert written == load_artifact(engine).manifest.io
    assert [tensor.name for tensor in written.inputs] == [text.split(":")[0] for text in recipe.inputs]
    assert len(load_artifact(packaged.path).manifest.proof["profiles"]) == 2  # type: ignore[arg-type]
