"""`qcompile calibrate`, and `qcompile ranges` by its commands."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from calibrated import interrupt
from commands import Qc, Said, handmade
from mode_models import normal, written

from qcompile.calibration import Method, Ranges, load_ranges, parse_method, save_ranges
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.tensorrt_cache import format_cache, parse_cache
from qcompile.calibration.thresholds import METHODS, threshold_error
from qcompile.compiler.quantize.calibrate import tensors_to_calibrate
from qcompile.model.graph.onnx_file import read_weightless
from qcompile.spec.words import METHOD


def test_fewer_targets_observe_fewer_tensors(done: Qc, data: Path, tmp_path: Path) -> None:
    body = """(float[n,4,8,8] x) => (float[n,4,8,8] y) {
        c = Conv (x, w) s = Sigmoid (c) m = Mul (c, s) y = Conv (m, w) }"""
    path = written(tmp_path / "swish.onnx", body, w=normal(4, 4, 1, 1, scale=1))

    def ranges(*options: str) -> Path:
        output = tmp_path / f"{'-'.join(options)}.ranges"
        done("calibrate", path, "--data", data, "-o", output, "--threads", 1, *options)
        return output

    both = ranges()
    tensorrt, runtime = ranges("--target", "tensorrt"), ranges("--target", "onnxruntime")
    observed = {file: set(load_ranges(file).histograms) for file in (both, tensorrt, runtime)}
    assert "s" in observed[runtime]
    assert "s" not in observed[tensorrt]
    assert observed[tensorrt] | observed[runtime] == observed[both]
    for options in (
        ("--target", "onnxruntime,tensorrt"),
        ("--target", "tensorrt", "--target", "onnxruntime"),
    ):
        assert ranges(*options).read_bytes() == both.read_bytes()
    for file, target in ((tensorrt, "tensorrt"), (runtime, "onnxruntime"), (both, "tensorrt")):
        done("quantize", path, "-o", tmp_path / "q.onnx", "--ranges", file, "--target", target)


@pytest.mark.parametrize("fresh", [True, False])
def test_an_interrupted_calibration_goes_on_unless_a_fresh_one_is_asked_for(
    done: Qc, model: Path, data: Path, file: Path, tmp_path: Path, fresh: bool
) -> None:
    output = tmp_path / "again.ranges"
    checkpoint = tmp_path / ".again.ranges.checkpoint"
    tensors = tensors_to_calibrate(read_weightless(model))
    interrupt(model, str(data), checkpoint, 5, tensors=tensors, threads=1)
    assert checkpoint.is_file()
    command = ["calibrate", model, "--data", data, "-o", output, "--method", "entropy", "--threads", 1, "-v"]
    said = done(*command, *(["--fresh"] if fresh else []))
    assert ("continue after" in said.err) is not fresh
    assert output.read_bytes() == file.read_bytes()
    assert not checkpoint.exists()


def rows(table: str) -> list[list[str]]:
    """Cells of the body of a table."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if "│" in line
    ]


# ranges show
def test_show_lists_every_tensor_the_worst_first(done: Qc, file: Path, data: Path) -> None:
    found = done("ranges", "show", file, "--json").json
    ranges, tensors = load_ranges(file), found["tensors"]
    assert {one["tensor"] for one in tensors} == set(ranges.histograms)
    assert (found["samples"], found["model"]) == (16, ranges.model)
    assert (found["method"], found["target"]) == ("entropy", "onnxruntime")
    assert found["shared"] == {name: list(sources) for name, sources in ranges.shared.items()} != {}
    ratios = [math.inf if one["snr_db"] is None else one["snr_db"] for one in tensors]
    assert ratios == sorted(ratios)
    x = np.load(data)["x"]
    shown = {one["tensor"]: one for one in tensors}
    assert (shown["x"]["min"], shown["x"]["max"]) == (float(x.min()), float(x.max()))
    for name, one in shown.items():
        for method in METHODS:
            assert one["amax"][method] == ranges.amax(name, Method(method), symmetric=False)


def test_the_table_shows_what_the_json_holds(done: Qc, file: Path) -> None:
    found = done("ranges", "show", file, "--json").json["tensors"]
    said = done("ranges", "show", file).out
    assert said.startswith(f"{file}  16 samples, {len(found)} tensors, entropy for onnxruntime\n")
    for word in ("tensor", "min", "max", *METHODS, "clipped", "SNR"):
        assert word in said
    table = rows(said)[-len(found) :]
    assert [row[0] for row in table] == [one["tensor"] for one in found]
    for row, one in zip(table, found, strict=True):
        figures = [one["min"], one["max"], *one["amax"].values()]
        assert [float(cell) for cell in row[1:-2]] == pytest.approx(figures, rel=1e-3)
        assert float(row[-2].removesuffix("%")) == pytest.approx(100 * one["clipped"], abs=6e-4)
        assert row[-1] == ("exact" if one["snr_db"] is None else f"{one['snr_db']:.1f} dB")
    assert done("ranges", "show", file, "-q") == Said(0, "", "")


@pytest.mark.parametrize("method", ["minmax", "percentile:90", "mse"])
def test_a_method_and_a_target_decide_what_is_shown(done: Qc, file: Path, method: str) -> None:
    ranges, how = load_ranges(file), parse_method(method)
    for target in ("onnxruntime", "tensorrt"):
        found = done("ranges", "show", file, "--method", method, "--target", target, "--json").json
        assert (parse_method(found["method"]), found["target"]) == (how, target)
        for one in found["tensors"]:
            symmetric = target == "tensorrt"
            limit = ranges.amax(one["tensor"], how, symmetric=symmetric)
            snr_db, clipped = threshold_error(ranges.histogram(one["tensor"]), limit, symmetric=symmetric)
            assert (one["amax"][how.name], one["clipped"]) == (limit, clipped)
            assert one["snr_db"] == (snr_db if math.isfinite(snr_db) else None)
    assert f" {found['method']} for onnxruntime" in done("ranges", "show", file, "--method", method).out


def test_show_lists_the_worst_or_the_named_ones_only(done: Qc, file: Path) -> None:
    def shown(*options: object) -> list[str]:
        return [one["tensor"] for one in done("ranges", "show", file, "--json", *options).json["tensors"]]

    everything = shown()
    assert shown("--top", 2) == everything[:2]
    assert shown("--top", 99) == everything
    assert shown("--tensor", "x") == ["x"]
    two = shown("--tensor", everything[3], "--tensor", everything[1])
    assert two == [everything[1], everything[3]]
    assert shown("--tensor", everything[3], "--tensor", everything[1], "--top", 1) == [everything[1]]


def test_what_was_not_observed_is_shown_with_its_reason(done: Qc, tmp_path: Path) -> None:
    ranges = Ranges("sha256:aa", skipped={"ids": "it is int64, not a float"})
    ranges.histograms["empty"] = Histogram()
    save_ranges(ranges, tmp_path / "a.ranges")
    said = done("ranges", "show", tmp_path / "a.ranges").out
    assert "0 samples, 0 tensors" in said
    assert "skipped ids: it is int64, not a float" in said
    assert done("ranges", "show", tmp_path / "a.ranges", "--json").json["tensors"] == []


def test_show_draws_the_worst(done: Qc, tmp_path: Path) -> None:
    file = handmade(tmp_path / "a.ranges", 14)
    plot = tmp_path / "worst.svg"
    said = done("ranges", "show", file, "--plot", plot)
    assert said.out.endswith(f"{plot}\n")
    found = [one["tensor"] for one in done("ranges", "show", file, "--json").json["tensors"]]
    text = (tmp_path / "worst.svg").read_text()
    assert [name in text for name in found] == [True] * 12 + [False] * 2
    done("ranges", "show", file, "--plot", tmp_path / "few.svg", "--top", 3, "--json")
    text = (tmp_path / "few.svg").read_text()
    assert [name in text for name in found] == [True] * 3 + [False] * 11


# What cannot be done.

METHODS_ARE = f"{METHOD} is required"
CALIBRATE = "calibrate {model} --data {data} -o {out} "
CACHE = "ranges cache {file} -o {out} "


@pytest.mark.parametrize(
    ("command", "words"),
    [
        *((f"{CALIBRATE}--shard={shard}", f"{shard!r}|PART/PARTS") for shard in ("4/3", "")),
        (f"{CALIBRATE}--method kl", METHODS_ARE),
        (f"{CALIBRATE}--target tensort", "'tensort'"),
        *((f"ranges show {{file}} --plot {{out}}/{to}", ".svg is required") for to in ("a.png", "a", "svg")),
        ("ranges show {file} --tensor no_such", "'no_such'"),
        ("ranges show {file} --target torch", "'torch'"),
        ("ranges show {file} --top 0", "--top 0: at least 1 is required"),
        ("ranges show {file} --method kl", METHODS_ARE),
        ("ranges show {file} --method percentile:101", "at most 100"),
        ("ranges show {near}", "mdel.ranges does not exist|did you mean"),
        ("ranges merge {near} -o {out}", "mdel.ranges does not exist|did you mean"),
        ("ranges merge -o {out}", "FILES"),
        ("ranges merge {file}", "--output"),
        ("ranges cache {near} -o {out} --tensorrt 8.5.3", "mdel.ranges does not exist|did you mean"),
        (CACHE, "--tensorrt"),
        (f"{CACHE}--tensorrt eight", "'eight'"),
        (f"{CACHE}--tensorrt 8.5.3 --calibrator Best", "known are EntropyCalibration2"),
        (f"{CACHE}--tensorrt 8.5.3 --method kl", METHODS_ARE),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_a_usage_error(
    qc: Qc, model: Path, data: Path, file: Path, tmp_path: Path, command: str, words: str
) -> None:
    names = {"model": model, "data": data, "file": file, "near": file.with_name("mdel.ranges")}
    said = qc(*(word.format(out=tmp_path / "out", **names) for word in command.split()))
    assert (said.code, said.out) == (2, "")
    for text in words.split("|"):
        assert text in said.err
    assert not (tmp_path / "out").exists()


# inspect
def test_inspect_sums_a_ranges_file_up_and_points_to_the_rest(done: Qc, file: Path) -> None:
    ranges = load_ranges(file)
    said = done("inspect", file).out
    assert said.startswith(f"{file}: ranges, ")
    assert "16 samples, method entropy, of model sha256:" in said
    assert f"{len(ranges.histograms)} tensors observed, {len(ranges.shared)} share their ranges" in said
    assert f"qcompile ranges show {file}" in said
    facts = done("inspect", file, "--json").json
    assert (facts["kind"], facts["samples"], facts["method"]) == ("ranges", 16, "entropy")
    assert (facts["tensors"], facts["shared"]) == (len(ranges.histograms), len(ranges.shared))
    assert (facts["model"], facts["data"], facts["skipped"]) == (ranges.model, ranges.data, {})
    assert facts["matches_manifest"] is True


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
