"""Trials made elsewhere, several at a time: the same trials are chosen, with the same files and answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from executors import Noting
from hostile_network import Case

from qcompile.core.files import digest_files
from qcompile.core.progress import silent
from qcompile.errors import DataError, InvalidOption, QCompileError
from qcompile.pipeline.stages.stage import Stage
from qcompile.pipeline.stages.store import Store
from qcompile.pipeline.stages.trial_stages import trial_request, trial_text
from qcompile.pipeline.tune.elsewhere import StageTrials, on_executor
from qcompile.pipeline.tune.trials import Score, TrialRequest, TrialSetting, rank_part
from qcompile.pipeline.tune.tune import TuneResult, tune

pytestmark = pytest.mark.usefixtures("short_blocks")


def told(found: TuneResult, folder: Path) -> Any:
    """All that was found, wherever it lies."""
    return json.loads(json.dumps(found.as_json()).replace(str(folder), "OUT"))


@pytest.mark.parametrize(("target", "max_drop"), [("onnxruntime", 2.0), ("openvino", 1e-4)])
def test_the_result_is_that_of_one_trial_after_the_other(
    target: str, max_drop: float, make: Callable[..., Case], timed: Callable[..., None]
) -> None:
    pytest.importorskip(target)
    case = make()
    timed({"int8": 1.0, "": 5.0})
    options: dict[str, Any] = {"max_drop": max_drop, "method": "minmax", "targets": [target]}
    alone = tune(str(case.model), case.data, case.out / "alone", **options)
    executor, folder = Noting(3), case.out / "spread"
    spread = tune(str(case.model), case.data, folder, **options, elsewhere=on_executor(executor, folder))
    assert told(spread, folder) == told(alone, case.out / "alone")
    assert list(spread.trials) == list(alone.trials)
    files = {path.name for path in (case.out / "alone").iterdir() if path.suffix == ".onnx"}
    assert files == {path.name for path in folder.iterdir() if path.suffix == ".onnx"}
    for name in (name for name in files if name.endswith(".graph.onnx")):  # runtimes write theirs anyhow
        assert digest_files([folder / name]) == digest_files([case.out / "alone" / name]), name
    assert executor.most > 1
    assert len([step for step in executor.asked if step.kind == "rank"]) == 3

    again = Noting(2)  # what was tried is kept, however many were tried at a time
    assert told(
        tune(str(case.model), case.data, folder, **options, elsewhere=on_executor(again, folder)), folder
    ) == told(alone, case.out / "alone")
    assert not set(again.done) & set(executor.done)


def test_parts_of_a_ranking_are_the_whole(make: Callable[..., Case], timed: Callable[..., None]) -> None:
    case = make()
    timed({"": 1.0})
    tune(str(case.model), case.data, case.out, max_drop=100, targets=["onnxruntime"], method="minmax")
    setting = TrialSetting(case.model, case.out / "model.ranges", case.data, "auto", method="minmax")
    whole = rank_part(setting, "onnxruntime")
    assert len(whole) == 5
    for parts in (2, 3, 7):
        ranked = [
            one for part in range(1, parts + 1) for one in rank_part(setting, "onnxruntime", part, parts)
        ]
        assert sorted(ranked, key=lambda one: -one.noise) == whole


def test_an_ask_is_read_as_it_was_sent() -> None:
    ask = TrialRequest("a-mix1", "openvino", "int8", frozenset({"b", "a"}), "bf16")
    setting = TrialSetting(Path("m.onnx"), Path("m.ranges"), "d.npz", "auto")
    assert trial_request(Stage(kind="trial", trial=trial_text(setting, ask))) == ask


def test_a_folder_that_another_tuning_holds_is_refused(
    make: Callable[..., Case], timed: Callable[..., None]
) -> None:
    case = make()
    timed({"": 1.0})
    elsewhere = on_executor(Noting(2), case.out)
    with Store(case.out, folder=case.out / ".qcompile").locked(), pytest.raises(InvalidOption):
        case.tune(max_drop=1, elsewhere=elsewhere)


def test_a_trial_that_fails_elsewhere_is_a_note_and_one_that_is_lost_an_error(
    make: Callable[..., Case], timed: Callable[..., None]
) -> None:
    case = make()
    timed({"": 1.0})

    class Failing(StageTrials):
        error: QCompileError = DataError("outputs are NaN")

        def make(self, ask: TrialRequest) -> tuple[Score, list[Path]]:
            if ask.precision == "int8":
                raise self.error
            return super().make(ask)

    def elsewhere(setting: TrialSetting) -> Failing:
        return Failing(Noting(2), setting, case.out, silent)

    found = case.tune(max_drop=1, elsewhere=elsewhere)
    assert found.best.precision == "fp32"
    assert "onnxruntime: some mixes cannot be made: outputs are NaN" in found.notes
    Failing.error = QCompileError("the workers are gone")
    with pytest.raises(QCompileError, match="the workers are gone"):
        case.tune(max_drop=1, elsewhere=elsewhere)
