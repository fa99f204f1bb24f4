"""A model behind HTTP: "HTTP/REST" of the Open Inference Protocol."""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import quote

from numpy.typing import NDArray

from ...errors import ModelError
from ...tensors import Feeds
from .address import ServedAddress
from .http_channel import Answer, HttpChannel, unreachable
from .messages import decode_answer, encode_request, read_object
from .metadata import BINARY, CONFIGURATION, ServerFacts, model_io, server_facts
from .served_model import Call, ServedModel, no_such_model, not_ready, refused
from .statistics import ServerTimes, server_times


class HttpModel(ServedModel):
    """A model and the connection to it.

    Args:
        address: Where it is.

    Raises:
        EngineUnavailable: If the server cannot be reached, or the model is not there, or not ready.
        ModelError: If the server talks another protocol.
    """

    def __init__(self, address: ServedAddress) -> None:
        self.address = address
        self._channel = HttpChannel(address)
        version = f"/versions/{quote(address.version, safe='')}" if address.version else ""
        self._path = f"{address.prefix}/v2/models/{quote(address.model, safe='')}{version}"
        try:
            self.facts = self._server()
            answer = self._asked(self._path)
            if answer.status != 200:
                raise no_such_model(address, f"HTTP {answer.status}", answer.said)
            self.io = model_io(read_object(answer.body, address.spec), address.spec)
            self._require_ready()
            self.largest_batch = self._configured_batch()
        except BaseException:
            self.close()
            raise
        self._binary = address.kind == "triton" or BINARY in self.facts.extensions
        self.carried = f"HTTP, tensors {'in binary' if self._binary else 'as JSON'}"

    def call(self, feeds: Feeds) -> Call:
        names = [tensor.name for tensor in self.io.outputs]
        exchange, path, binary = self._channel.exchange, f"{self._path}/infer", self._binary
        encode_request(feeds, names, binary=binary)  # what cannot be sent is said before calls are timed

        def infer() -> dict[str, NDArray[Any]]:
            body, headers = encode_request(feeds, names, binary=binary)
            answer = exchange("POST", path, body, headers)
            if answer.status != 200:
                self._refuse_status(answer)
                raise refused(self.address, f"HTTP {answer.status}", answer.said)
            return decode_answer(answer.body, answer.json_length, self.address.spec)

        return infer

    def refresh(self) -> None:
        self._channel.refresh()

    def statistics(self) -> ServerTimes | None:
        answer = self._channel.ask(f"{self._path}/stats")
        if answer.status != 200:
            return None
        with contextlib.suppress(ModelError):  # figures beside the measurement: they are no reason to fail
            return server_times(read_object(answer.body, self.address.spec), self.address.version)
        return None

    def close(self) -> None:
        self._channel.close()

    def _server(self) -> ServerFacts:
        answer = self._asked(f"{self.address.prefix}/v2")
        if answer.status != 200:  # the model may be behind a gateway that passes its own paths alone
            return ServerFacts()
        return server_facts(read_object(answer.body, self.address.spec))

    def _configured_batch(self) -> int | None:
        """Triton's extension for the configuration of a model; 0 there means that it forms no batches."""
        if CONFIGURATION not in self.facts.extensions:
            return None
        answer = self._asked(f"{self._path}/config")
        if answer.status != 200:
            return None
        found = read_object(answer.body, self.address.spec).get("max_batch_size")
        return found if isinstance(found, int) and found > 0 else None

    def _require_ready(self) -> None:
        answer = self._asked(f"{self._path}/ready")
        if answer.status != 200:
            raise not_ready(
                self.address, f"HTTP {answer.status}" + (f", {answer.said}" if answer.said else "")
            )
        with contextlib.suppress(ModelError):  # Triton answers nothing, KServe {"ready": true}
            if read_object(answer.body, "").get("ready") is False:
                raise not_ready(self.address, "")

    def _asked(self, path: str) -> Answer:
        answer = self._channel.ask(path)
        self._refuse_status(answer)
        return answer

    def _refuse_status(self, answer: Answer) -> None:
        if 300 <= answer.status < 400:
            raise unreachable(
                self.address,
                f"redirects to {answer.location[:200] or 'another address'} (HTTP {answer.status}); "
                "redirects are not followed",
                "give that address, if you mean it",
            )
        if answer.status in (401, 403, 407):
            raise unreachable(
                self.address,
                f"requires a login (HTTP {answer.status}), which is not supported",
                "forward a port of the server to this machine, and give 127.0.0.1",
            )
