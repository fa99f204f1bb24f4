"""Parts of the data, observed apart and merged, are the whole; interrupted or killed, nothing is lost."""

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
    normal,
    npz,
    observed,
    property_test,
    save,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from qcompile.calibration import Ranges, load_ranges, observe
from qcompile.calibration.calibrate import Shard, parse_shard, select_units, split_samples
from qcompile.calibration.ranges_file import merge_files
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.data.batches import Data
from qcompile.data.readers import Batch
from qcompile.errors import DataError, InvalidOption
from qcompile.model.graph.onnx_file import read_weightless

MODELS = {
    "rows apart": "a = MatMul(x, w) y = Relu(a)",
    "rows mixed": "m = ReduceMean<axes = [0]>(x) c = Sub(x, m) a = MatMul(c, w) y = Relu(a)",
}


def model(folder: Path, name: str) -> Path:
    w = normal(4, 3)
    return save(folder / "m.onnx", MODELS[name], "(float[n, 4] x) => (float[n, 3] y)", w=w)


def test_a_shard_without_samples_is_a_warning_and_merges(tmp_path: Path) -> None:
    path = model(tmp_path, "rows apart")
    spec = npz(tmp_path / "data.npz", x=normal(3, 4))
    shards = [calibrate(path, spec, tmp_path / str(part), shard=f"{part}/5") for part in range(1, 6)]
    empty = [not load_ranges(shard.path).samples for shard in shards]
    assert empty == [False, False, False, True, True]
    for shard, nothing in zip(shards, empty, strict=True):
        assert any("no sample was observed" in text for text in shard.manifest.warnings) == nothing
    merged = merge_files([shard.path for shard in reversed(shards)], tmp_path / "merged")
    whole = calibrate(path, spec, tmp_path / "whole")
    assert merged.path.read_bytes() == whole.path.read_bytes()
    assert merged.manifest.warnings == whole.manifest.warnings


@pytest.mark.parametrize("text", ["1/1", "2/8", " 8/8 ", "1/999999999"])
def test_a_shard_is_spelled_part_of_parts(text: str) -> None:
    assert str(parse_shard(text)) == text.strip()


WRONG_SHARDS = ["", "2", "/", "0/2", "3/2", "1/0", "0/0", "-1/2", "a/b", "1/2/3", "1.0/2", "1 of 2", "1/1e3"]


@pytest.mark.parametrize("text", [*WRONG_SHARDS, "1/99999999999999999999"])
def test_a_misspelled_shard_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="PART/PARTS is required") as caught:
        parse_shard(text)
    assert caught.value.data["option"] == "shard"
    assert repr(text) in caught.value.message


def test_the_progress_of_a_shard_counts_whole_batches(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "y = Relu(x)", "(float[4, 3] x) => (float[4, 3] y)")
    np.savez(tmp_path / "x.npz", x=normal(12, 3))
    said: list[Any] = []
    observed(model, str(tmp_path / "x.npz"), shard=Shard(1, 2), progress=lambda *state: said.append(state))
    assert said[-1] == ("calibrate", 8, 8)


def data_of(folder: Path, kind: str, extents: list[int]) -> str:
    parts = [normal(extent, 4) * (1 + number) for number, extent in enumerate(extents)]
    if kind == "function":
        return function_of(folder / "f", parts)
    if kind == "npz":
        np.savez(folder / "a.npz", x=np.concatenate(parts))
        return str(folder / "a.npz")
    (folder / "a").mkdir()
    for number, part in enumerate(parts):
        np.save(folder / "a" / f"{number}.npy", part)
    return str(folder / "a")


@pytest.mark.parametrize("kind", ["folder", "npz", "function"])
@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=6)
@given(
    extents=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    batch_size=st.integers(1, 4),
    shards=st.integers(2, 4),
)
def test_shards_are_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    name: str,
    extents: list[int],
    batch_size: int,
    shards: int,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    weightless = read_weightless(model(folder, name))
    data = Data(data_of(folder, kind, extents), weightless.io.inputs, batch_size=batch_size)
    whole = observe(weightless, data)
    merged, *others = (observe(weightless, data, shard=Shard(part + 1, shards)) for part in range(shards))
    for other in others:
        merged.merge(other)
    assert_equal(merged, whole)
    assert merged.portions == whole.portions


class Rows:
    """Runs a batch as a model does whose rows are apart, or mixed; says which batches it was given."""

    def __init__(self, *, mixed: bool) -> None:
        self.mixed, self.given = mixed, list[str]()

    def __call__(self, batch: Batch) -> list[np.ndarray[Any, Any]]:
        self.given.append(batch.where)
        x = batch.feeds["x"]
        return [x - x.mean(axis=0) if self.mixed else x * 2]


@pytest.mark.parametrize("mixed", [False, True])
def test_every_part_splits_by_the_first_batch_of_the_data(tmp_path: Path, *, mixed: bool) -> None:
    inputs = read_weightless(model(tmp_path, "rows apart")).io.inputs
    data = Data(data_of(tmp_path, "folder", [1, 2, 3, 2]), inputs)
    whole = [batch.where for batch in split_samples(data, Rows(mixed=mixed))]
    assert len(whole) == (4 if mixed else 8)
    for part in range(3):
        rows = Rows(mixed=mixed)
        units = list(select_units(data, rows, lambda unit, part=part: unit % 3 == part))
        assert [number for number, _ in units] == list(range(part, len(whole), 3))
        assert [batch.where for _, batch in units] == whole[part::3]
        assert rows.given[-1] == "a/1.npy"  # the first that can be split, in every part


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
from qcompile.data.readers import Batch
from qcompile.model.graph.onnx_file import read_weightless

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
