"""Model repositories on disk: which artifacts Triton serves, as what, and that nothing is half done."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import parser
from packaging_engines import IMAGE, make_engine

import qcompile
from qcompile.building.deploy import TritonOptions, package_triton, triton
from qcompile.building.deploy.triton_model import read_triton_model
from qcompile.core.artifact import Manifest, commit, load_artifact
from qcompile.core.files import writing
from qcompile.errors import (
    ArtifactError,
    EngineUnavailable,
    InvalidOption,
    MissingFile,
    ModelError,
    QCompileError,
)
from qcompile.model.sources.archives import trust_files

LARGER = {"x": ((1, 3, 8, 8), (8, 3, 8, 8), (32, 3, 8, 8))}


UNSAFE = ("../up", "/tmp/absolute", "a/b", "a\\b", "..", ".", ".hidden", "", "a\0b", "a\nb\0")
"""Names that lead out of a folder, or are none."""


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return make_engine(tmp_path / "net.engine")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "deep/models"


def test_an_engine_lies_where_triton_looks_with_its_manifest_beside_other_files(
    engine: Path, repository: Path
) -> None:
    (repository / "other/1").mkdir(parents=True)
    (repository / "net").mkdir()
    (repository / "net/labels.txt").write_text("cat")
    packaged = package_triton(engine, repository, name="net")
    files = ["net/1/model.plan", "net/1/model.plan.json", "net/config.pbtxt", "net/labels.txt"]
    assert tree(repository) == files
    assert (repository / "other/1").is_dir()
    assert (repository / "net/config.pbtxt").read_text(encoding="utf-8") == packaged.config
    assert load_artifact(repository / "net/1/model.plan").manifest == load_artifact(engine).manifest
    assert packaged.versions == [1]
    assert packaged.server == f"tritonserver --model-repository={repository}"
    assert packaged.checks[0].name == "the file matches its manifest"


def test_a_new_version_keeps_the_older_ones(tmp_path: Path, engine: Path, repository: Path) -> None:
    package_triton(engine, repository, name="net")
    better = make_engine(tmp_path / "better.engine", plan=b"better")
    options = TritonOptions(version_policy="specific:1,2")
    assert package_triton(better, repository, options, name="net", version=2).versions == [1, 2]
    assert (repository / "net/1/model.plan").read_bytes() == b"plan"
    assert (repository / "net/2/model.plan").read_bytes() == b"better"
    assert "versions: [1, 2]" in (repository / "net/config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {"outputs": {"y": ("batch", 6)}},
            r"version 1 has x TYPE_FP32 \[3, 8, 8\], y TYPE_FP32 \[5\]; this one has .*\[6\]",
        ),
        ({"dtypes": {"x": "float16"}}, "this one has x TYPE_FP16"),
        ({"profiles": [IMAGE, LARGER]}, "version 1 has 1 optimization profiles; this one has 2"),
        ({"profiles": [LARGER]}, "takes batches up to 16; this one up to 32"),
    ],
)
def test_versions_must_be_served_by_one_configuration(
    tmp_path: Path, engine: Path, repository: Path, other: dict[str, Any], said: str
) -> None:
    package_triton(engine, repository, name="net")
    before = tree(repository)
    path = make_engine(tmp_path / "other.engine", **other)
    with pytest.raises(InvalidOption, match=said):
        package_triton(path, repository, name="net", version=2)
    assert tree(repository) == before
    if other == {"profiles": [LARGER]}:
        options = TritonOptions(max_batch_size=16)
        assert package_triton(path, repository, options, name="net", version=2).versions == [1, 2]


def test_versions_of_another_backend_or_without_manifest_are_refused(
    engine: Path, repository: Path, tiny_file: Callable[..., Path]
) -> None:
    package_triton(engine, repository, name="net")
    with pytest.raises(InvalidOption, match="version 1 cannot be compared"):
        package_triton(tiny_file("mlp"), repository, name="net", version=2)
    (repository / "net/1/model.plan.json").unlink()
    said = r"version 1 cannot be compared with this one: .* has no manifest"
    with pytest.raises(InvalidOption, match=said):
        package_triton(engine, repository, name="net", version=2)


def test_nothing_is_replaced_unless_said(tmp_path: Path, engine: Path, repository: Path) -> None:
    package_triton(engine, repository, name="net")
    other = make_engine(tmp_path / "other.engine", plan=b"other")
    with pytest.raises(InvalidOption, match="version 1 exists") as caught:
        package_triton(other, repository, name="net")
    assert caught.value.hint == "give `version` 2, or `overwrite`"
    assert (repository / "net/1/model.plan").read_bytes() == b"plan"
    (repository / "net/1/labels.txt").write_text("old")
    package_triton(other, repository, name="net", overwrite=True)
    assert tree(repository) == ["net/1/model.plan", "net/1/model.plan.json", "net/config.pbtxt"]
    assert (repository / "net/1/model.plan").read_bytes() == b"other"


@pytest.mark.parametrize("change", [lambda text: text + "# mine\n", lambda text: text.split("\n", 1)[1]])
def test_a_configuration_changed_by_hand_is_kept(
    engine: Path, repository: Path, change: Callable[[str], str]
) -> None:
    package_triton(engine, repository, name="net")
    config = repository / "net/config.pbtxt"
    config.write_text(change(config.read_text()))
    kept = config.read_bytes()
    with pytest.raises(InvalidOption, match="was not written by qcompile, or was changed since"):
        package_triton(engine, repository, name="net", version=2)
    assert config.read_bytes() == kept
    package_triton(engine, repository, name="net", version=2, overwrite=True)
    assert config.read_bytes() != kept


def interrupted(monkeypatch: pytest.MonkeyPatch, at: int, *, before: bool) -> None:
    """Ctrl-C just before, or just after, the rename of that number; 0 while files are copied."""
    calls, rename = 0, os.rename

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def counted(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == at and before:
            raise KeyboardInterrupt
        rename(source, target)
        if calls == at:
            raise KeyboardInterrupt

    if at == 0:
        monkeypatch.setattr(triton, "digest_files", interrupt)
    else:
        monkeypatch.setattr(triton.os, "rename", counted)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("there", "at"), [(False, 0), (False, 1), *((True, at) for at in range(5))])
def test_an_interruption_changes_nothing(
    engine: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, there: bool, at: int, before: bool
) -> None:
    if there:
        package_triton(engine, repository, name="net")
    content = {name: (repository / name).read_bytes() for name in tree(repository)}
    options = TritonOptions(instances=3)
    with monkeypatch.context() as patch:
        interrupted(patch, at, before=before)
        with pytest.raises(KeyboardInterrupt):
            package_triton(engine, repository, options, name="net", overwrite=there)
    assert {name: (repository / name).read_bytes() for name in tree(repository)} == content
    assert repository.is_dir() == there
    assert not list(repository.parent.glob(".qcompile-tmp-*"))


def test_a_copy_that_differs_is_refused(
    engine: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(source: Path, target: Path) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:-1])

    monkeypatch.setattr(triton.shutil, "copyfile", cut_off)
    with pytest.raises(ArtifactError, match=r"its copy model\.plan differs"):
        package_triton(engine, repository, name="net")
    assert not repository.exists()


@pytest.mark.parametrize("name", [*UNSAFE, ".net", "a b", "a\n", "n" * 256])
def test_names_that_are_no_folder_are_refused(engine: Path, repository: Path, name: str) -> None:
    with pytest.raises(InvalidOption, match="`name`"):
        package_triton(engine, repository, name=name)
    assert not repository.exists()


def test_names_may_be_of_any_script(engine: Path, repository: Path) -> None:
    package_triton(engine, repository, name="größe-漢.v2")
    assert 'name: "größe-漢.v2"' in (repository / "größe-漢.v2/config.pbtxt").read_text(encoding="utf-8")


def test_wrong_requests_are_refused(tmp_path: Path, engine: Path, repository: Path) -> None:
    changed = make_engine(tmp_path / "changed.engine")
    changed.write_bytes(b"another plan")
    requests: list[tuple[Path, Path, dict[str, Any], type[QCompileError], str]] = [
        (engine, repository, {"version": 0}, InvalidOption, "`version` 0"),
        (engine, repository, {"version_policy": "specific:1,3"}, InvalidOption, "version 3 is not in"),
        (engine, engine, {}, InvalidOption, "is a file; a folder is required"),
        (engine, engine / "below", {}, InvalidOption, "output"),
        (tmp_path / "none.engine", repository, {}, MissingFile, "does not exist"),
        (changed, repository, {}, ArtifactError, "differs from its manifest's"),
    ]
    for artifact, output, request, error, said in requests:
        with pytest.raises(error, match=said):
            package_triton(artifact, output, name="net", **request)
    assert not repository.exists()


def test_without_tritonclient_nothing_is_written(
    engine: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tritonclient.grpc.model_config_pb2", None)
    with pytest.raises(EngineUnavailable, match=r"Triton's definitions are missing") as raised:
        package_triton(engine, repository, name="net")
    assert raised.value.hint == "pip install 'tritonclient[grpc]>=2.41'"
    assert not repository.exists()


def test_engines_of_rtx_and_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    engine, ranges = make_engine(tmp_path / "m.engine", target="tensorrt-rtx"), tmp_path / "m.ranges"
    with pytest.raises(ArtifactError, match=r"built for tensorrt-rtx; Triton's tensorrt backend") as caught:
        read_triton_model(engine)
    assert "`target` tensorrt" in caught.value.hint
    with writing(ranges) as temporary:
        temporary.write_bytes(b"")
        commit(temporary, Manifest(kind="ranges", stage="calibrate"))
    with pytest.raises(ArtifactError, match="is a ranges file; Triton takes engines, ONNX and TorchScript"):
        read_triton_model(ranges)


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
    with pytest.raises(ArtifactError, match="has no manifest; Triton takes"):
        read_triton_model(engine)


WHOLE = "profile 0 of its manifest has no whole range for x"


@pytest.mark.parametrize(
    ("profiles", "said"),
    [
        *((damaged, r"m\.engine\.json: .*profiles") for damaged in (
            5, [5], [{"x": 5}], [{"x": {"min": [1]}}], [{"x": {"min": 1, "opt": 1, "max": 1}}],
        )),
        *((short, WHOLE) for short in (
            [], [{}], *([{"x": dict.fromkeys(("min", "opt", "max"), shape)}] for shape in ([1], [])),
        )),
    ],
)  # fmt: skip
def test_damaged_profiles_and_a_dynamic_input_without_a_whole_range_are_named(
    tmp_path: Path, profiles: object, said: str
) -> None:
    engine = make_engine(tmp_path / "m.engine")
    manifest = replace(load_artifact(engine).manifest, proof={"profiles": profiles})
    with writing(engine) as temporary:
        temporary.write_bytes(b"plan")
        commit(temporary, manifest)
    with pytest.raises(ArtifactError, match=said):
        read_triton_model(engine)


def onnx_file(path: Path, body: str) -> Path:
    """A graph in ONNX's text form."""
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {body}'), path)
    return path


def test_outputs_are_what_onnx_runtime_infers(tmp_path: Path) -> None:
    """The file says [a,b]; Triton compares with ONNX Runtime's [2,3]."""
    model = onnx_file(tmp_path / "m.onnx", "(float[2,3] x) => (float[a,b] y) { y = Relu(x) }")
    triton_model = read_triton_model(model)
    assert triton_model.io.outputs[0].shape == (2, 3)
    assert onnxruntime.InferenceSession(model).get_outputs()[0].shape == [2, 3]
    assert any("has no manifest" in note for note in triton_model.notes)
    unnamed = onnx_file(tmp_path / "n.onnx", "(float[?,3] x) => (float[?,3] y) { y = Relu(x) }")
    assert read_triton_model(unnamed).io.inputs[0].shape == ("?", 3)


def test_an_output_of_unknown_rank_is_refused(tmp_path: Path) -> None:
    body = "(float[n] x, int64[rank] t) => (float[] y) { y = Reshape(x, t) }"
    path = onnx_file(tmp_path / "m.onnx", body)
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    with pytest.raises(ModelError, match="the rank of 'y' is unknown"):
        read_triton_model(path)


def test_a_scalar_of_onnx_runtime_is_one_value(tmp_path: Path) -> None:
    model = onnx_file(tmp_path / "m.onnx", "(float x) => (float y) { y = Relu(x) }")
    packaged = package_triton(model, tmp_path / "models", name="m")
    assert packaged.config.count("dims: [1]") == 3  # input, output, warm-up
    assert "reshape" not in packaged.config


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
        (TritonOptions(warm_up=True), "the extents of x .* are unknown"),
    ):
        with pytest.raises(InvalidOption, match=message):
            package_triton(model, tmp_path / "models", options, name="n")
    shapes = TritonOptions(warm_up_shapes={"x": (4, 16)})
    assert "dims: [4, 16]" in package_triton(model, tmp_path / "models", shapes, name="n").config


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
    options = TritonOptions(warm_up_shapes=shapes)
    with pytest.raises(InvalidOption, match=message):
        package_triton(tiny_file("mlp"), tmp_path / "models", options, name="m")


def test_torchscript_is_addressed_by_position(torch_model: str, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    qcompile.build(torch_model, path, target="torchscript", inputs=["x:[batch,3,8,8]"])
    with trust_files():
        triton_model = read_triton_model(path)
    assert triton_model.backend.platform == "pytorch_libtorch"
    names = [tensor.name for tensor in (*triton_model.io.inputs, *triton_model.io.outputs)]
    assert names == ["INPUT__0", "OUTPUT__0"]
    assert any("INPUT__0 is x" in note for note in triton_model.notes)
    with pytest.raises(ModelError, match="`trust` is required"):
        package_triton(path, tmp_path / "models", name="net")
    packaged = package_triton(path, tmp_path / "models", name="net", trust=True)
    assert packaged.files == ["model.pt", "model.pt.json"]


def test_torchscript_that_returns_a_dict_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x: torch.Tensor):\n"
        "        return {'y': x + 1, 'z': x * 2}\n\n\ndef build() -> torch.nn.Module:\n    return Net()\n"
    )
    path = tmp_path / "net.pt"
    qcompile.build(f"{tmp_path / 'net.py'}:build", path, target="torchscript", inputs=["x:2x3"])
    with trust_files(), pytest.raises(ArtifactError, match="forward returns Dict"):
        read_triton_model(path)
