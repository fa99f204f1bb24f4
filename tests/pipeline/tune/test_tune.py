"""Tuning end to end: hostile layers are found, the budget is kept, and the recipe makes the same again.

Latencies are those that a test gives where a choice is looked at; everything else is real. What
cannot be tuned is refused in words, and an interrupt leaves only whole artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hostile_network import Case, accuracy, run
from sklearn.metrics import f1_score

import qcompile
from qcompile.core.artifact import is_manifest, load_artifact
from qcompile.errors import DataError, EngineUnavailable, InvalidOption, QCompileError
from qcompile.model.graph.graph import weighted_nodes
from qcompile.model.graph.onnx_file import read_graph
from qcompile.pipeline.tune import trials
from qcompile.pipeline.tune.trials import by_layer, slower_in_int8
from qcompile.pipeline.tune.tune import tune

pytestmark = pytest.mark.usefixtures("short_blocks")

HOSTILE = ("conv3", "conv6")  # the node's place in the graph is in its name


LAYERS = {"conv1", "conv3", "conv5", "conv6", "gemm10"}


def in_int8(path: Path) -> set[str]:
    return {node.name for node in weighted_nodes(read_graph(path).load())["int8"]}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_hostile_layers_stay_in_float_and_the_recipe_makes_the_same_again(
    target: str, make: Callable[..., Case], timed: Callable[..., None]
) -> None:
    pytest.importorskip(target)
    case = make()
    timed({"int8": 1.0, "": 5.0})
    found = case.tune(max_drop=2.0, targets=[target], method="minmax")
    assert found.float_value == np.mean(run(case.model, case.x).argmax(axis=1) == case.labels) > 0.95
    ranked = [layer.layer for layer in found.damage[target]]
    # ONNX Runtime's convolutions write integers: those in front of the hostile ones do the same damage.
    first = {*HOSTILE, "conv1", "conv5"} if target == "onnxruntime" else set(HOSTILE)
    assert (set(ranked), set(ranked[: len(first)])) == (LAYERS, first)
    best, whole = found.best, found.trials[f"{target}-int8"]
    assert whole.drop > 2.0  # the very reason for tuning
    assert whole.drop_low is not None
    assert whole.drop_low > 0
    assert best.precision == "int8"
    assert set(HOSTILE) <= best.in_float < LAYERS
    assert best.drop <= 2.0
    assert best.drop == pytest.approx(100 * (found.float_value - accuracy(best.path, case)))
    for trial in (best, whole):
        assert trial.drop_low is not None
        assert trial.drop_high is not None
        assert trial.drop_low <= trial.drop <= trial.drop_high
    assert "accuracy is top1: labels are one class per sample" in found.notes
    graph = case.out / f"{target}-int8-mix{best.name.partition('mix')[2].partition('-')[0]}.graph.onnx"
    assert in_int8(graph) == LAYERS - best.in_float

    recipe = qcompile.read_recipe(found.recipe)
    assert [(one.name, set(one.exclude)) for one in recipe.artifact] == [(best.name, best.in_float)]
    again = qcompile.run(found.recipe).artifacts[best.name]
    assert in_int8(again.with_name(f"{best.name}.graph.onnx")) == LAYERS - best.in_float
    with qcompile.load(again) as second, qcompile.load(best.path) as measured:
        for name, array in measured.infer({"x": case.x}).items():
            np.testing.assert_array_equal(second.infer({"x": case.x})[name], array)

    written = json.loads((case.out / "tune.json").read_text())
    assert written == json.loads(json.dumps(found.as_json()))
    assert (written["best"]["name"], written["metric"]) == (best.name, "top1")
    assert written["best"]["in_float"] == sorted(best.in_float)
    assert [layer["layer"] for layer in written["damage"][target]] == ranked
    assert {trial["name"] for trial in written["trials"]} <= set(found.trials)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_the_recipe_makes_the_graph_that_was_measured_where_balancing_would_gain(
    target: str, make: Callable[..., Case], timed: Callable[..., None]
) -> None:
    pytest.importorskip(target)
    case = make()
    timed({"int8": 1.0, "": 5.0})
    found = case.tune(max_drop=100.0, targets=[target])
    assert (found.best.name, found.best.in_float) == (f"{target}-int8", frozenset())
    measured = (case.out / f"{target}-int8.graph.onnx").read_bytes()
    output = qcompile.run(found.recipe).output
    assert (output / f"{target}-int8.graph.onnx").read_bytes() == measured
    recipe = found.recipe.read_text().replace("search = false\n", "")
    found.recipe.write_text(recipe)
    qcompile.run(found.recipe)
    assert (output / f"{target}-int8.graph.onnx").read_bytes() != measured


def test_everything_measured_for_real(make: Callable[..., Case]) -> None:
    found = make().tune(max_drop=2.0, max_time_s=0.5)
    timed = [trial for trial in found.trials.values() if trial.latency_ms]
    fitting = [trial for trial in timed if trial.precision == "fp32" or trial.drop <= 2.0]
    assert len(fitting) >= 2
    # INT8 only where it is faster than every float; then the fastest of those that keep the budget.
    floats = min(trial.latency_ms for trial in fitting if trial.precision == "fp32")
    faster = [t.latency_ms for t in fitting if t.precision == "int8" and t.latency_ms < floats]
    assert found.best.latency_ms == min(faster, default=floats)
    assert (found.best.precision == "int8") == bool(faster)
    front = [(found.trials[name].latency_ms, -found.trials[name].drop) for name in found.front]
    assert front == sorted(front)
    assert [drop for _, drop in front] == sorted(drop for _, drop in front)
    for trial in timed:
        load_artifact(trial.path)
        assert trial.speedup["value"] > 0


def test_int8_slower_than_float_is_never_handed_out(
    make: Callable[..., Case], timed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make(hostile=False)
    timed({"int8": 3.0, "fp32": 2.0})
    seen: list[frozenset[str]] = []

    def slow(int8: trials.Trial, *_: object) -> list[str]:
        seen.append(int8.in_float)
        return ["gemm10", "conv5"] if len(seen) == 1 else []

    monkeypatch.setattr(import_module("qcompile.pipeline.tune.tune"), "slower_layers", slow)
    found = case.tune(max_drop=100, metric="cosine")
    assert found.best.precision == "fp32"
    assert found.best.name == "onnxruntime-fp32"
    assert found.slow_layers == ["gemm10", "conv5"]
    assert any(one.in_float == {"gemm10", "conv5"} for one in found.trials.values())  # it was tried
    assert any("INT8 is not faster" in note for note in found.notes)
    (artifact,) = qcompile.read_recipe(found.recipe).artifact
    assert (artifact.precision, artifact.exclude) == ("fp32", ())
    assert np.array_equal(
        run(qcompile.run(found.recipe).artifacts[artifact.name], case.x), run(case.model, case.x)
    )


def test_whole_int8_is_kept_where_it_keeps_the_budget(
    make: Callable[..., Case], timed: Callable[..., None]
) -> None:
    case = make(hostile=False, with_labels=False)
    timed({"int8": 1.0, "fp32": 2.0})
    found = case.tune(max_drop=5, metric="cosine", exclude=["conv5"])
    assert found.best.name == "onnxruntime-int8"
    assert found.best.in_float == frozenset()
    assert {one.layer for one in found.damage["onnxruntime"]} == LAYERS - {"conv5"}
    assert in_int8(case.out / "onnxruntime-int8.graph.onnx") == LAYERS - {"conv5"}
    assert qcompile.read_recipe(found.recipe).artifact[0].exclude == ("conv5",)


def test_calibration_on_the_evaluation_samples_is_a_warning(
    make: Callable[..., Case], timed: Callable[..., None], tmp_path: Path
) -> None:
    case = make(hostile=False)
    timed({"int8": 1.0, "fp32": 2.0})
    np.savez(tmp_path / "copy.npz", x=case.x, labels=case.labels)
    np.savez(tmp_path / "other.npz", x=case.x[::-1])
    for calibration, is_same in ((None, True), ("copy.npz", True), ("other.npz", False)):
        path = str(tmp_path / calibration) if calibration else None
        notes = case.tune(max_drop=20, calibration=path).notes
        assert any("use the same samples" in note for note in notes) == is_same, calibration


def test_the_upper_end_of_the_interval_keeps_the_budget_where_samples_can_prove_it(
    make: Callable[..., Case], timed: Callable[..., None]
) -> None:
    timed({"int8": 1.0, "fp32": 2.0})
    case = make(hostile=False)  # 96 samples
    bold, careful = (case.tune(max_drop=drop) for drop in (2, 20))
    assert any("96, which is too few: the drop alone is compared" in note for note in bold.notes)
    assert not any("too few" in note for note in careful.notes)
    best = careful.best
    assert best.precision == "int8"
    assert best.drop_high is not None
    assert best.drop < best.drop_high <= 20
    assert "candidates together" in best.statement


def test_no_budget_at_all_hands_out_float(make: Callable[..., Case], timed: Callable[..., None]) -> None:
    case = make()
    timed({"int8": 1.0, "fp32": 2.0})
    (case.model.parent / "m.py").write_text(
        "import numpy as np\ndef exact(outputs, labels):\n"
        "    known = np.load(__file__.replace('m.py', 'y.npy'))\n"
        "    return [float((known == row).all(axis=1).any()) for row in outputs['y']]\n"
    )
    with qcompile.load(case.model) as runner:  # batches of eight, as the data is read
        parts = [runner.infer({"x": case.x[i : i + 8]})["y"] for i in range(0, 96, 8)]
    np.save(case.model.parent / "y.npy", np.concatenate(parts))
    own = f"{case.model.parent / 'm.py'}:exact"
    found = case.tune(max_drop=0, metric=own)
    assert found.float_value == 1.0
    assert found.best.precision == "fp32"
    assert any("only float does" in note for note in found.notes)


@pytest.mark.parametrize("batch", [4, 12])
def test_a_model_of_one_batch_size(batch: int, make: Callable[..., Case], timed: Callable[..., None]) -> None:
    case = make(batch)
    timed({"int8": 1.0, "fp32": 2.0})
    found = case.tune(max_drop=2.0)
    assert {one.layer for one in found.damage["onnxruntime"][:4]} == {*HOSTILE, "conv1", "conv5"}
    assert found.best.drop <= 2.0


def test_mixes_that_the_runtime_does_not_execute_are_passed_over(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], timed: Callable[..., None], tmp_path: Path
) -> None:
    # ONNX Runtime fuses MatMul, bias and Relu to one float kernel where float follows.
    timed({"int8": 1.0, "fp32": 2.0})
    options: dict[str, Any] = {"max_drop": 0.0, "targets": ["onnxruntime"], "metric": "cosine"}
    found = tune(str(tiny_file("mlp")), str(samples("mlp")), tmp_path / "out", **options)
    assert found.best.drop <= 0.0
    assert found.recipe.is_file()


def test_a_mix_is_made_once(tmp_path: Path) -> None:
    asks: list[trials.TrialRequest] = []

    def make(ask: trials.TrialRequest, folder: Path, _: object) -> trials.Score:
        asks.append(ask)
        (folder / ask.file).write_bytes(b"artifact")
        return trials.Score(0.9, 0.1, 0.0, 0.2)

    runner = trials.TrialRunner(SimpleNamespace(make=make), tmp_path, lambda *_: None)  # type: ignore[arg-type]
    mix = frozenset({"conv3"})
    assert runner.int8("openvino", mix) is runner.int8("openvino", mix)
    runner.int8("openvino", mix, float_precision="bf16")
    assert [ask.float_precision for ask in asks] == ["fp32", "bf16"]


def test_times_of_kernels_become_layers_that_lose() -> None:
    layers = ["conv1", "conv10", "fc"]
    kernels = {"conv1_kernel": 1.0, "conv1_reorder": 0.5, "conv10": 4.0, "fc/MatMul": 2.0, "softmax": 9.0}
    assert by_layer(kernels, layers) == {"conv1": 1.5, "conv10": 4.0, "fc": 2.0}
    assert slower_in_int8({"a": 3, "b": 2, "c": 9}, {"a": 2, "b": 2.5, "c": 1, "d": 1}) == ["c", "a"]


@pytest.mark.parametrize("metric", ["mse", "f1", "own"])
def test_metrics_are_those_of_bench(
    metric: str, make: Callable[..., Case], timed: Callable[..., None]
) -> None:
    """Those of which less is better, too, each on a scale of its own."""
    case = make()
    timed({"int8": 1.0, "fp32": 2.0})
    path = case.model.parent / "m.py"
    path.write_text(
        "import numpy as np\ndef wrong(outputs, labels):\n"
        "    return (outputs['y'].argmax(1) != labels).astype(float)\nwrong.higher_is_better = False\n"
    )
    found = case.tune(max_drop=1e-4, metric=f"{path}:wrong" if metric == "own" else metric)
    whole, expected = found.trials["onnxruntime-int8"], run(case.model, case.x)
    with qcompile.load(whole.path) as runner:
        outputs = runner.infer({"x": case.x})["y"]
    if metric == "mse":
        assert found.float_value == 0.0
        assert whole.value == whole.drop == pytest.approx(float(((outputs - expected) ** 2).mean()), rel=1e-3)
    elif metric == "f1":
        values = [f1_score(case.labels, one.argmax(1), average="macro") for one in (expected, outputs)]
        assert (found.float_value, whole.value) == (pytest.approx(values[0]), pytest.approx(values[1]))
        assert whole.drop == pytest.approx(100 * (values[0] - values[1]))
    else:
        wrong = float((outputs.argmax(1) != case.labels).mean())
        assert whole.value == pytest.approx(wrong)
        assert whole.drop == pytest.approx(wrong - found.float_value)
    assert whole.drop > 1e-4
    assert found.best.drop <= 1e-4
    drops = [found.trials[name].drop for name in found.front]
    assert drops == sorted(drops, reverse=True)


def test_what_cannot_be_tuned_is_refused_in_words(make: Callable[..., Case], tmp_path: Path) -> None:
    case = make(with_labels=False)

    def refused(error: type[QCompileError], said: str, model: Path = case.model, **options: Any) -> None:
        given = {"max_drop": 1.0, "metric": "cosine", "targets": ["onnxruntime"], **options}
        with pytest.raises(error, match=said):
            tune(str(model), case.data, case.out, **given)

    refused(InvalidOption, "`metric` 'accuracy': auto, top1", metric="accuracy")
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
        case.tune(max_drop=1, targets=["openvino"])


def whole_artifacts(folder: Path) -> list[str]:
    """The files of a folder, each of which is what its manifest says."""
    files = [path for path in folder.iterdir() if not path.name.startswith(".")]
    for path in files:
        if path.suffix != ".json":
            load_artifact(path)
        else:
            assert is_manifest(path)
    return sorted(path.name for path in files)


def test_an_interrupt_leaves_only_whole_artifacts(
    make: Callable[..., Case], timed: Callable[..., None]
) -> None:
    """What has its name is whole at every step; what has none is gone after an interrupt."""
    case = make()
    timed({"int8": 1.0, "fp32": 2.0})
    files_at: dict[str, list[str]] = {}

    def look(text: str, *_: int | None) -> None:
        if text not in files_at:
            files_at[text] = whole_artifacts(case.out)

    case.tune(max_drop=2.0, progress=look)
    steps, counts = list(files_at), [len(files) for files in files_at.values()]
    assert len(steps) > 10
    assert counts == sorted(counts)
    assert not any({"recipe.toml", "tune.json"} & set(files) for files in files_at.values())
    for stop in (steps[0], steps[len(steps) // 2], steps[-1]):
        folder = case.out.with_name(f"at-{steps.index(stop)}")

        def interrupt(text: str, *_: int | None, at: str = stop) -> None:
            if text == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            case._replace(out=folder).tune(max_drop=2.0, progress=interrupt)
        assert whole_artifacts(folder) == files_at[stop]
        assert {path.name for path in folder.iterdir()} == set(files_at[stop])
    case._replace(out=folder).tune(max_drop=2.0)  # the same folder again
    assert (folder / "recipe.toml").is_file()


def test_an_interrupt_while_latency_is_measured(make: Callable[..., Case]) -> None:
    case = make(hostile=False)

    def interrupt(text: str, *_: int | None) -> None:
        if text.startswith("launch"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.tune(max_drop=100, progress=interrupt)
    assert "onnxruntime-int8.onnx" in whole_artifacts(case.out)
