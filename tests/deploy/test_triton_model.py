"""Which artifacts Triton serves, as what, with which inputs and files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from packaging_engines import make_engine

import qcompile
from qcompile.artifact import Manifest, commit, load_artifact
from qcompile.deploy import TritonOptions, package_triton
from qcompile.deploy.triton_model import read_triton_model
from qcompile.errors import ArtifactError, InvalidOption, ModelError
from qcompile.files import writing


def onnx_file(path: Path, outputs: list[onnx.ValueInfoProto], *, shape: list[int | str]) -> Path:
    """Relu from x to y, with the given declarations."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_rtx_engines_are_refused_with_the_way_out(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    engine = tmp_path / "m.engine"
    qcompile.build(tiny_file("mlp"), engine, target="tensorrt-rtx", gpus=["sm86"])
    with pytest.raises(ArtifactError, match=r"built for tensorrt-rtx; Triton's tensorrt backend") as caught:
        read_triton_model(engine)
    assert "`target` tensorrt" in caught.value.hint


def test_engines_without_manifest_or_weights_are_refused(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "m.engine", options={"strip_weights": True})
    with pytest.raises(ArtifactError, match="stored without weights"):
        read_triton_model(engine)
    manifest = load_artifact(engine).manifest
    with writing(engine) as temporary:
        temporary.write_bytes(b"plan with weights")
        commit(temporary, replace(manifest, proof={**manifest.proof, "refitted_with": "sha256:1"}))
    assert read_triton_model(engine).path == engine
    (tmp_path / "m.engine.json").unlink()
    with pytest.raises(ArtifactError, match="has no manifest that says what it is"):
        read_triton_model(engine)


@pytest.mark.parametrize(
    "profiles", [5, [5], [{"x": 5}], [{"x": {"min": [1]}}], [{"x": {"min": 1, "opt": 1, "max": 1}}]]
)
def test_a_manifest_with_damaged_profiles_is_named(tmp_path: Path, profiles: object) -> None:
    engine = make_engine(tmp_path / "m.engine")
    manifest = load_artifact(engine).manifest
    with writing(engine) as temporary:
        temporary.write_bytes(b"plan")
        fields = {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}
        commit(temporary, Manifest(**{**fields, "proof": {"profiles": profiles}}))
    with pytest.raises(ArtifactError, match=r"m\.engine\.json: .*profiles"):
        read_triton_model(engine)


def test_a_dynamic_input_without_a_whole_range_is_named(tmp_path: Path) -> None:
    for profiles in ([], [{}], [{"x": ((1,), (2,), (3,))}], [{"x": ((), (), ())}]):
        with pytest.raises(ArtifactError, match="profile 0 of its manifest has no whole range for x"):
            read_triton_model(make_engine(tmp_path / "m.engine", profiles=profiles))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.ranges"
    with writing(path) as temporary:
        temporary.write_bytes(b"")
        commit(temporary, Manifest(kind="ranges", stage="calibrate"))
    with pytest.raises(ArtifactError, match="is a ranges file; Triton takes engines, ONNX and TorchScript"):
        read_triton_model(path)


def test_outputs_are_what_onnx_runtime_infers(tmp_path: Path) -> None:
    """The file says [?,?]; Triton compares with ONNX Runtime's [2,3]."""
    declared = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])
    model = onnx_file(tmp_path / "m.onnx", [declared], shape=[2, 3])
    triton_model = read_triton_model(model)
    assert triton_model.io.outputs[0].shape == (2, 3)
    assert onnxruntime.InferenceSession(model).get_outputs()[0].shape == [2, 3]
    assert any("has no manifest" in note for note in triton_model.notes)


def test_an_output_of_unknown_rank_is_refused(tmp_path: Path) -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["x", "t"], ["y"]),
    ]
    inputs.append(helper.make_tensor_value_info("t", TensorProto.INT64, ["rank"]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    with pytest.raises(ModelError, match="the rank of 'y' is not known"):
        read_triton_model(tmp_path / "m.onnx")


def test_a_scalar_of_onnx_runtime_is_one_value(tmp_path: Path) -> None:
    declared = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    model = onnx_file(tmp_path / "m.onnx", [declared], shape=[])
    packaged = package_triton(model, tmp_path / "models", name="m")
    assert packaged.config.count("dims: [1]") == 3  # input, output, warm-up
    assert "reshape" not in packaged.config


def test_a_damaged_onnx_file_is_named(tiny_file: Callable[..., Path]) -> None:
    model = tiny_file("mlp")
    model.write_bytes(model.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"mlp\.onnx: not an ONNX model"):
        read_triton_model(model)


@pytest.fixture
def with_data(tiny_file: Callable[..., Path], tmp_path: Path) -> Path:
    """A model whose weights lie in two files of their own, one in a folder."""
    model = onnx.load(tiny_file("mlp"))
    folder = tmp_path / "large"
    folder.mkdir()
    for index, tensor in enumerate(model.graph.initializer):
        onnx.external_data_helper.set_external_data(tensor, "weights.bin" if index else "more/first.bin")
    (folder / "more").mkdir()
    onnx.save(model, folder / "mlp.onnx")
    return folder / "mlp.onnx"


def test_external_data_lies_in_a_folder_that_onnx_runtime_loads(with_data: Path, tmp_path: Path) -> None:
    packaged = package_triton(with_data, tmp_path / "models", name="m")
    assert sorted(packaged.files) == [
        "model.onnx/model.onnx", "model.onnx/more/first.bin", "model.onnx/weights.bin",
    ]  # fmt: skip
    shutil.rmtree(with_data.parent)  # nothing of it may still be needed
    session = onnxruntime.InferenceSession(tmp_path / "models/m/1/model.onnx/model.onnx")
    assert session.get_outputs()[0].shape == ["batch", 8]


def test_missing_or_foreign_external_data_is_refused(with_data: Path, tmp_path: Path) -> None:
    (with_data.parent / "weights.bin").rename(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match=r"weights\.bin does not exist"):
        read_triton_model(with_data)
    (with_data.parent / "weights.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match="outside of"):
        read_triton_model(with_data)


def test_openvino_gets_whole_shapes_and_any_batch(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    model = tmp_path / "vino.onnx"
    qcompile.build(tiny_file("mlp"), model, target="openvino")
    packaged = package_triton(model, tmp_path / "models", name="m")
    assert (packaged.backend, packaged.max_batch_size) == ("openvino", 0)
    assert 'default_model_filename: "model.onnx"' in packaged.config
    assert "platform" not in packaged.config
    for options, message in (
        (TritonOptions(max_batch_size=4), "only requests of exactly max_batch_size"),
        (TritonOptions(kind="gpu"), "runs only on cpu"),
        (TritonOptions(cuda_graph=True), "only Triton's tensorrt backend runs CUDA graphs"),
        (TritonOptions(warm_up=True), "nothing tells the extents of x"),
    ):
        with pytest.raises(InvalidOption, match=message):
            package_triton(model, tmp_path / "models", name="n", options=options)
    shapes = TritonOptions(warm_up_shapes={"x": (4, 16)})
    assert "dims: [4, 16]" in package_triton(model, tmp_path / "models", name="n", options=shapes).config


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (4, 16)}, "no input 'z'; the inputs are x"),
        ({"x": (4, 15)}, "4x15 does not fit x"),
        ({"x": (8, 16)}, "batches 8; one up to 4 is required"),
    ],
)
def test_warm_up_shapes_that_do_not_fit_are_refused(
    tiny_file: Callable[..., Path], tmp_path: Path, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        package_triton(
            tiny_file("mlp"), tmp_path / "models", name="m", options=TritonOptions(warm_up_shapes=shapes)
        )


def test_torchscript_is_addressed_by_position(torch_model: str, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    qcompile.build(torch_model, path, target="torchscript", inputs=["x:[batch,3,8,8]"])
    triton_model = read_triton_model(path)
    assert triton_model.backend.platform == "pytorch_libtorch"
    assert [tensor.name for tensor in (*triton_model.io.inputs, *triton_model.io.outputs)] == [
        "INPUT__0",
        "OUTPUT__0",
    ]
    assert any("INPUT__0 is x" in note for note in triton_model.notes)
    packaged = package_triton(path, tmp_path / "models", name="net")
    assert packaged.files == ["model.pt", "model.pt.json"]


def test_torchscript_that_returns_a_dict_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x: torch.Tensor):\n"
        "        return {'y': x + 1, 'z': x * 2}\n\n\ndef build() -> torch.nn.Module:\n    return Net()\n"
    )
    path = tmp_path / "net.pt"
    qcompile.build(f"{tmp_path / 'net.py'}:build", path, target="torchscript", inputs=["x:2x3"])
    with pytest.raises(ArtifactError, match="forward returns Dict"):
        read_triton_model(path)
