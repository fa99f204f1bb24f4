"""A small server of the Open Inference Protocol, version 2, around ONNX Runtime, on a free port.

Written from the protocol (github.com/kserve/open-inference-protocol, inference_rest.md) and Triton's
extensions (github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md and
extension_statistics.md), with nothing of qcompile. Real servers: `benchmarks/served.py`, and
`tests/engines/served/test_real_servers.py` where one is installed.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

NUMPY = {"FP32": np.float32, "INT64": np.int64, "FP16": np.float16, "FP64": np.float64, "BOOL": np.bool_}
PROTOCOL = {np.dtype(kind).name: name for name, kind in NUMPY.items()}
ORT = {"tensor(float)": "FP32", "tensor(int64)": "INT64", "tensor(float16)": "FP16", "tensor(double)": "FP64"}
JSON_LENGTH = "Inference-Header-Content-Length"


@dataclass
class Behaviour:
    """What a server does beside its duty.

    Attributes:
        extensions: What it says it has.
        ready: Whether the model is ready.
        batch: Largest batch.
        dies_after: Inferences after which it is gone.
        answers: Path to (status, headers, body) that it answers in place of its own.
        keeps_alive: Whether connections stay open.
        describes: Whether metadata lists inputs and outputs.
    """

    extensions: tuple[str, ...] = ()
    ready: bool = True
    batch: int = 64
    dies_after: int | None = None
    answers: Mapping[str, tuple[int, Mapping[str, str], bytes]] = field(default_factory=dict)
    keeps_alive: bool = True
    describes: bool = True


class KserveServer(ThreadingHTTPServer):
    """Serves one model under the name `digits`."""

    daemon_threads = True

    def __init__(self, model: Path | str, behaviour: Behaviour) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(model), options)
        self.behaviour, self.served = behaviour, 0
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[tuple[Mapping[str, str], bytes]] = []
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no error."""

    def drop(self) -> None:
        """Close every connection, as a server does with idle ones."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # an answer in one write: a second one would wait for an acknowledgement
    server: KserveServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server, behaviour = self.server, self.server.behaviour
        server.asked.append(("GET", self.path))
        session, model = server.session, "/v2/models/digits"
        if self.path in behaviour.answers:
            self.reply(*behaviour.answers[self.path])
        elif self.path == "/v2":
            self.json({"name": "small", "version": "1.0", "extensions": list(behaviour.extensions)})
        elif self.path in (model, f"{model}/versions/1"):
            tensors = {"inputs": session.get_inputs(), "outputs": session.get_outputs()}
            told = {key: [described(one) for one in values] for key, values in tensors.items()}
            self.json(
                {
                    "name": "digits",
                    "versions": ["1"],
                    "platform": "x",
                    **(told if behaviour.describes else {}),
                }
            )
        elif self.path in (f"{model}/ready", f"{model}/versions/1/ready"):
            self.json({"name": "digits", "ready": behaviour.ready}, 200 if behaviour.ready else 503)
        elif self.path.endswith("/stats") and "statistics" in behaviour.extensions:
            parts = {"queue": 1_000_000, "compute_input": 500_000, "compute_infer": 2_000_000}
            spent = {**parts, "compute_output": 250_000, "success": 4_000_000}
            stats = {key: {"count": server.served, "ns": server.served * ns} for key, ns in spent.items()}
            self.json({"model_stats": [{"name": "digits", "version": "1", "inference_stats": stats}]})
        elif self.path.endswith("/config") and "model_configuration" in behaviour.extensions:
            self.json({"name": "digits", "max_batch_size": behaviour.batch})
        else:
            self.json({"error": f"{self.path} is not here"}, 404)

    def do_POST(self) -> None:
        server, behaviour = self.server, self.server.behaviour
        server.asked.append(("POST", self.path))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.bodies.append((dict(self.headers), body))
        if self.path in behaviour.answers:
            self.reply(*behaviour.answers[self.path])
            return
        if behaviour.dies_after is not None and server.served >= behaviour.dies_after:
            server.socket.close()  # no further connection; this one ends without an answer
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        feeds, asked = read_request(body, self.headers.get(JSON_LENGTH))
        batch = next(iter(feeds.values())).shape[0]
        if batch > behaviour.batch:
            self.json({"error": f"batch-size must be <= {behaviour.batch}"}, 400)
            return
        names = list(asked) or [one.name for one in server.session.get_outputs()]
        outputs = dict(zip(names, server.session.run(names, feeds), strict=True))
        server.served += 1
        binary = [name for name in names if asked.get(name)]
        header, raw = written_answer(outputs, binary)
        headers = {JSON_LENGTH: str(len(header))} if binary else {}
        self.reply(200, headers, header + raw)

    def json(self, value: Any, status: int = 200) -> None:
        self.reply(status, {}, json.dumps(value).encode())

    def reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        length = headers.get("Content-Length", str(len(body)))
        for name, text in {**headers, "Content-Length": length}.items():
            self.send_header(name, text)
        if not self.server.behaviour.keeps_alive:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)
        if int(length) != len(body):
            self.close_connection = True


def described(value: Any) -> dict[str, Any]:
    shape = [extent if isinstance(extent, int) else -1 for extent in value.shape]
    return {"name": value.name, "datatype": ORT[value.type], "shape": shape}


def read_request(body: bytes, length: str | None) -> tuple[dict[str, Any], dict[str, bool]]:
    """The feeds of a request, and which outputs it asks for, with whether in binary."""
    split = len(body) if length is None else int(length)
    request, rest = json.loads(body[:split]), body[split:]
    feeds = {}
    for entry in request["inputs"]:
        kind, size = NUMPY[entry["datatype"]], entry.get("parameters", {}).get("binary_data_size")
        if size is None:
            array = np.array(entry["data"], kind)
        else:
            array, rest = np.frombuffer(rest[:size], kind), rest[size:]
        feeds[entry["name"]] = array.reshape(entry["shape"])
    assert not rest, "bytes that belong to no input"
    asked = {
        entry["name"]: bool(entry.get("parameters", {}).get("binary_data"))
        for entry in request.get("outputs", ())
    }
    return feeds, asked


def written_answer(outputs: Mapping[str, Any], binary: list[str]) -> tuple[bytes, bytes]:
    entries, raws = [], []
    for name, array in outputs.items():
        entry = {"name": name, "datatype": PROTOCOL[array.dtype.name], "shape": list(array.shape)}
        if name in binary:
            raws.append(array.tobytes())
            entry["parameters"] = {"binary_data_size": array.nbytes}
        else:
            entry["data"] = array.ravel().tolist()
        entries.append(entry)
    return json.dumps({"model_name": "digits", "outputs": entries}).encode(), b"".join(raws)


@contextlib.contextmanager
def serving(model: Path | str, **behaviour: Any) -> Iterator[tuple[KserveServer, str]]:
    """A running server, and the address of its model without `kserve:`."""
    server = KserveServer(model, Behaviour(**behaviour))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_address[1]}/v2/models/digits"
    finally:
        with contextlib.suppress(OSError, ValueError):
            server.shutdown()
        server.drop()
        server.server_close()
        thread.join(10)
