"""Models on a server of the protocol: their answers, and what goes wrong on the way."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from kserve_server import serving

import qcompile
from qcompile.bench.worker import WorkerSession
from qcompile.bench.workers.arrays import save_arrays
from qcompile.engines.base import Runner
from qcompile.engines.served import http_channel
from qcompile.errors import DataError, EngineUnavailable, ModelError, QCompileError

X = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
PATH = "/v2/models/digits"


def in_process(path: Path, x: Any = X) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": x}), strict=True))


def infer(address: str, x: Any = X) -> dict[str, Any]:
    with qcompile.load(address) as runner:
        return runner.infer({"x": x})


def failure(address: str) -> QCompileError:
    with pytest.raises(QCompileError) as raised:
        infer(address)
    assert "\n" not in raised.value.message
    assert raised.value.exit_code == 1
    return raised.value


@pytest.mark.parametrize(("kind", "extensions", "binary"), [
    ("kserve", (), False), ("kserve", ("binary_tensor_data",), True), ("triton", (), True),
])  # fmt: skip
def test_outputs_are_those_of_the_file_bit_for_bit(
    tiny_file: Callable[..., Path], kind: str, extensions: tuple[str, ...], *, binary: bool
) -> None:
    path = tiny_file("mlp")
    with serving(path, extensions=extensions) as (server, url):
        for version in ("", "/versions/1"):
            outputs = infer(f"{kind}:{url}{version}")
            expected = in_process(path)
            assert list(outputs) == list(expected)
            for name, array in expected.items():
                assert outputs[name].dtype == array.dtype
                assert np.array_equal(outputs[name], array)
            headers, _ = server.bodies[-1]
            assert ("Inference-Header-Content-Length" in headers) == binary
            assert server.asked[-1] == ("POST", f"{PATH}{version}/infer")


def test_inputs_and_outputs_are_the_servers(tiny_file: Callable[..., Path]) -> None:
    path = tiny_file("mlp")
    extensions = ("binary_tensor_data",)
    with (
        serving(path, extensions=extensions) as (server, url),
        qcompile.load(f"kserve:{url}") as runner,
    ):
        assert [str(one) for one in runner.io.inputs] == ["x:[batch,16]:float32"]
        where = f"127.0.0.1:{server.server_address[1]}"
        assert f"is served at {where} by small 1.0, over HTTP, tensors in binary" in runner.notes[0]
        with pytest.raises(DataError, match="float32 is required"):
            runner.infer({"x": X.astype(np.float64)})
        with pytest.raises(DataError, match="shape"):
            runner.infer({"x": X[:, :3]})
    assert not server.bodies, "what does not fit is not sent"


def test_a_server_that_does_not_say_what_it_takes_is_told(tiny_file: Callable[..., Path]) -> None:
    path = tiny_file("mlp")
    with serving(path, describes=False) as (_, url):
        assert "does not say what the model takes" in failure(f"kserve:{url}").message
        with qcompile.load(path) as runner:
            io = runner.io  # of the file that the server holds
        with qcompile.load(f"kserve:{url}", io=io) as runner:
            assert np.array_equal(runner.infer({"x": X})["y"], in_process(path)["y"])


def test_a_batch_that_is_too_large_is_the_servers_sentence(tiny_file: Callable[..., Path]) -> None:
    said = r"refuses the request \(HTTP 400\): batch-size must be <= 2"
    with serving(tiny_file("mlp"), batch=2) as (_, url), pytest.raises(ModelError, match=said):
        infer(f"kserve:{url}")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({PATH: (404, {}, b'{"error": "no such model"}')}, r"model 'digits' \(HTTP 404\): no such"),
        ({PATH: (302, {"Location": "http://127.0.0.1:1/x"}, b"")}, "redirects to http://127.0.0.1:1/x"),
        ({PATH: (401, {}, b"")}, "requires a login"),
        ({PATH: (200, {}, b"<html>")}, "no JSON of the protocol"),
        ({PATH: (200, {}, b'{"inputs": [{"name": "x"}]}')}, "metadata is none of the protocol"),
        ({PATH: (200, {"Content-Length": "99"}, b"{}")}, "broke the connection off"),
        ({f"{PATH}/infer": (200, {}, b"{}")}, "lists no outputs"),
        ({f"{PATH}/infer": (307, {"Location": "http://127.0.0.1:1/x"}, b"")}, "redirects are not followed"),
        ({f"{PATH}/infer": (503, {}, b"busy\x1b[2J")}, r"\(HTTP 503\): busy"),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_help_is_one_sentence(
    tiny_file: Callable[..., Path], answers: dict[str, Any], said: str
) -> None:
    with serving(tiny_file("mlp"), answers=answers) as (_, url), pytest.raises(QCompileError, match=said):
        infer(f"kserve:{url}")


def test_a_model_that_is_not_ready_is_not_asked(tiny_file: Callable[..., Path]) -> None:
    with serving(tiny_file("mlp"), ready=False) as (server, url):
        assert "model 'digits' is not ready" in failure(f"kserve:{url}").message
    assert not server.bodies


def test_a_port_where_nobody_listens_and_one_of_another_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        greeter = threading.Thread(target=lambda: greet(listening), daemon=True)
        greeter.start()
        assert "answers no HTTP" in failure(f"kserve:http://127.0.0.1:{port}/v2/models/m").message
        greeter.join(10)
    assert "refuses the connection" in failure(f"kserve:http://127.0.0.1:{port}/v2/models/m").message


def greet(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def test_a_host_that_cannot_be_and_an_answer_without_end(
    tiny_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is not known: no such host" in failure("kserve:http://a..b:80/v2/models/m").message
    monkeypatch.setattr(http_channel, "MOST_BYTES", 1000)
    answers = {f"{PATH}/infer": (200, {}, b"{" + b" " * 2000 + b"}")}
    with serving(tiny_file("mlp"), answers=answers) as (_, url):
        assert "answers with more than 1000 bytes" in failure(f"kserve:{url}").message


def test_a_server_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_channel, "CONNECT_S", 0.3)
    stop = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not stop.wait(0.02):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripper = threading.Thread(target=drip, args=(listening,), daemon=True)
        dripper.start()
        began = time.monotonic()
        try:
            said = failure(f"kserve:http://127.0.0.1:{listening.getsockname()[1]}/v2/models/m").message
        finally:
            stop.set()
            dripper.join(10)
    assert "gave no answer within 0.3 s" in said
    assert time.monotonic() - began < 60, "it drips for hours"


def test_a_connection_that_the_server_closed_is_made_again(tiny_file: Callable[..., Path]) -> None:
    path = tiny_file("mlp")
    with serving(path) as (server, url), qcompile.load(f"kserve:{url}") as runner:
        for _ in range(2):
            server.drop()
            assert np.array_equal(runner.infer({"x": X})["y"], in_process(path)["y"])
    with serving(path, keeps_alive=False) as (server, url):
        assert np.array_equal(infer(f"kserve:{url}")["y"], in_process(path)["y"])
        assert server.served == 1, "no request is sent twice"


def test_a_server_that_dies_between_calls_is_one_sentence(tiny_file: Callable[..., Path]) -> None:
    with serving(tiny_file("mlp"), dies_after=2) as (_, url), qcompile.load(f"kserve:{url}") as runner:
        assert len(runner.time({"x": X}, 2)) == 2
        with pytest.raises(EngineUnavailable, match=r"refuses the connection|broke the connection off"):
            runner.time({"x": X}, 2)


def test_triton_tells_what_it_spent_its_time_on(tiny_file: Callable[..., Path]) -> None:
    with serving(tiny_file("mlp"), extensions=("statistics",)) as (_, url):
        said = {}
        for kind in ("triton", "kserve"):
            with qcompile.load(f"{kind}:{url}") as runner:
                runner.infer({"x": X})
                runner.time({"x": X}, 4)
                said[kind] = server_times(runner)
    assert said["triton"] == (
        "the server says of its 4 requests meanwhile, on average: queue 1 ms, compute 2.75 ms "
        "(input 0.5, inference 2, output 0.25)"
    )
    assert said["kserve"] == ""


def server_times(runner: Runner) -> str:
    said: str = runner.server_times()  # type: ignore[attr-defined]
    return said


def test_requests_that_arrive_by_themselves_have_connections_of_their_own(
    tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    session = WorkerSession(lambda _: None)
    save_arrays(tmp_path / "x.npz", {"x": X})
    with serving(tiny_file("mlp"), extensions=("binary_tensor_data",)) as (server, url):
        session.do_load({"artifact": f"kserve:{url}", "threads": 1})
        session.do_feed({"path": str(tmp_path / "x.npz")})
        answer = session.do_arrivals({"rate": 400.0, "requests": 60, "seed": 0})
        assert len(answer["ns"]) == 60
        assert answer["servers"] == 16
        assert len(server.connections) >= 16
        assert server.served == 61
        session.runner.close()
