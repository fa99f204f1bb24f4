"""Real servers from packages answer as the file does: Triton, MLServer and KServe, over HTTP and gRPC."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import qcompile

HARNESS = Path(__file__).parents[3] / "benchmarks/served_harness/servers.py"
pytestmark = pytest.mark.slow


def servers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("served_servers", HARNESS)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["served_servers"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["triton", "mlserver", "kserve"])
def test_a_real_server_answers_bit_for_bit(tiny_file: Callable[..., Path], name: str) -> None:
    harness, model = servers(), tiny_file("mlp")
    if harness.python_of(name) is None:
        pytest.skip(f"build/servers/{name} is missing; {HARNESS.name} says how it is made")
    x = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
    with qcompile.load(model, threads=1) as runner:
        expected = runner.infer({"x": x})
    with harness.running(name, model) as server:
        for address in server.addresses.values():
            with qcompile.load(address) as opened:
                served: Any = opened
                assert [str(one) for one in served.io.inputs] == ["x:[batch,16]:float32"]
                outputs = served.infer({"x": x})
                assert list(outputs) == list(expected)
                assert all(np.array_equal(outputs[one], expected[one]) for one in expected)
                served.time({"x": x}, 5)
                counted = "of its 5 requests meanwhile" in served.server_times()
                assert counted == (name == "triton")
