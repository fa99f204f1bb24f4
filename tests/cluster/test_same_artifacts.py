"""A scheduler and four workers, each in a process of its own, make what one process makes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from cluster_trials import (
    Watch,
    contents,
    differing,
    finished,
    run_once,
    run_words,
    write_recipe,
    wrong_files,
)
from clusters import running_cluster


def test_four_workers_make_the_artifacts_of_one_process(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", samples=16)
    one = subprocess.run(
        run_words(recipe, tmp_path / "one"), capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert one.returncode == 0, one.stderr
    expected = contents(tmp_path / "one")
    assert expected.keys() >= {"small.onnx", "small.ranges", "cpu.onnx", "cpu-int8.onnx"}

    with running_cluster(tmp_path / "cluster", workers=4) as cluster:
        watch = Watch(cluster)
        with watch.looking():
            said = run_once(cluster, recipe, tmp_path / "out")
            assert said.code == 0, said.text
            # Another client, another folder: everything is done already.
            again = run_once(cluster, recipe, tmp_path / "again")
            assert again.code == 0, again.text
        for folder in ("out", "again"):
            assert differing(tmp_path / folder, expected) == []
        assert finished(tmp_path / "out") >= finished(tmp_path / "one")  # the same keys, and the parts
        times = watch.times()
        parts = {name.rpartition("-")[0] for name in times if "-of-" in name}
        assert parts == {f"calibrate-{part}-of-4" for part in (1, 2, 3, 4)}
        assert set(times.values()) == {1}, "nothing is done twice"
        assert wrong_files(cluster, tmp_path / "out", tmp_path / "again") == []
