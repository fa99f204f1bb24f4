"""`bench` on real artifacts: the numbers hang together, failures stay alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qcompile
from qcompile.bench.results import load_results
from qcompile.errors import ArtifactError, DataError, InvalidOption, MissingFile


def test_results_hang_together(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_file("residual")
    results = qcompile.benchmark(
        {"a": str(model), "b": str(model)},
        baseline="a",
        output=tmp_path / "results.json",
        data=str(samples("residual", 32)),
        evaluation=str(samples("residual", 32)),
        batch_size=4,
        threads=1,
        max_time_s=3.0,
    )
    a, b = results.entries
    assert a.latency_ms is not None
    assert a.latency_ms["median"] <= a.latency_ms["p90"] <= a.latency_ms["p99"]
    assert a.speedup is None
    assert b.speedup is not None
    assert b.speedup["low"] <= b.speedup["value"] <= b.speedup["high"]
    assert b.speedup["rounds"] == len(b.round_medians_ms) >= 6
    # 4 samples per call: throughput and latency are two views of the same calls
    assert b.throughput_per_s == pytest.approx(4e3 / b.latency_ms["median"], rel=0.7)  # type: ignore[index]
    assert a.accuracy is not None
    assert b.accuracy is not None
    assert b.accuracy["value"] == a.accuracy["value"]
    assert b.difference is not None
    assert b.difference["snr_db"] is None  # equal
    assert a.size_bytes == model.stat().st_size
    assert results.settings["inputs"] == {"x": "4x4x8x8"}
    assert load_results(tmp_path / "results.json").as_json() == results.as_json()


def test_the_accuracy_is_the_share_of_right_labels(
    tiny_file: Callable[..., Path], samples: Callable[..., Path]
) -> None:
    import onnxruntime

    model, data = tiny_file("residual"), samples("residual", 40)
    results = qcompile.benchmark(
        [str(model)], baseline=str(model), evaluation=str(data), threads=1, max_time_s=0.5
    )
    arrays = np.load(data)
    scores = onnxruntime.InferenceSession(str(model)).run(None, {"x": arrays["x"]})[0]
    expected = float((scores.argmax(1) == arrays["labels"]).mean())
    accuracy = results.entries[0].accuracy
    assert accuracy is not None
    assert accuracy["value"] == pytest.approx(expected)
    assert accuracy["samples"] == 40


def test_an_artifact_that_fails_leaves_the_others_their_numbers(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "bad.py"
    path.write_text("def build():\n    raise RuntimeError('no weights')\n")
    good = tiny_file("mlp")
    results = qcompile.benchmark(
        {"good": str(good), "bad": f"{path}:build"}, baseline="good", threads=1, max_time_s=0.5
    )
    assert results.entry("bad").status == "failed"
    assert "no weights" in results.entry("bad").reason
    assert results.entry("good").latency_ms is not None


def test_a_batch_is_joined_from_smaller_batches_of_the_data(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "d.py").write_text(
        "import numpy as np\n"
        "def batches():\n    for i in range(4):\n        yield np.full((3, 16), i, np.float32)\n"
    )
    model = str(tiny_file("mlp"))
    results = qcompile.benchmark(
        [model], baseline=model, data=f"{tmp_path}/d.py:batches", batch_size=10, threads=1, max_time_s=0.2
    )
    assert results.settings["inputs"] == {"x": "10x16"}
    with pytest.raises(DataError, match="holds 12 samples; a batch of 13 is required"):
        qcompile.benchmark([model], baseline=model, data=f"{tmp_path}/d.py:batches", batch_size=13)


def test_a_batch_size_that_the_model_cannot_take_is_refused(tiny_file: Callable[..., Path]) -> None:
    model = str(tiny_file("residual", batch=1))
    with pytest.raises(InvalidOption, match="first axis of the model is fixed at 1"):
        qcompile.benchmark([model], baseline=model, batch_size=8)


def test_evaluation_without_labels_is_refused(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((4, 16), np.float32))
    model = str(tiny_file("mlp"))
    with pytest.raises(DataError, match="has no labels"):
        qcompile.benchmark(
            [model], baseline=model, evaluation=str(tmp_path / "x.npz"), threads=1, max_time_s=0.2
        )


@pytest.mark.parametrize("text", ["", "{", '{"kind": "x", "schema_version": 1}', "[]"])
def test_files_that_are_no_results_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"results\.json"):
        load_results(path)
    with pytest.raises(MissingFile):
        load_results(tmp_path / "none.json")
