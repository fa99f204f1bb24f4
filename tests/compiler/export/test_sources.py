"""Every MODEL becomes an ONNX file that computes what PyTorch computes, or nothing appears at all.

The tests of TensorFlow's road need `QCOMPILE_TENSORFLOW_PYTHON`, an interpreter with tensorflow and tf2onnx.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torchscript_models import Branching, Convolutions, TwoNamed
from written_models import normal, run_file

import qcompile
from qcompile.compiler.export import export
from qcompile.compiler.export.onnx_source import input_shapes
from qcompile.core.installation import install_hint
from qcompile.core.progress import quiet
from qcompile.errors import (
    EngineUnavailable,
    ExportError,
    InvalidOption,
    MissingFile,
    ModelError,
    UnsupportedOperator,
)
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import read_graph
from qcompile.model.sources.load import load_torch
from qcompile.model.sources.source import parse_source
from qcompile.model.sources.tensorflow import convert, tensorflow_python
from qcompile.spec.opsets import NEWEST_EXPORTED, OLDEST
from qcompile.spec.tensors import TensorInfo


class Pair(nn.Module):
    """A dict of two outputs from two inputs, of which the second is a keyword."""

    def forward(self, left: Tensor, *, right: Tensor) -> dict[str, Tensor]:
        return {"total": left + right, "ratio": left / (right * right + 1)}


class Nested(nn.Module):
    """Outputs inside a structure without names."""

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return x + 1, [x * 2]


class Random(nn.Module):
    """Computes something else each time."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Fixed(nn.Module):
    """Takes two rows and two columns, no other number."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.ones(2, 2)


def test_a_dynamic_batch_is_named_and_equal_to_pytorch_at_extents_it_was_not_traced_with(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5)).eval()
    artifact = export(module, tmp_path / "m.onnx", inputs=["x:[batch,3,4,4]"], outputs=["scores"])
    assert artifact.manifest.io is not None
    assert artifact.manifest.io.inputs[0].shape == ("batch", 3, 4, 4)
    assert artifact.manifest.io.outputs[0].shape == ("batch", 5)
    assert [check.name for check in artifact.manifest.checks][1:] == [
        "same outputs as PyTorch at batch 1",
        "same outputs as PyTorch at batch 3",
    ]
    for batch in (1, 2, 7):
        x = normal(batch, 3, 4, 4)
        expected = module(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(run_file(artifact.path, x=x)["scores"], expected, rtol=1e-4, atol=1e-5)


def test_two_inputs_keyword_arguments_and_a_dict_keep_their_names(tmp_path: Path) -> None:
    artifact = export(Pair(), tmp_path / "m.onnx", inputs=["right:[n,3]", "left:[n,3]"])
    left, right = normal(4, 3, seed=1), normal(4, 3, seed=2)
    outputs = run_file(artifact.path, left=left, right=right)
    assert list(outputs) == ["total", "ratio"]
    np.testing.assert_allclose(outputs["total"], left + right, rtol=1e-6)
    np.testing.assert_allclose(outputs["ratio"], left / (right * right + 1), rtol=1e-5)


def test_outputs_without_names_are_numbered_and_names_must_be_as_many(tmp_path: Path) -> None:
    artifact = export(Nested(), tmp_path / "m.onnx", inputs=["x:2x3"])
    assert list(run_file(artifact.path, x=normal(2, 3))) == ["output_0", "output_1"]
    with pytest.raises(InvalidOption, match="1 output name for 2 outputs"):
        export(Nested(), tmp_path / "m.onnx", inputs=["x:2x3"], outputs=["only"])


@pytest.mark.parametrize("suffix", [".pt2", ".pt"])
def test_inputs_given_in_another_order_than_forward_has_keep_their_meaning(
    suffix: str, tmp_path: Path
) -> None:
    class Difference(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left - right

    program, example = str(tmp_path / f"m{suffix}"), (torch.ones(2, 3), torch.ones(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if suffix == ".pt2":
            torch.export.save(torch.export.export(Difference(), example), program)
        else:
            torch.jit.save(torch.jit.trace(Difference(), example), program)
    artifact = export(program, tmp_path / "m.onnx", inputs=["right:2x3", "left:2x3"], trust=True)
    left, right = normal(2, 3, seed=1), normal(2, 3, seed=2)
    np.testing.assert_array_equal(run_file(artifact.path, left=left, right=right)["output"], left - right)


def test_an_opset_out_of_range_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    for version in (OLDEST - 1, NEWEST_EXPORTED + 1):
        with pytest.raises(InvalidOption, match=f"opset {version}: {OLDEST} to {NEWEST_EXPORTED}"):
            export("nowhere.py:build", tmp_path / "m.onnx", opset_version=version)


@pytest.mark.parametrize(
    ("module", "shape", "message", "hint"),
    [(Random(), "2x3", "same outputs as PyTorch", "randomness"), (Fixed(), "[n,2]", "dynamic", ""),
     (Fixed(), "[2,n]", "dynamic", "")],
)  # fmt: skip
def test_a_random_model_and_a_fixed_axis_are_errors_and_leave_nothing(
    module: nn.Module, shape: str, message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises((ExportError, ModelError), match=message) as caught:
        export(module, tmp_path / "m.onnx", inputs=[f"x:{shape}"])
    assert hint in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_unknown_inputs_are_asked_for_with_an_example(torch_model: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="inputs are not known") as caught:
        export(torch_model, tmp_path / "m.onnx")
    assert "`inputs` NAME:SHAPE, such as x:1x3x224x224" in caught.value.hint
    assert caught.value.data["option"] == "inputs"


def save(path: Path, module: Any, make: str, *arguments: torch.Tensor) -> Path:
    """Write an archive as its users do: "trace", "script", or either frozen."""
    module = module.eval()
    with quiet():
        made = (
            torch.jit.trace(module, arguments, strict=False) if "trace" in make else torch.jit.script(module)
        )
        torch.jit.save(torch.jit.freeze(made) if "freeze" in make else made, str(path))
    return path


@pytest.mark.parametrize(
    ("module", "make", "shape", "x"),
    [
        *((Convolutions(), make, "3,8,8", torch.randn(5, 3, 8, 8))
          for make in ("trace", "script", "trace freeze", "script freeze")),
        *((Branching(), "script", "4", sign * torch.rand(3, 4) + sign) for sign in (1, -1)),
    ],
)  # fmt: skip
def test_an_archive_becomes_onnx_with_its_branches_loops_and_defaults(
    module: nn.Module, make: str, shape: str, x: Tensor, tmp_path: Path
) -> None:
    path = save(tmp_path / "m.pt", module, make, torch.zeros_like(x[:2]))
    export(str(path), tmp_path / "m.onnx", inputs=[f"x:[batch,{shape}]"], trust=True)
    [actual] = run_file(tmp_path / "m.onnx", x=x.numpy()).values()
    with torch.no_grad():
        np.testing.assert_allclose(actual, module.eval()(x).numpy(), atol=1e-5)


def test_a_dict_of_outputs_keeps_its_names(tmp_path: Path) -> None:
    ids = torch.ones(2, 5, dtype=torch.int64)
    path = save(tmp_path / "m.pt", TwoNamed(), "trace", ids, ids)
    inputs = ["ids:[batch,length]:int64", "mask:[batch,length]:int64"]
    artifact = export(str(path), tmp_path / "m.onnx", inputs=inputs, trust=True)
    assert artifact.manifest.io is not None
    assert [str(one) for one in artifact.manifest.io.outputs] == [
        "hidden:[batch,length,4]:float32", "pooled:[batch,4]:float32",
    ]  # fmt: skip


PYTHON = os.environ.get("QCOMPILE_TENSORFLOW_PYTHON", "")
with_tensorflow = pytest.mark.skipif(not PYTHON, reason="QCOMPILE_TENSORFLOW_PYTHON names no interpreter")
MODELS = Path(__file__).parents[2] / "support" / "tensorflow_models.py"


def layer(kind: str, name: str, module: str = "keras.layers", **more: Any) -> dict[str, Any]:
    return {"module": module, "class_name": kind, "config": {"name": name}, **more}


def keras_file(path: Path, *layers: dict[str, Any]) -> Path:
    """As Keras 3 writes a model: layers, each in its own configuration, deep in the tree."""
    config = {"module": "keras", "class_name": "Functional", "config": {"name": "m", "layers": list(layers)}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
    return path


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"tensorflow={path}"


def test_a_tensorflow_model_is_nothing_that_pytorch_runs(tmp_path: Path) -> None:
    (tmp_path / "m.keras").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be run by PyTorch\n  hint: export it"):
        load_torch(parse_source("m.keras", base=tmp_path))


@pytest.mark.parametrize(
    "code",
    [
        layer("Lambda", "mine"),
        layer("TorchModuleWrapper", "mine"),
        layer("TFSMLayer", "mine"),
        layer("Own>Lambda", "mine"),
        layer("Block", "mine", module="package.layers"),
        layer("Block", "mine", module="keras.layers", registered_name="package>Block"),
        layer("Dense", "mine", activation={"module": "os", "class_name": "function", "config": "system"}),
        layer("Dense", "mine", f={"module": "keras.utils", "class_name": "function", "config": "get_file"}),
        layer("Dense", "mine", f={"module": "keras.opsx", "class_name": "function", "config": "f"}),
        layer("Bidirectional", "outer", layer=layer("Lambda", "mine")),
    ],
)
def test_a_keras_file_with_code_is_refused_before_any_process_starts(tmp_path: Path, code: Any) -> None:
    path = keras_file(tmp_path / "m.keras", layer("Dense", "first"), code)
    with pytest.raises(ModelError, match=r"m\.keras: layer 'mine' \(.+\) is Python code"):
        qcompile.export(str(path), tmp_path / "m.onnx", python=["tensorflow=/bin/false"], trust=True)
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut off"])
def test_what_is_no_keras_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.keras").write_bytes(content)
    with pytest.raises(ModelError, match="not a Keras file"):
        qcompile.export(str(tmp_path / "m.keras"), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (["tensorflow"], "tensorflow=INTERPRETER is required"),
        (["tensorrt=/bin/sh"], "tensorflow=INTERPRETER is required"),
        ([f"tensorflow={sys.executable}"] * 2, "is required once"),
        (["tensorflow=/nothing/python"], "there is no executable"),
    ],
)
def test_the_interpreter_is_spelled_out(text: list[str], refusal: str) -> None:
    with pytest.raises((InvalidOption, MissingFile), match=refusal):
        tensorflow_python(text)
    assert tensorflow_python([]) == sys.executable
    assert tensorflow_python([f"tensorflow={sys.executable}"]) == sys.executable


def test_errors_of_the_process_are_translated(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(b"")
    source = parse_source("m.tflite", base=tmp_path)
    out = tmp_path / "m.onnx"
    if find_spec("tensorflow") is None:
        with pytest.raises(EngineUnavailable, match=r"m\.tflite: tensorflow.* cannot be imported") as caught:
            convert(source, sys.executable, out, opset=18, trust=False)
        assert install_hint("tensorflow") in caught.value.hint
        assert "`python` tensorflow=tf/bin/python" in caught.value.hint
    python = script(tmp_path / "python", "echo out of luck >&2; exit 3")
    with pytest.raises(ModelError, match="exit code 3: out of luck"):
        qcompile.export(str(source.file), out, python=[python])
    with pytest.raises(InvalidOption, match="cannot be run"):
        convert(source, str(tmp_path), out, opset=18, trust=False)


def test_files_of_the_current_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.tflite").write_bytes(b"")
    (tmp_path / "json.py").write_text("raise SystemExit('taken from the folder')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises((EngineUnavailable, ModelError)) as caught:
        convert(parse_source("m.tflite"), sys.executable, tmp_path / "m.onnx", opset=18, trust=False)
    assert "taken from" not in str(caught.value)


def test_open_axes_get_names_and_shapes_that_are_requested() -> None:
    tensors = [TensorInfo("x", "float32", ("unk__1", "unk__2", 3)), TensorInfo("y", "int64", ("?",))]
    assert [t.shape for t in input_shapes(tensors, [], [])] == [("batch", "x_1", 3), ("batch",)]
    assert input_shapes(tensors, ["x:1x5x3"], [])[0].shape == (1, 5, 3)
    assert input_shapes(tensors, [], ["x:1=length"])[0].shape == ("batch", "length", 3)
    for requested, refusal in (
        ("z:1", "no input of the model; it takes x, y"),
        ("x:1x5x4", r"is \?x\?x3"),
    ):
        with pytest.raises(InvalidOption, match=refusal):
            input_shapes(tensors, [requested], [])


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of TensorFlow models; the CNN is trained on the digits that it does not keep for the test."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("tensorflow")
    data = load_digits()
    images = (data.images[..., None] / 16).astype(np.float32)
    np.savez(folder / "digits.npz", image=images[:1400], labels=data.target[:1400])
    np.savez(folder / "held.npz", image=images[1400:], labels=data.target[1400:])
    command = [PYTHON, str(MODELS), str(folder), str(folder / "digits.npz")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


Exported = Callable[..., qcompile.Artifact]


@pytest.fixture
def exported(models: Path, tmp_path: Path) -> Exported:
    """`exported("digits.keras")` exports a model by the interpreter with TensorFlow."""

    def export(name: str, **options: Any) -> qcompile.Artifact:
        return qcompile.export(
            str(models / name), tmp_path / "model.onnx", python=[f"tensorflow={PYTHON}"], **options
        )

    return export


@with_tensorflow
@pytest.mark.parametrize(
    ("name", "options", "io"),
    [
        ("digits.keras", {}, ["image:[batch,8,8,1]:float32", "logits:[batch,10]:float32"]),
        ("digits.h5", {}, ["image:[batch,8,8,1]:float32", "logits:[batch,10]:float32"]),
        (
            "digits.tflite",
            {},
            ["image:[batch,8,8,1]:float32", "StatefulPartitionedCall_1:[batch,10]:float32"],
        ),
        (
            "digits.keras",
            {"inputs": ["image:1x8x8x1"], "opset_version": 13},
            ["image:1x8x8x1:float32", "logits:1x10:float32"],
        ),
        ("lstm.keras", {}, ["series:[batch,series_1,6]:float32", "out:[batch,3]:float32"]),
        (
            "two_outputs",
            {"outputs": ["first", "second"]},
            ["tokens:[batch,16]:int32", "first:[batch,4]:float32", "second:[batch,second_1,8]:float32"],
        ),
        (
            "adds:add",
            {},
            [f"{name}:[batch,4]:float32" for name in ("a", "b", "difference", "sum")],
        ),
    ],
)
def test_models_keep_their_names_their_layout_and_their_axes(
    exported: Exported, models: Path, name: str, options: dict[str, Any], io: list[str]
) -> None:
    artifact = exported(name, **options)
    found = model_io(read_graph(artifact.path).load())
    assert [str(tensor) for tensor in (*found.inputs, *found.outputs)] == io
    assert all(check.passed for check in artifact.manifest.checks)
    assert artifact.manifest.options["exporter"] == "tf2onnx"
    assert artifact.manifest.options["opset"] == options.get("opset_version", 20)
    assert {"tensorflow", "tf2onnx", "keras"} <= set(artifact.manifest.tools)
    if name.startswith("digits") and not options:
        with np.load(models / "held.npz") as held:
            scores = onnxruntime.InferenceSession(artifact.path).run(None, {"image": held["image"]})[0]
            assert (scores.argmax(-1) == held["labels"]).mean() > 0.85


@with_tensorflow
def test_what_is_no_model_of_numbers_alone_is_refused(exported: Exported, models: Path) -> None:
    (models / "damaged").mkdir()
    (models / "damaged" / "saved_model.pb").write_bytes(b"\xff\xff no graph")
    for name, refusal in {
        "reads": r"touches files or calls Python \(ReadFile\)",
        "adds:none": "signature not in model none",
        "only.weights.h5": "No model config found",
        "lambda.h5": r"'mine' \(Lambda\) is Python code",
        "damaged": "ended with exit code 1",
    }.items():
        with pytest.raises(ModelError, match=refusal):
            exported(name)
    with pytest.raises(UnsupportedOperator, match="no form for TensorFlow's ReadFile"):
        exported("reads", trust=True)
