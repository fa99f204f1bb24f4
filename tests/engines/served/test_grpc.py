"""A served model over gRPC, against a server made of tritonclient's own messages."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import qcompile
from qcompile.engines.served import parse_served
from qcompile.engines.served.connect import look_at
from qcompile.errors import EngineUnavailable, ModelError

pytest.importorskip("tritonclient.grpc", reason="pip install 'qcompile[triton]'")
from kserve_grpc_server import serving_grpc

X = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)


@pytest.mark.parametrize("listed", [False, True])
def test_outputs_are_those_of_the_file_bit_for_bit(
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, *, listed: bool
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # nobody is asked but the server
    path = tiny_file("mlp")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    [expected] = session.run(["y"], {"x": X})
    with serving_grpc(path, listed=listed) as url, qcompile.load(f"triton:{url}") as opened:
        runner: Any = opened
        assert [str(one) for one in runner.io.inputs] == ["x:[batch,16]:float32"]
        assert "by small 1.0, over gRPC" in runner.notes[0]
        assert look_at(parse_served(f"triton:{url}")) == (runner.io, 4)
        assert np.array_equal(runner.infer({"x": X})["y"], expected)
        runner.time({"x": X}, 2)
        assert "of its 2 requests meanwhile, on average: queue 3 ms" in runner.server_times()
        with pytest.raises(ModelError, match=r"\(INVALID_ARGUMENT\): batch-size must be <= 4"):
            runner.infer({"x": np.concatenate([X, X])})


def test_what_is_not_there_is_one_sentence(
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_grpc(tiny_file("mlp"), ready=False) as url:
        with pytest.raises(EngineUnavailable, match="model 'digits' is not ready"):
            qcompile.load(f"triton:{url}")
        with pytest.raises(EngineUnavailable, match=r"not describe model 'nope' \(NOT_FOUND\): unknown"):
            qcompile.load(f"triton:{url.replace('digits', 'nope')}")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        qcompile.load(f"triton:grpc://127.0.0.1:{port}/digits")
    monkeypatch.setitem(sys.modules, "tritonclient.grpc.service_pb2", None)
    with pytest.raises(EngineUnavailable, match="tritonclient cannot be imported") as raised:
        qcompile.load(f"triton:grpc://127.0.0.1:{port}/digits")
    assert "pip install 'qcompile[triton]'" in raised.value.hint
