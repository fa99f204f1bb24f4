"""The examples digits, detector, recurrent and text_encoder: what each promises of its artifacts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from small_examples import EXAMPLES, built, copied, modules, trains, value

import qcompile
from qcompile.core.artifact import read_manifest
from qcompile.data.batches import Data
from qcompile.spec.tensors import parse_input


def test_a_namesake_that_was_imported_before_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data.py").write_text(f"NAME = {folder!r}\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "a"))
        patch.delitem(sys.modules, "data", raising=False)
        import data  # type: ignore[import-not-found]

        with modules(tmp_path / "b", "data") as (own,):
            assert own.NAME == "b"
        assert sys.modules["data"] is data
        del sys.modules["data"]


@pytest.mark.parametrize("name", ["detector", "recurrent", "text_encoder"])
def test_training_runs(name: str, tmp_path: Path) -> None:
    trains(copied(name, tmp_path), tmp_path / "w.safetensors")


def test_int8_keeps_the_accuracy_with_every_method_and_the_engine_holds_it(tmp_path: Path) -> None:
    folder = copied("digits", tmp_path)
    made = built(folder, "onnx-int8-static", "openvino-int8", "rtx-int8", samples=64).artifacts
    for name in ("onnx-int8-static", "openvino-int8"):
        assert value(folder, made[name], "top1") > 0.985
        assert sum(read_manifest(made[name]).proof["layers_by_precision"]["int8"].values()) == 22
    assert made["rtx-int8"].stat().st_size > 500_000
    shape, model = "image:[batch,3,32,32]", tmp_path / "m.onnx"
    qcompile.export(f"{folder}/model.py:build", model, inputs=[shape])
    ranges = qcompile.calibrate(model, f"{folder}/data.py:calibration", tmp_path / "r", samples=64).path
    for target, method in (("onnxruntime", "minmax"), ("onnxruntime", "entropy"), ("tensorrt", "percentile")):
        path = qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges, target=target, method=method).path  # type: ignore[arg-type]
        assert value(folder, path, "top1") > 0.985, (target, method)


def test_the_held_out_digits_are_not_among_the_calibration_digits() -> None:
    rows = {
        name: [
            image.tobytes()
            for batch in Data(f"{EXAMPLES}/digits/data.py:{name}", [parse_input("image:[batch,3,32,32]")])
            for image in batch.feeds["image"]
        ]
        for name in ("calibration", "evaluation")
    }
    assert len(rows["evaluation"]) == 500
    assert not {*rows["calibration"]} & {*rows["evaluation"]}


def test_the_recipe_of_the_digits_asks_for_every_kind_of_artifact() -> None:
    artifacts = qcompile.read_recipe(EXAMPLES / "digits/recipe.toml").artifact
    kinds = (f"{a.target} {a.precision} {a.mode * (a.precision == 'int8')}" for a in artifacts)
    assert {kind.strip() for kind in kinds} == {
        "torchscript fp32", "onnxruntime fp32", "onnxruntime int8 dynamic", "onnxruntime int8 static",
        "openvino fp32", "openvino int8 static", "tensorrt-rtx fp32", "tensorrt-rtx fp16",
        "tensorrt-rtx int8 static",
    }  # fmt: skip
    assert (EXAMPLES / "digits/resnet20.safetensors").stat().st_size < 1_300_000


@pytest.mark.parametrize("recipe", sorted(EXAMPLES.glob("*/recipe.toml")), ids=lambda path: path.parent.name)
def test_beside_int8_of_a_runtime_stands_its_float(recipe: Path) -> None:
    artifacts = qcompile.read_recipe(recipe).artifact
    floats = {artifact.target for artifact in artifacts if artifact.precision in ("fp32", "fp16")}
    assert {artifact.target for artifact in artifacts if artifact.precision == "int8"} <= floats


def test_the_digits_are_found_in_float_and_int8(tmp_path: Path) -> None:
    folder = copied("detector", tmp_path)
    made = built(folder, "onnx-int8-static", "rtx-fp16", samples=48).artifacts
    assert made["rtx-fp16"].is_file()
    assert value(folder, made["onnx-int8-static"], "map:50", most=80) > 0.9


def test_a_perfect_grid_is_decoded_to_the_boxes_it_was_made_of() -> None:
    torch = pytest.importorskip("torch")
    with modules(EXAMPLES / "detector", "train", "scenes", "model") as (train, scenes, model):
        boxes = scenes.compose(6, held_out=True, seed=5).boxes
        heat, distances, _ = train.targets(boxes, 16)
        detector = model.Detector()
        # softplus and sigmoid are undone, so that forward() decodes the targets themselves
        detector.raw = lambda _: (torch.logit(heat, 1e-6), distances)
        found, scores, classes = (one.numpy() for one in detector(torch.zeros(6, 1, 64, 64)))
    for scene in range(6):
        real = boxes[scene][boxes[scene, :, 0] >= 0]
        best = np.argsort(-scores[scene])[: len(real)]
        got = np.column_stack([classes[scene, best], found[scene, best]])
        np.testing.assert_allclose(got[np.lexsort(got.T)], real[np.lexsort(real.T)], atol=1e-3)


def test_the_lines_are_read_in_every_precision(tmp_path: Path) -> None:
    folder = copied("recurrent", tmp_path)
    made = built(folder, "onnx-int8-dynamic", "onnx-int8-static", "openvino-fp32", samples=32).artifacts
    proofs = {name: read_manifest(path).proof["layers_by_precision"] for name, path in made.items()}
    assert "LSTM" in proofs["onnx-int8-static"]["fp32"]
    assert "LSTM" in proofs["openvino-fp32"]["fp32"]
    assert "LSTM" not in proofs["onnx-int8-dynamic"].get("fp32", {})
    assert made["onnx-int8-dynamic"].stat().st_size < 0.4 * made["onnx-int8-static"].stat().st_size
    for path in made.values():
        assert value(folder, path, "top1") > 0.96
    io = read_manifest(made["openvino-fp32"]).io
    assert io is not None
    assert io.inputs[0].shape == ("batch", "length", 8)


def test_the_gru_is_exported_and_its_products_become_int8(tmp_path: Path) -> None:
    folder = copied("recurrent", tmp_path)
    shape = ["columns:[batch,length=8..128,8]"]
    qcompile.export(f"{folder}/model.py:build_gru", tmp_path / "gru.onnx", inputs=shape)
    int8 = qcompile.quantize(
        tmp_path / "gru.onnx", tmp_path / "int8.onnx", target="onnxruntime", mode="dynamic", allow_loss=True
    )
    assert int8.path.stat().st_size < 0.6 * (tmp_path / "gru.onnx").stat().st_size
    assert value(folder, tmp_path / "gru.onnx", "top1") > 0.95
    assert value(folder, int8.path, "top1") > 0.95


def test_the_packages_are_named_in_every_precision(tmp_path: Path) -> None:
    folder = copied("text_encoder", tmp_path)
    made = built(folder, "onnx-fp32", "onnx-int8-dynamic", "rtx-fp16", samples=32).artifacts
    before = value(folder, made["onnx-fp32"], "top1", most=256)
    assert before > 0.55  # of four; the texts vary with the versions of the packages
    assert value(folder, made["onnx-int8-dynamic"], "top1", most=256) > before - 0.03
    with qcompile.load(made["onnx-fp32"], threads=1) as runner, modules(folder, "data") as (data,):
        texts = sorted(data.texts()[1], key=lambda sample: len(sample[0]))[:3]
        together = runner.infer(dict(zip(("ids", "mask"), data.padded(texts, 40)[:2], strict=True)))
        alone = [
            runner.infer(dict(zip(("ids", "mask"), data.padded([one])[:2], strict=True)))["logits"]
            for one in texts
        ]
    np.testing.assert_allclose(together["logits"], np.concatenate(alone), atol=1e-4)  # padding is not seen


def test_held_out_files_are_not_among_the_training_files() -> None:
    with modules(EXAMPLES / "text_encoder", "data") as (data,):
        training, held_out = ({tuple(ids) for ids, _ in part} for part in data.texts())
        assert len(held_out) >= 300
        assert len(training & held_out) < 0.02 * len(held_out)  # texts that begin alike
        assert {data.encode("numpy scipy np.sklearn")[0]} == {data.encode(".")[0]}
