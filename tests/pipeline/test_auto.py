"""`auto`: one command from a model and data to a recommended artifact; a second call does nothing again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from commands import Qc
from executors import Noting

import qcompile
from qcompile.bench.results.results import Results
from qcompile.bench.results.row import Accuracy, Latency, Row
from qcompile.bench.results.statistics import Speedup
from qcompile.errors import InvalidOption, RecipeError
from qcompile.pipeline.auto import TUNED, AutoResult, _Auto, worth_tuning
from qcompile.pipeline.recipe.recipe import read_recipe
from qcompile.pipeline.run import RunReport
from qcompile.spec.recipes import AutoSpec

pytestmark = pytest.mark.usefixtures("short_blocks")


@pytest.fixture
def model(tiny_file: Callable[..., Path], tmp_path: Path) -> Path:
    """A tiny ONNX model, and labels that are its own answers: FP32 is right for every sample."""
    path = tiny_file("residual")
    x = np.random.default_rng(0).standard_normal((64, 4, 8, 8)).astype(np.float32)
    scores = onnxruntime.InferenceSession(path).run(None, {"x": x})[0]
    np.savez(tmp_path / "data.npz", x=x, labels=scores.argmax(1))
    return path


def found(model: Path, *, max_drop: float = 5.0, **options: object) -> AutoResult:
    return qcompile.auto(
        str(model),
        data=str(model.parent / "data.npz"),
        output=model.parent / "auto",
        targets=["onnxruntime"],
        max_drop=max_drop,
        max_time_s=0.5,
        **options,  # type: ignore[arg-type]
    )


def test_one_call_ends_with_a_sentence_and_a_second_call_skips_everything(
    model: Path, qc: Qc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def benchmark(artifacts: dict[str, str], *, baseline: str, **_: object) -> Results:  # of the search
        rows = [Row(name, path, "", latency=Latency(median_ms=1.0)) for name, path in artifacts.items()]
        return Results(baseline=baseline, rows=rows, environment={}, settings={})

    monkeypatch.setattr("qcompile.pipeline.tune.trials.benchmark", benchmark)
    stages: list[str] = []
    executor = Noting(parallel=2)
    first = found(model, executor=executor, listener=lambda stage, *_: stages.append(stage))
    folder = model.parent / "auto"
    assert stages[:2] == ["init", "export"]
    named = first.recommendation.artifact or first.recommendation.nearest
    assert named in first.recommendation.sentence
    assert (first.recipe, first.report.output) == (folder / "recipe.toml", folder / "out")
    assert first.report.page is not None
    assert (first.artifact is None) == (first.recommendation.artifact == "")

    # A tiny model is no faster in INT8, so that a mix was searched; what was found is not searched again.
    assert "tune" in first.stages or first.recommendation.artifact
    kinds = {step.kind for step in executor.asked}
    assert {"export", "calibrate", "build", "bench"} <= kinds
    assert ("tune" in first.stages) == ({"trial", "rank"} <= kinds)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix == ".onnx"}
    second = found(model)
    assert set(second.stages.values()) == {"skipped"}
    assert (second.recommendation, second.notes) == (first.recommendation, first.notes)
    assert {path: path.stat().st_mtime_ns for path in before} == before

    words = ["auto", model, "--data", model.parent / "data.npz", "-o", folder, "--target", "onnxruntime"]
    code, printed, _ = qc(*words, "--max-drop", "5", "--max-time", "0.5")
    assert code == (0 if first.artifact else 1)
    assert first.recommendation.sentence in printed
    assert "out/report.html" in printed

    with pytest.raises(InvalidOption, match="holds the recipe of another request"):
        found(model, max_drop=1.0)
    first.recipe.write_text(first.recipe.read_text().replace("max_drop = 5.0", "max_drop = 4.0"))
    assert found(model).stages["init"] == "skipped", "a recipe that was edited since stays"
    assert read_recipe(first.recipe).budget.max_drop == 4.0


CODE = """
import numpy as np
import torch


def build():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def data():
    for seed in range(8):
        rows = np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32)
        yield {"input": rows}, np.zeros(8, np.int64)


def score(outputs, labels):
    return next(iter(outputs.values()))[:, 0] * 0 + 1.0
"""


def test_run_takes_the_recipe_that_auto_wrote_from_any_folder(
    tmp_path: Path, qc: Qc, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, code = tmp_path / "work", tmp_path / "code"
    for folder in (work, code):
        folder.mkdir()
    (code / "net.py").write_text(CODE)
    monkeypatch.chdir(work)
    answer = qcompile.auto(
        "../code/net.py:build",
        data="../code/net.py:data",
        metric="../code/net.py:score",
        output=Path("../results/auto"),
        targets=["torchscript"],
        max_drop=5.0,
        max_time_s=0.1,
    )
    recipe = (work / answer.recipe).resolve()
    assert set(qcompile.run(answer.recipe).stages.values()) == {"skipped"}
    monkeypatch.chdir(tmp_path / "results")
    assert qc("run", recipe)[0] == 0
    assert "nothing to do" in qc("run", recipe, "--dry-run")[1]
    recipe.write_text(recipe.read_text().replace("net.py:build", "other.py:build"))
    (tmp_path / "code/other.py").write_text(CODE)
    with pytest.raises(RecipeError, match="names code outside"):  # the user named another file
        qcompile.run(recipe)


def test_without_samples_there_is_no_budget_to_keep(model: Path) -> None:
    with pytest.raises(InvalidOption, match="an accuracy budget requires evaluation samples"):
        qcompile.auto(str(model), max_drop=0.5, output=model.parent / "auto")
    assert not (model.parent / "auto").exists()


RECIPE = """
version = 1
name = "m"
[model]
source = "model.py:build"
[data]
calibration = "data.npz"
evaluation = "data.npz"
[[artifact]]
name = "fp32"
target = "onnxruntime"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
[[artifact]]
name = "ov"
target = "openvino"
precision = "int8"
[bench]
"""


def row(name: str, ms: float, drop: float = 0.0, high: float | None = None, verdict: str = "faster") -> Row:
    accuracy = Accuracy("top1", 0.9, drop, drop, drop if high is None else high, samples=100)
    ratio = Speedup(2.0, 1.9, 2.1, 20, verdict)  # type: ignore[arg-type]
    return Row(name, name, "onnxruntime", latency=Latency(median_ms=ms), accuracy=accuracy, speedup=ratio)


@pytest.mark.parametrize(
    ("rows", "tuned"),
    [
        ([row("int8", 2.0, drop=0.5), row("ov", 9.0)], []),  # one serves
        ([row("int8", 2.0, drop=3.0), row("ov", 1.0, drop=2.0)], ["onnxruntime", "openvino"]),
        ([row("int8", 6.0), row("ov", 7.0)], ["onnxruntime", "openvino"]),  # no faster than float
        ([row("int8", 2.0, verdict="no difference")], ["onnxruntime", "openvino"]),
        ([row("int8", 2.0, drop=0.2, high=1.5)], []),  # more samples would tell; a mix would not
        ([], ["onnxruntime", "openvino"]),  # neither was built
    ],
)
def test_a_mix_is_searched_where_plain_int8_does_not_serve(
    tmp_path: Path, rows: list[Row], tuned: list[str]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    results = Results(baseline="pytorch", rows=[row("fp32", 5.0), *rows], environment={}, settings={})
    report = RunReport(tmp_path, results=results)
    assert worth_tuning(read_recipe(path), report, 0.5) == tuned


def test_artifacts_that_tune_judged_count_as_candidates(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    steps = _Auto("model.py:build", AutoSpec(max_drop=1.0, output=tmp_path), None, lambda *_: None, None)
    found = {"lines": ["[[artifact]]", 'name = "tuned-int8"', 'target = "onnxruntime"'], "trials": 7}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Auto, "_search", lambda *_: {**found, "notes": []})
        patch.setattr("qcompile.pipeline.auto._search_key", lambda *_: "key")
        results = Results(baseline="pytorch", rows=[row("fp32", 5.0)], environment={}, settings={})
        assert steps.tune(RunReport(tmp_path, results=results))
    recipe = read_recipe(path)
    assert recipe.bench is not None
    assert recipe.bench.candidates == 7
    assert recipe.artifact[-1].name == TUNED


def test_a_mix_that_was_found_is_an_artifact_of_the_recipe(tmp_path: Path) -> None:
    from qcompile.pipeline.tune.trials import Trial
    from qcompile.pipeline.tune.tune import artifact_lines

    best = Trial("onnxruntime-int8-mix1", "onnxruntime", "int8", frozenset({'a "b"'}), tmp_path, 0.9, 0.1)
    path = tmp_path / "recipe.toml"
    path.write_text("\n".join([RECIPE, *artifact_lines(best, TUNED)]) + "\n")
    added = read_recipe(path).artifact[-1]
    assert (added.name, added.target, added.exclude) == (TUNED, "onnxruntime", ('a "b"',))
    assert added.allow_loss


@pytest.mark.slow
def test_what_the_export_warns_of_stands_beside_the_answer(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((24, 3, 32, 32), np.float32), labels=np.zeros(24, np.int64))
    answer = qcompile.auto(
        "timm:test_resnet?weights=random&classes=3&size=32",
        data=str(tmp_path / "data.npz"),
        output=tmp_path / "auto",
        targets=["onnxruntime"],
        max_drop=100.0,
        max_time_s=0.5,
    )
    assert any("the weights are random" in note for note in answer.notes)
