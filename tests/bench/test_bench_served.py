"""What a server holds beside the same file in this machine's processes: `bench`, `diff`, and who refuses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from kserve_server import serving

import qcompile
from qcompile.bench.results.results import load_results
from qcompile.bench.results.row import NoEnergy
from qcompile.cli.main import main
from qcompile.errors import EngineUnavailable

ROOT = Path(__file__).parents[2]


def test_a_served_file_beside_itself_says_where_and_what_is_not_known(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    model = str(tiny_file("mlp"))
    with serving(model, extensions=("binary_tensor_data", "statistics")) as (server, url):
        results = qcompile.benchmark(
            [f"triton:{url}"], baseline=model, data=str(samples("mlp")), clients=[2], threads=1,
            max_time_s=0.2, output=tmp_path / "r.json",
        )  # fmt: skip
        where = f"127.0.0.1:{server.server_address[1]}"
    _, served = results.rows
    assert (served.name, served.engine, served.precision) == ("triton:digits", "triton", "unknown")
    assert (served.status, served.runs_on, served.device) == ("measured", f"served at {where}", "served")
    assert served.latency is not None and served.latency.median_ms > 0
    assert "request to answer" in served.contains
    assert served.size_bytes is served.memory is served.load_ms is served.cold_start is None
    assert isinstance(served.energy, NoEnergy) and "server" in served.energy.reason
    assert served.difference is not None and served.difference.snr_db == float("inf")
    assert len(served.concurrency) == 1
    assert any("size, memory and precision are the server's" in text for text in served.warnings)
    assert any("queue 1 ms" in text for text in served.warnings)
    assert not any("compares devices" in text for text in served.warnings)
    assert not any("other processes" in text for text in results.environment["noise"]["reasons"])
    schema = json.loads((ROOT / "bench/results/results.schema.json").read_text())
    jsonschema.validate(json.loads((tmp_path / "r.json").read_text()), schema)
    assert load_results(tmp_path / "r.json").rows[1].runs_on == served.runs_on


def test_a_server_that_dies_while_it_is_measured_leaves_the_others_their_numbers(
    tiny_file: Callable[..., Path],
) -> None:
    model = str(tiny_file("mlp"))
    with serving(model, dies_after=30) as (_, url):
        results = qcompile.benchmark([f"kserve:{url}"], baseline=model, threads=1, max_time_s=0.2)
    base, served = results.rows
    assert base.latency is not None
    assert served.status == "failed" and "\n" not in served.reason
    assert "refuses the connection" in served.reason or "broke the connection off" in served.reason


def test_the_command_line_takes_it_to_measure_and_compare_and_for_nothing_else(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    model, run = str(tiny_file("mlp")), CliRunner().invoke
    with serving(model) as (_, url):
        equal = run(main, ["diff", model, f"kserve:{url}", "--atol", "0", "--json"])
        assert equal.exit_code == 0 and json.loads(equal.stdout)["passed"]
    for verb in ("diff", "bench"):
        words = [model, f"kserve:{url}"] if verb == "diff" else [f"kserve:{url}", "--baseline", model]
        gone = run(main, [verb, *words])
        assert gone.exit_code == 1 and "refuses the connection" in gone.stderr
    for words in (["export"], ["build", "--target", "onnxruntime"], ["simplify"], ["quantize"]):
        refused = run(main, [words[0], f"kserve:{url}", *words[1:], "-o", str(tmp_path / "x.onnx")])
        assert refused.exit_code == 2 and "`bench` and `diff` take" in refused.stderr, words
    layers = run(main, ["diff", model, f"kserve:{url}", "--layers"])
    assert layers.exit_code == 2 and "its layers cannot be looked at" in layers.stderr


def test_a_baseline_on_a_server_that_is_gone_is_refused(tiny_file: Callable[..., Path]) -> None:
    with serving(tiny_file("mlp")) as (_, url):
        pass
    with pytest.raises(EngineUnavailable, match="refuses the connection"):
        qcompile.benchmark([str(tiny_file("mlp"))], baseline=f"kserve:{url}", threads=1, max_time_s=0.1)
