"""The coverage benchmark's own machinery: causes, tables, what is finished, processes that crash or hang."""

import faulthandler
import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parent


def load(name: str) -> ModuleType:
    """Import a file of the harness, which is no package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"architectures/{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


architectures = load("architectures")
table = load("results_table")
processes = load("processes")


def architecture(name: str = "timm_mlp", kind: str = "classifier") -> SimpleNamespace:
    return SimpleNamespace(key=name, library=name.split("_")[0], kind=kind, task=kind)


def passed() -> list[dict]:
    return [{"stage": stage, "result": "passed"} for stage in table.STAGES]


def failed(stage: str, message: str, *, defect: bool = False) -> dict:
    return {"stage": stage, "result": "failed", "error": "ModelError", "message": message, "defect": defect}


def row(records: list[dict], *, end: str = "", name: str = "timm_mlp", kind: str = "classifier") -> dict:
    return table.finished_row(architecture(name, kind), records, end, ["Aborted"], 1.0)


def test_tables_count_stages_kinds_and_causes(tmp_path: Path) -> None:
    """The last row of a name counts, a line cut off does not, and causes are equal but for numbers."""
    file = tmp_path / "results.jsonl"
    table.write_row(file, row([failed("export", "no")]))
    with file.open("a") as stream:
        stream.write('{"name": "timm_ml')
    for found in (
        row(passed()),
        row([failed("export", "axis 2 cannot be dynamic")], name="timm_a"),
        row([failed("export", "axis 7 cannot be dynamic", defect=True)], name="timm_b", kind="other"),
    ):
        table.write_row(file, found)
    text = table.as_markdown(table.latest(table.read_rows(file)))
    assert "| export | 1 | 2 | 0 |" in text
    assert "| openvino diff | 1 | 0 | 2 |" in text
    assert "| **all** | 1 of 2 (50%) | 0 of 1 (0%) | 1 of 3 (33%) |" in text
    assert "| export | axis N cannot be dynamic | 2 | timm_a, timm_b |" in text
    assert "DEFECT: timm_b, export" in text
    assert "DEFECT: timm_a" not in text


def test_unseen_batches_have_other_values_and_extents_in_the_steps_of_the_axis() -> None:
    row = {
        "name": "net", "library": "some-lib", "task": "segmentation", "file": "newcomers", "options": {},
        "factory": "torch.nn:Identity", "axes": {"width": [64, 96, 192]},
        "inputs": [["batch.image", ["batch", 3, "width"], "normal"]],
    }  # fmt: skip
    one = architectures.Architecture.from_row(row)
    assert one.key == "some_lib_net"
    seen, unseen = ([feeds["batch.image"] for feeds in made()] for made in (one.samples, one.unseen))
    assert {array.shape[2] for array in unseen} - {array.shape[2] for array in seen}
    assert all(array.shape[2] % 32 == 0 and 64 <= array.shape[2] <= 192 for array in unseen)
    assert not np.array_equal(seen[0], unseen[0])
    assert list(one.call({"batch.image": seen[0]})) == ["batch"]


def _work(one: SimpleNamespace, _folder: Path, report) -> None:  # type: ignore[no-untyped-def]
    report({"stage": "export", "result": "started"})
    if one.key == "timm_hangs":
        time.sleep(60)
    if one.key == "timm_crashes":
        os.write(1, b"the last words\n")
        faulthandler.disable()  # pytest's would fill the log
        os.abort()
    for record in passed():
        report(record)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of forks beside threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_crash_and_a_hang_end_only_their_own_architecture() -> None:
    chosen = [architecture(name) for name in ("timm_crashes", "timm_hangs", "timm_passes")]
    rows = {row["name"]: row for row in processes.run_all(chosen, _work, jobs=3, limit_s=1.0)}
    assert rows["timm_passes"]["passed"]
    hung, crashed = (rows[name]["stages"]["export"] for name in ("timm_hangs", "timm_crashes"))
    assert (hung["cause"], hung["defect"]) == ("timeout", False)
    assert (crashed["result"], crashed["defect"]) == ("failed", True)
    assert "SIGABRT" in crashed["message"]
    assert "the last words" in crashed["traceback"]
