"""The cost model against cases that are computed by hand, and against bounds that hold for every schedule."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks/cluster"
sys.path.insert(0, str(FOLDER))
try:
    import cost_model
    import fleet
finally:
    sys.path.remove(str(FOLDER))

DIGEST = "sha256:" + "a" * 64


def test_a_chain_takes_its_sum_and_two_branches_take_the_longer() -> None:
    tasks = [
        fleet.Task("export", 10, {}, {"m": 1000}),
        fleet.Task("build-a", 4, {"m": 1000}, {"a": 500}),
        fleet.Task("build-b", 6, {"m": 1000}, {"b": 500}),
    ]
    links = {"bytes_per_s": 1000, "overhead_s": 0.5, "price_per_hour": 36, "egress_per_gb": 0}
    one = fleet.estimate(tasks, fleet.Fleet(1, 1, **links))
    # 0.5 + 10 + 1; the model is there: 0.5 + 4 + 0.5; 0.5 + 6 + 0.5
    assert one.scheduled_s == pytest.approx(11.5 + 5 + 7)
    assert (one.fetched_bytes, one.made_bytes) == (0, 2000)
    assert one.dollars == pytest.approx(23.5 * 36 / 3600)
    two = fleet.estimate(tasks, fleet.Fleet(2, 1, **links))
    assert two.fetched_bytes == 1000  # one worker made it, the other fetches it once
    assert two.scheduled_s in (pytest.approx(11.5 + 8), pytest.approx(11.5 + 7))
    assert two.dollars == pytest.approx(2 * two.scheduled_s * 36 / 3600)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 7)), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(1, 2),
)
def test_a_schedule_lies_between_the_bounds(drawn: list[tuple[float, int]], workers: int, slots: int) -> None:
    tasks = [
        fleet.Task(f"t{number}", seconds, {f"f{before}": 10} if before < number else {}, {f"f{number}": 10})
        for number, (seconds, before) in enumerate(drawn)
    ]
    one = fleet.estimate(tasks, fleet.Fleet(workers, slots, bytes_per_s=100))
    assert one.least_s <= one.scheduled_s * (1 + 1e-9)
    assert one.scheduled_s <= one.most_s * (1 + 1e-9)


def test_the_records_of_a_run_tell_who_reads_what(tmp_path: Path) -> None:
    def record(stage: str, key: dict, name: str, digest: str, size: int) -> None:
        folder = tmp_path / ".qcompile" / stage
        folder.mkdir(parents=True)
        stats, files = {name: [size, 0]}, {name: digest}
        text = json.dumps({"key": key, "files": files, "stats": stats, "seconds": 2.5, "peak_bytes": 9})
        (folder / "stage.json").write_text(text)

    record("build-a-0", {"model": DIGEST, "ranges": "sha256:" + "c" * 64}, "a.onnx", "sha256:" + "b" * 64, 7)
    record("export-0", {"source": "sha256:" + "d" * 64}, "m.onnx", DIGEST, 5)
    export, build = cost_model.tasks_of([tmp_path], 3)
    assert (export.name, build.name) == ("export-0", "build-a-0")
    assert build.reads == {DIGEST: 5, "given": 3}
    assert build.makes == {"sha256:" + "b" * 64: 7}
    assert (build.seconds, build.peak_bytes) == (2.5, 9)
