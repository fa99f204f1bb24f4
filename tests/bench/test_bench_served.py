"""What a server holds beside the same file in processes of this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from kserve_server import serving

import qcompile
from qcompile.bench.results.results import load_results
from qcompile.bench.results.row import NoEnergy
from qcompile.errors import EngineUnavailable

pytestmark = pytest.mark.usefixtures("short_blocks")
ROOT = Path(__file__).parents[2]


def test_a_served_file_beside_itself_says_where_and_what_is_not_known(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> None:
    model, output = str(tiny_file("mlp")), tmp_path / "r.json"
    extensions = ("binary_tensor_data", "statistics")
    with serving(model, extensions=extensions) as (server, url), serving(model, dies_after=30) as (_, dying):
        results = qcompile.benchmark(
            {"file": model, "served": f"triton:{url}", "dying": f"kserve:{dying}"}, baseline="file",
            data=str(samples("mlp")), clients=[2], threads=1, max_time_s=0.1, output=output,
        )  # fmt: skip
        where = f"served at 127.0.0.1:{server.server_address[1]}"
    base, served, dead = results.rows
    assert base.latency is not None
    assert (served.engine, served.precision, served.status) == ("triton", "unknown", "measured")
    assert (served.runs_on, served.device) == (where, "served")
    assert served.latency is not None
    assert "request to answer" in served.contains
    assert served.size_bytes is served.memory is served.load_ms is served.cold_start is None
    assert isinstance(served.energy, NoEnergy)
    assert served.difference is not None
    assert served.difference.snr_db == float("inf")
    assert len(served.concurrency) == 1
    assert any("size, memory and precision are the server's" in text for text in served.warnings)
    assert any("queue 1 ms" in text for text in served.warnings)
    assert not any("compares devices" in text for text in served.warnings)
    assert not any("other processes" in text for text in results.environment["noise"]["reasons"])
    assert dead.status == "failed"
    assert re.search("refuses the connection|broke the connection off", dead.reason)
    assert "\n" not in dead.reason
    schema = json.loads((ROOT / "bench/results/results.schema.json").read_text())
    jsonschema.validate(json.loads(output.read_text()), schema)
    assert load_results(output).rows[1].runs_on == where


def test_a_baseline_on_a_server_that_is_gone_is_refused(tiny_file: Callable[..., Path]) -> None:
    with serving(tiny_file("mlp")) as (_, url):
        pass
    with pytest.raises(EngineUnavailable, match="refuses the connection"):
        qcompile.benchmark([str(tiny_file("mlp"))], baseline=f"kserve:{url}", threads=1, max_time_s=0.1)
