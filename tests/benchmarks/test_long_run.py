"""Long runs, small: counts are exact, memory has a wide margin; the rule that tells growth from noise."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks/reliability"
SCRIPT = FOLDER / "long_run.py"
LIMIT_S = 120
MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def load(name: str) -> ModuleType:
    """Import a file of the folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


use = load("process_use")


def long_run(output: Path, *subjects: str, count: int) -> tuple[int, list[dict]]:
    command = [sys.executable, str(SCRIPT), *subjects, "--count", str(count), "--samples", "40"]
    done = subprocess.run(
        [*command, "--output", str(output)],
        cwd=output.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, [json.loads(line) for line in output.read_text().splitlines()]


def test_a_runner_and_a_worker_leave_nothing_behind_and_do_not_grow(tmp_path: Path) -> None:
    code, rows = long_run(tmp_path / "runs.jsonl", "onnxruntime", "worker", count=4000)
    assert code == 0
    assert [row["iterations"] for row in rows] == [4000, 4000]
    for row in rows:
        assert not any(count > 0 for count in row["left"].values()), row
        for kind in ("descriptors", "threads", "children", "temporary"):
            least, most = row["held"][kind]
            assert least == most, (kind, row)
        assert row["growth"]["middle"] < 16 * MIB, "2,500 bytes for each inference would be a leak"
    assert rows[1]["held"]["children"] == [1, 1], "the worker"


def of_memory(*values: float) -> list:
    return [use.Sample(100 * index, int(value), 3, 1, 0, 0) for index, value in enumerate(values)]


def test_memory_that_only_moves_about_is_flat() -> None:
    noise = random.Random(1)
    growth = use.growth_of(of_memory(*(100 * MIB + noise.uniform(-1, 1) * MIB / 4 for _ in range(200))))
    assert growth.verdict == "flat"
    assert growth.low < 0 < growth.high
    assert growth.allowed == pytest.approx(1 * MIB, rel=0.02), "1 MiB, or 1% where that is more"


def test_memory_that_grows_by_bytes_per_iteration_is_seen() -> None:
    """2 MiB over the run in steps of an allocator, under noise of half a MiB."""
    noise = random.Random(2)
    values = [50 * MIB + 2.6 * MIB * index / 200 // 65536 * 65536 for index in range(200)]
    growth = use.growth_of(of_memory(*(value + noise.uniform(-0.5, 0.5) * MIB for value in values)))
    assert growth.verdict == "growing"
    assert growth.low < 2.6 * MIB * 0.8 < growth.high, "of the four fifths that count"


def test_growth_of_the_first_fifth_does_not_count() -> None:
    values = [min(index, 39) * MIB for index in range(200)]
    assert use.growth_of(of_memory(*values)).middle == 0


def test_too_much_noise_is_undecided_and_too_few_samples_are_refused() -> None:
    noise = random.Random(3)
    wild = of_memory(*(100 * MIB + noise.choice((0, 200)) * MIB for _ in range(60)))
    assert use.growth_of(wild).verdict == "undecided"
    with pytest.raises(ValueError, match="30 are required"):
        use.growth_of(wild[:20])


def test_what_a_process_opens_is_counted(tmp_path: Path) -> None:
    own = [os.getpid()]
    before = use.sample(0, own, tmp_path)
    with (tmp_path / "held").open("w"):
        command = [sys.executable, "-c", "input()"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE)
        try:
            during = use.sample(1, own, tmp_path)
        finally:
            child.kill()
            child.communicate()
    assert during.descriptors - before.descriptors == 2, "the file and the pipe"
    assert during.children - before.children == 1
    assert during.temporary - before.temporary == 1
    assert during.rss_bytes > MIB
    assert use.sample(2, own, tmp_path).counts[:3] == before.counts[:3]
