"""TensorFlow models as MODEL: what can be said without TensorFlow, and the road with it.

The tests of the road need `QCOMPILE_TENSORFLOW_PYTHON`: an interpreter that has tensorflow and tf2onnx.
"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from sklearn.datasets import load_digits

import qcompile
from qcompile.artifact import read_manifest
from qcompile.compiler.export.tensorflow_source import declared
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.errors import InvalidOption, MissingFile, ModelError, UnsupportedOperator
from qcompile.model.onnx_file import load_onnx, model_io
from qcompile.model.source import digest_source, parse_source
from qcompile.tensors import TensorInfo

PYTHON = os.environ.get("QCOMPILE_TENSORFLOW_PYTHON", "")
with_tensorflow = pytest.mark.skipif(not PYTHON, reason="QCOMPILE_TENSORFLOW_PYTHON names no interpreter")
MODELS = Path(__file__).parents[2] / "support" / "tensorflow_models.py"

TOLD = [{"name": "x", "dtype": "float32", "shape": [None, 8, None]}]


def test_the_spellings(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    for name in ("m.keras", "m.h5"):
        (tmp_path / name).write_bytes(b"")
        assert parse_source(name, base=tmp_path).kind == "keras"
    plain, signed = parse_source("saved", base=tmp_path), parse_source("saved:add", base=tmp_path)
    assert (plain.kind, plain.function) == ("savedmodel", "")
    assert (signed.kind, signed.function, signed.path) == ("savedmodel", "add", plain.path)
    assert parse_source(signed.absolute).function == "add"
    with pytest.raises(MissingFile):
        parse_source("none.keras", base=tmp_path)


def test_the_digest_of_a_saved_model_is_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "variables").mkdir()
    (tmp_path / "saved_model.pb").write_bytes(b"graph")
    weights = tmp_path / "variables" / "variables.data-00000-of-00001"
    weights.write_bytes(b"one")
    source = parse_source(str(tmp_path))
    before = digest_source(source)
    weights.write_bytes(b"two")
    assert digest_source(source) != before


def test_open_axes_get_names_and_given_shapes_fix_them() -> None:
    assert [str(one) for one in declared(TOLD, [], [])] == ["x:[batch,8,x_2]:float32"]
    assert [str(one) for one in declared(TOLD, ["x:[n,8,5]"], [])] == ["x:[n,8,5]:float32"]
    assert [str(one) for one in declared(TOLD, [], ["x:2=length"])] == ["x:[batch,8,length]:float32"]
    assert declared(TOLD, [TensorInfo("x", "float32", (1, 8, 2))], [])[0].shape == (1, 8, 2)


@pytest.mark.parametrize("given", ["y:1x8x2", "x:1x9x2", "x:1x8", "x:[n,k,2]"])
def test_a_shape_that_the_model_does_not_have_is_refused(given: str) -> None:
    with pytest.raises(InvalidOption, match=r"is no input of the model|the model's shape is \?x8x\?"):
        declared(TOLD, [given], [])


def test_a_file_with_code_is_refused_before_any_interpreter_is_started(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    config = {"module": "keras.layers", "class_name": "Lambda", "config": {"name": "mine"}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
    with pytest.raises(ModelError, match=r"layer 'mine' \(Lambda\) holds Python code"):
        qcompile.export(str(path), tmp_path / "m.onnx", python=["tensorflow=/bin/false"])
    path.write_bytes(b"no archive")
    with pytest.raises(ModelError, match="not a Keras file"):
        qcompile.export(str(path), tmp_path / "m.onnx")


def test_pytorch_says_that_it_is_no_pytorch_model(tmp_path: Path) -> None:
    from qcompile.model.pytorch import load_torch

    (tmp_path / "m.keras").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be run by PyTorch\n  hint: export it"):
        load_torch(parse_source(str(tmp_path / "m.keras")))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of TensorFlow models; the CNN is trained on the digits that it does not keep for the test."""
    folder = tmp_path_factory.mktemp("tensorflow")
    data = load_digits()
    images = (data.images[..., None] / 16).astype(np.float32)
    np.savez(folder / "digits.npz", image=images[:1400], labels=data.target[:1400])
    np.savez(folder / "held.npz", image=images[1400:], labels=data.target[1400:])
    command = [PYTHON, str(MODELS), str(folder), str(folder / "digits.npz")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def exported(models: Path, tmp_path: Path) -> Callable[..., qcompile.Artifact]:
    """`exported("digits.keras")` exports a model by the interpreter with TensorFlow."""

    def export(name: str, **options: object) -> qcompile.Artifact:
        output = tmp_path / "model.onnx"
        return qcompile.export(str(models / name), output, python=[f"tensorflow={PYTHON}"], **options)  # type: ignore[arg-type]

    return export


Exported = Callable[..., qcompile.Artifact]


@with_tensorflow
@pytest.mark.parametrize("name", ["digits.keras", "digits.h5"])
def test_a_keras_model_keeps_its_names_its_layout_and_its_batch(exported: Exported, name: str) -> None:
    made = exported(name)
    io = model_io(load_onnx(made.path))
    assert [str(one) for one in (*io.inputs, *io.outputs)] == [
        "image:[batch,8,8,1]:float32",
        "logits:[batch,10]:float32",
    ]
    manifest = read_manifest(made.path)
    assert manifest is not None
    assert all(check.passed for check in manifest.checks)
    assert [check.name for check in manifest.checks][1:] == [
        "same outputs as TensorFlow",
        "same outputs as TensorFlow at batch 1",
        "same outputs as TensorFlow at batch 3",
    ]
    assert manifest.options["exporter"] == "tf2onnx"
    assert manifest.options["opset"] == 20
    assert {"tensorflow", "tf2onnx", "keras", "python"} <= set(manifest.tools)


@with_tensorflow
def test_an_older_opset_a_fixed_batch_and_the_data(exported: Exported, models: Path) -> None:
    made = exported("digits.keras", opset_version=13, inputs=["image:1x8x8x1"], data=str(models / "held.npz"))
    proto = load_onnx(made.path)
    assert proto.opset_import[0].version == 13
    assert model_io(proto).inputs[0].shape == (1, 8, 8, 1)
    assert any(check.name == "same outputs as TensorFlow on the data" for check in made.manifest.checks)


@with_tensorflow
def test_a_recurrent_layer_becomes_an_lstm_of_any_length(exported: Exported) -> None:
    made = exported("lstm.keras")
    assert "LSTM" in {node.op_type for node in onnx.load(made.path).graph.node}
    assert {"batch", "series_1"} == set(made.manifest.options["axes"])  # type: ignore[call-overload]
    assert any("series_1" in check.name for check in made.manifest.checks)


@with_tensorflow
def test_a_saved_model_with_two_outputs(exported: Exported) -> None:
    io = model_io(load_onnx(exported("two_outputs").path))
    assert [one.name for one in io.outputs] == ["score", "tags"]
    renamed = exported("two_outputs", outputs=["first", "second"])
    assert [one.name for one in model_io(load_onnx(renamed.path)).outputs] == ["first", "second"]


@with_tensorflow
def test_a_signature_is_chosen_by_its_name(exported: Exported) -> None:
    with pytest.raises(ModelError, match="there are: add, more"):
        exported("adds")
    io = model_io(load_onnx(exported("adds:add").path))
    assert [one.name for one in io.inputs] == ["a", "b"]
    assert [one.name for one in io.outputs] == ["difference", "sum"]


@with_tensorflow
@pytest.mark.parametrize("name", ["lambda.keras", "lambda.h5"])
def test_a_lambda_runs_only_where_the_file_is_trusted(exported: Exported, name: str) -> None:
    with pytest.raises(ModelError, match=r"'mine' \(Lambda\) holds Python code"):
        exported(name)
    assert all(check.passed for check in exported(name, trust=True).manifest.checks)


@with_tensorflow
def test_what_is_no_model_of_numbers_alone_is_refused(exported: Exported, models: Path) -> None:
    with pytest.raises(ModelError, match=r"touches files or calls Python \(ReadFile\)"):
        exported("reads")
    with pytest.raises(
        UnsupportedOperator, match="custom operators that this TensorFlow does not have: MyOp"
    ):
        exported("custom")
    with pytest.raises(ModelError, match="file takes no numbers"):
        exported("reads", trust=True)
    with pytest.raises(ModelError, match="holds weights alone"):
        exported("only.weights.h5")
    damaged = models / "damaged"
    damaged.mkdir()
    (damaged / "saved_model.pb").write_bytes(b"\xff\xff no graph")
    with pytest.raises(ModelError, match=r"saved_model\.pb is damaged"):
        exported("damaged")


@with_tensorflow
def test_int8_of_a_trained_keras_model_keeps_its_accuracy(
    exported: Exported, models: Path, tmp_path: Path
) -> None:
    made = exported("digits.keras")
    simple = qcompile.simplify(made.path, tmp_path / "simple.onnx")
    ranges = calibrate(simple.path, str(models / "digits.npz"), tmp_path / "m.ranges", samples=64, threads=1)
    int8 = qcompile.quantize(
        simple.path, tmp_path / "int8.onnx", ranges=ranges.path, target="onnxruntime", precision="int8"
    )
    assert int8.manifest.precision == "int8"
    import onnxruntime

    with np.load(models / "held.npz") as held:
        images, labels = held["image"], held["labels"]
    right = {}
    for path in (simple.path, int8.path):
        session = onnxruntime.InferenceSession(path)
        right[path] = (session.run(None, {"image": images})[0].argmax(-1) == labels).mean()
    assert right[simple.path] > 0.85
    assert right[int8.path] > right[simple.path] - 0.02
