"""`qcompile ranges merge` and `qcompile ranges cache`."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Qc, handmade

from qcompile.artifact import load_artifact
from qcompile.calibration import Method, load_ranges
from qcompile.calibration.tensorrt_cache import format_cache, parse_cache
from qcompile.model.weightless import fingerprint


# ranges merge
def shards(done: Qc, model: Path, data: Path, count: int) -> list[Path]:
    """Ranges files of every shard, made one by one."""
    files = []
    for part in range(1, count + 1):
        files.append(model.with_name(f"part{part}.ranges"))
        options = ("--shard", f"{part}/{count}", "--method", "entropy", "--threads", 1)
        done("calibrate", model, "--data", data, "-o", files[-1], *options)
    return files


@pytest.mark.parametrize("count", [3, 20])
def test_merged_shards_have_the_bytes_of_the_whole(
    done: Qc, model: Path, data: Path, file: Path, tmp_path: Path, count: int
) -> None:
    files = shards(done, model, data, count)
    assert all(path.read_bytes() != file.read_bytes() for path in files)
    merged = tmp_path / "merged.ranges"
    said = done("ranges", "merge", *reversed(files), "-o", merged)
    assert f"16 samples of {count} files" in said.out
    assert merged.read_bytes() == file.read_bytes()
    assert load_artifact(merged).manifest.digest == load_artifact(file).manifest.digest


def test_merging_is_an_artifact_of_its_own(done: Qc, model: Path, data: Path, tmp_path: Path) -> None:
    one, two, three = shards(done, model, data, 3)
    some = done("ranges", "merge", one, three, "-o", tmp_path / "some.ranges", "--json").json
    assert (some["stage"], some["proof"]["samples"]) == ("merge", 6 + 5)
    assert some["sources"]["model"] == fingerprint(model)
    assert "(1, 3 of 3 parts)" in some["sources"]["data"]
    whole = done("ranges", "merge", tmp_path / "some.ranges", two, "-o", tmp_path / "whole.ranges", "--json")
    assert whole.json["proof"]["samples"] == 16
    assert "parts" not in whole.json["sources"]["data"]


def test_merging_what_does_not_belong_together_names_the_file(
    qc: Qc, done: Qc, model: Path, data: Path, file: Path, tmp_path: Path
) -> None:
    one, two = shards(done, model, data, 2)
    output, other = tmp_path / "merged.ranges", handmade(tmp_path / "other.ranges", 1)
    for files, words in (
        ((one, two, one), "cut into"),
        ((one, one), "part 1 of 2 is in both"),
        ((file, file), "the same data is in both"),
        ((one, other), "different models"),
    ):
        said = qc("ranges", "merge", *files, "-o", output)
        assert (said.code, said.out) == (1, "")
        assert f"error: {files[-1]}: " in said.err
        assert words in said.err
    assert qc("ranges", "merge", one, tmp_path / "none.ranges", "-o", output).code == 2
    assert qc("ranges", "merge", "-o", output).code == 2
    assert qc("ranges", "merge", one, two).code == 2
    assert not output.exists()


# ranges cache
def test_a_cache_holds_the_scales_of_the_file(done: Qc, file: Path, tmp_path: Path) -> None:
    cache, ranges = tmp_path / "model.cache", load_ranges(file)
    said = done("ranges", "cache", file, "-o", cache, "--tensorrt", "8.5.3")
    count = len(list(ranges.names()))
    assert said.out == f"{cache}  TRT-8503-EntropyCalibration2, {count} tensors\n"
    assert cache.read_text() == format_cache(ranges, version="8503")
    options = ("--tensorrt", "10.1.0", "--calibrator", "MinMaxCalibration", "--method", "minmax")
    said = done("ranges", "cache", file, "-o", cache, *options, "--json")
    header = "TRT-100100-MinMaxCalibration"
    assert said.json == {"path": str(cache), "header": header, "tensors": count}
    assert cache.read_text().splitlines()[0] == header
    scales = parse_cache(cache.read_text(), cache)
    assert scales["x"] * 127 == pytest.approx(ranges.amax("x", Method("minmax")), rel=1e-6)


def test_a_cache_goes_into_quantize(qc: Qc, done: Qc, model: Path, file: Path, tmp_path: Path) -> None:
    cache, output = tmp_path / "model.cache", tmp_path / "q.onnx"
    done("ranges", "cache", file, "-o", cache, "--tensorrt", "8.5.3")
    said = qc("quantize", model, "-o", output, "--ranges", cache)
    assert said.code == 2
    assert "--target tensorrt" in said.err
    assert not output.exists()
    said = done("quantize", model, "-o", output, "--ranges", cache, "--target", "tensorrt", "--json")
    assert said.json["proof"]["nodes_by_precision"]["int8"] == {"Conv": 2, "Gemm": 1}


def test_what_cache_cannot_write_is_a_usage_error(qc: Qc, file: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.cache"
    for options, words in (
        ((), "--tensorrt"),
        (("--tensorrt", "eight"), "'eight'"),
        (("--tensorrt", "8.5.3", "--calibrator", "Best"), "known are EntropyCalibration2"),
        (
            ("--tensorrt", "8.5.3", "--method", "kl"),
            "minmax, percentile[:NUMBER], entropy, mse or auto is required",
        ),
    ):
        said = qc("ranges", "cache", file, "-o", output, *options)
        assert (said.code, said.out) == (2, "")
        assert words in said.err
    assert not output.exists()
