"""What cannot be tuned is refused in words, and an interrupt leaves only whole artifacts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_network import Case

import qcompile
from qcompile.artifact import is_manifest, load_artifact
from qcompile.errors import DataError, EngineUnavailable, InvalidOption, QCompileError
from qcompile.tuning import tune

pytestmark = pytest.mark.usefixtures("short_blocks")


def test_what_cannot_be_tuned_is_refused_in_words(make: Callable[..., Case], tmp_path: Path) -> None:
    case = make(with_labels=False)

    def refused(error: type[QCompileError], said: str, model: Path = case.model, **options: Any) -> None:
        given = {"max_drop": 1.0, "metric": "cosine", "targets": ["onnxruntime"], **options}
        with pytest.raises(error, match=said):
            tune(str(model), case.data, case.out, **given)

    refused(InvalidOption, "metric 'accuracy' is unknown", metric="accuracy")
    refused(InvalidOption, "`max_drop` -0.1: at least 0", max_drop=-0.1)
    refused(InvalidOption, "`max_drop` nan", max_drop=float("nan"))
    refused(InvalidOption, "target 'onnxrutime' is unknown", targets=["onnxrutime"])
    refused(EngineUnavailable, "torchscript cannot be tuned here", targets=["torchscript"])
    assert not case.out.exists()
    refused(DataError, "has no labels, and metric top1 needs them", metric="top1")
    made = qcompile.calibrate(case.model, case.data, tmp_path / "r")
    quantized = qcompile.quantize(case.model, tmp_path / "q.onnx", ranges=made.path)
    refused(InvalidOption, "its graph is int8 already", quantized.path)
    refused(QCompileError, "nowhere.onnx", tmp_path / "nowhere.onnx")
    assert not (case.out / "recipe.toml").exists()


def test_a_target_that_is_not_installed_is_named(
    make: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make()
    monkeypatch.setattr("qcompile.engines.openvino.OpenVino.why_not_build", lambda _: "it is not here")
    with pytest.raises(EngineUnavailable, match="it is not here"):
        tune(str(case.model), case.data, case.out, max_drop=1, targets=["openvino"])


def whole_artifacts(folder: Path) -> list[str]:
    """The files of a folder, each of which is what its manifest says."""
    for path in folder.iterdir():
        if path.suffix != ".json":
            load_artifact(path)
        else:
            assert is_manifest(path)
    return sorted(path.name for path in folder.iterdir())


def test_an_interrupt_leaves_only_whole_artifacts(
    make: Callable[..., Case], timed: Callable[..., None]
) -> None:
    case = make()
    timed({"int8": 1.0, "fp32": 2.0})
    said: list[str] = []

    def drive(folder: Path, progress: Callable[..., None]) -> None:
        tune(str(case.model), case.data, folder, max_drop=2.0, targets=["onnxruntime"], progress=progress)

    drive(case.out / "whole", lambda text, *_: said.append(text))
    steps = list(dict.fromkeys(said))
    assert len(steps) > 10
    left: list[list[str]] = []
    for number, stop in enumerate(steps):

        def interrupt(text: str, *_: int | None, at: str = stop) -> None:
            if text == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            drive(case.out / str(number), interrupt)
        left.append(whole_artifacts(case.out / str(number)))
    assert [len(files) for files in left] == sorted(len(files) for files in left)
    assert not any({"recipe.toml", "tune.json"} & set(files) for files in left)
    drive(case.out / "0", lambda *_: None)  # the same folder again
    assert (case.out / "0" / "recipe.toml").is_file()


def test_an_interrupt_while_latency_is_measured(make: Callable[..., Case]) -> None:
    case = make(hostile=False)

    def interrupt(text: str, *_: int | None) -> None:
        if text.startswith("launch"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(
            str(case.model), case.data, case.out, max_drop=100, targets=["onnxruntime"], progress=interrupt
        )  # fmt: skip
    assert "onnxruntime-int8.onnx" in whole_artifacts(case.out)
