"""Interrupted, killed or repeated: nothing is lost and nothing counts twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from calibrated import (
    COUNT,
    DEADLINE_S,
    SAMPLES,
    Interrupted,
    Listener,
    assert_equal,
    function_of,
    interrupt,
    npz,
    observed,
    property_test,
    ranges_of,
)
from hypothesis import given
from hypothesis import strategies as st

from qcompile.calibration import Ranges
from qcompile.calibration.calibrate import Shard
from qcompile.errors import DataError


@property_test
@given(
    st.lists(st.integers(0, COUNT), min_size=1, max_size=4),
    st.sampled_from([Shard(), Shard(1, 2), Shard(2, 3)]),
    st.integers(1, 2),
    st.booleans(),
)
def test_interruptions_leave_no_trace(
    network: Path,
    data: str,
    tmp_path_factory: pytest.TempPathFactory,
    after: list[int],
    shard: Shard,
    threads: int,
    by_function: bool,
) -> None:
    folder = tmp_path_factory.mktemp("interrupted")
    spec = function_of(folder / "d", np.split(SAMPLES, [3, 4, 10])) if by_function else data
    expected = observed(network, spec, shard=shard, threads=1)
    checkpoint = folder / "checkpoint"
    for count in after:
        try:
            observed(
                network,
                spec,
                shard=shard,
                threads=threads,
                checkpoint=checkpoint,
                checkpoint_every_s=0,
                progress=Interrupted(count),
            )
        except KeyboardInterrupt:
            continue
    found = observed(network, spec, shard=shard, threads=3 - threads, checkpoint=checkpoint)
    assert_equal(found, expected)
    assert found.portions == expected.portions


@pytest.mark.parametrize("batch", [0, 1, 2, 3])
def test_data_that_fails_midway_can_be_gone_on_with(
    network: Path, whole: Ranges, tmp_path: Path, batch: int
) -> None:
    spec = function_of(tmp_path / "d", np.split(SAMPLES, [2, 3, 9]))
    checkpoint, trouble = tmp_path / "checkpoint", tmp_path / "d" / f"fail {batch}"
    trouble.touch()
    for _ in range(2):
        with pytest.raises(DataError, match="the disk is gone"):
            observed(network, spec, checkpoint=checkpoint, checkpoint_every_s=0)
    trouble.unlink()
    heard = Listener()
    found = observed(network, spec, checkpoint=checkpoint, progress=heard)
    assert heard.continued() == [[], [2], [3], [9]][batch]
    assert_equal(found, whole)


DRIVER = """
import sys
from pathlib import Path
from qcompile.calibration import observe
from qcompile.data.batches import Data
from qcompile.model.weightless import read_weightless

weightless = read_weightless(Path(sys.argv[1]))
data = Data(sys.argv[2], weightless.io.inputs)
observe(weightless, data, threads=2, checkpoint=Path(sys.argv[3]), checkpoint_every_s=0)
"""


def kill_where_it_hangs(command: Sequence[str], folder: Path, temporary: Path) -> None:
    """Run a command until its data function hangs, then kill it."""
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + DEADLINE_S
        while not (folder / "hanging").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
    finally:
        process.kill()
        _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said


@pytest.mark.parametrize("batch", [1, 4])
def test_a_killed_process_leaves_a_checkpoint_that_the_next_goes_on_from(
    network: Path, whole: Ranges, tmp_path: Path, batch: int
) -> None:
    spec = function_of(tmp_path / "d", np.split(SAMPLES, [2, 3, 7, 8]))
    trouble = tmp_path / "d" / f"hang {batch}"
    trouble.touch()
    checkpoint = tmp_path / "checkpoint"
    command = [sys.executable, "-c", DRIVER, str(network), spec, str(checkpoint)]
    kill_where_it_hangs(command, tmp_path / "d", tmp_path / "tmp")
    trouble.unlink()
    heard = Listener()
    found = observed(network, spec, checkpoint=checkpoint, progress=heard)
    assert heard.continued() == [{1: 2, 4: 8}[batch]]
    assert_equal(found, whole)


def test_a_checkpoint_of_something_else_is_not_gone_on_from(network: Path, data: str, tmp_path: Path) -> None:
    other = onnx.load(network)
    other.graph.node[1].name = "another"
    onnx.save(other, tmp_path / "other.onnx")
    other_data = npz(tmp_path / "other.npz", x=SAMPLES[::-1])
    checkpoint = tmp_path / "checkpoint"
    cases: list[tuple[Path, str, dict[str, Any]]] = [
        (network, other_data, {}),
        (tmp_path / "other.onnx", data, {}),
        (network, data, {"shard": Shard(1, 2)}),
        (network, data, {"limit": 9}),
        (network, data, {"tensors": {"x", "y"}}),
    ]
    for model, spec, options in cases:
        checkpoint.unlink(missing_ok=True)
        interrupt(network, data, checkpoint, 4)
        heard = Listener()
        found = observed(model, spec, checkpoint=checkpoint, progress=heard, **options)
        assert heard.continued() == []
        assert_equal(found, observed(model, spec, **options))


def test_the_checkpoint_is_used_and_removed_at_the_end(
    network: Path, data: str, whole: Ranges, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "elsewhere" / "checkpoint"
    interrupt(network, data, checkpoint, 6)
    heard = Listener()
    found = ranges_of(network, data, tmp_path / "r", checkpoint=checkpoint, progress=heard)
    assert heard.continued() == [6]
    assert_equal(found, whole)
    assert not checkpoint.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "r", "r.json"]
