"""One HTTP connection to a server: kept open, bounded in time and size, without redirects and proxies."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...errors import EngineUnavailable, first_line
from .address import ServedAddress

CONNECT_S = 10.0
"""Longest wait for a connection, and for an answer that is no inference."""
ANSWER_S = 300.0
"""Longest wait for the next bytes of an inference's answer."""
MOST_BYTES = 4 << 30
"""Largest answer that is read."""
_CHUNK = 1 << 20
_IDLE_S = 1.0


@dataclass(frozen=True)
class Answer:
    """What a server answered: status, body, and the length of the JSON in front of binary tensors."""

    status: int
    body: bytes
    json_length: int | None
    location: str = ""

    @property
    def said(self) -> str:
        """The server's own words about an error: the protocol's `error`, or how its text begins."""
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(self.body)
            if isinstance(value, dict):
                text = value.get("error") or value.get("detail") or ""
                return " ".join(str(text).split())[:300]
        return " ".join(self.body[:300].decode(errors="replace").split())


class HttpChannel:
    """A connection that is made when it is first used, and again when the server has closed it.

    Args:
        address: The server.
    """

    def __init__(self, address: ServedAddress) -> None:
        self.address = address
        self._connection: http.client.HTTPConnection | None = None
        self._used_s = 0.0
        self._limit_s = CONNECT_S
        self._gave_up = False

    def refresh(self) -> None:
        """Leave a connection that is idle for a second: servers close those, even in the midst of a call."""
        if self._connection is not None and time.monotonic() - self._used_s > _IDLE_S:
            self.close()
        with self._told():
            self._connected()

    def ask(self, path: str) -> Answer:
        """Return the answer to a GET, all of it within `CONNECT_S`.

        Raises:
            EngineUnavailable: If there is none.
        """
        guard = threading.Timer(CONNECT_S, self._break_off)
        guard.daemon = True
        guard.start()
        try:
            return self.exchange("GET", path, b"", {})
        finally:
            guard.cancel()
            self._gave_up = False

    def exchange(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request, and return the answer, whatever its status is.

        Raises:
            EngineUnavailable: If the server cannot be reached, breaks off, hangs, or talks no HTTP.
        """
        self._limit_s = CONNECT_S if method == "GET" else ANSWER_S
        with self._told():
            is_new = self._connection is None
            if not is_new and self._was_closed():
                self.close()
                is_new = True
            try:
                return self._exchanged(method, path, body, headers)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if is_new or self._gave_up:
                    raise
            self.close()  # the server closed an idle connection while the request was under way
            return self._exchanged(method, path, body, headers)

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            address = self.address
            if address.scheme == "https":
                context = ssl.create_default_context()
                made: http.client.HTTPConnection = http.client.HTTPSConnection(
                    address.host, address.port, timeout=CONNECT_S, context=context
                )
            else:
                made = http.client.HTTPConnection(address.host, address.port, timeout=CONNECT_S)
            try:
                made.connect()
            except TimeoutError:
                self._limit_s = CONNECT_S
                raise
            made.sock.settimeout(ANSWER_S)
            self._connection = made
        return self._connection

    def _exchanged(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        connection = self._connected()
        connection.request(method, path, body or None, dict(headers))
        response = connection.getresponse()
        read, size = [], 0
        while chunk := response.read(_CHUNK):
            size += len(chunk)
            if size > MOST_BYTES:
                self.close()
                raise unreachable(self.address, f"answers with more than {MOST_BYTES} bytes")
            read.append(chunk)
        if response.length:  # what was announced and did not come
            raise http.client.IncompleteRead(b"", response.length)
        if response.will_close:
            self.close()
        self._used_s = time.monotonic()
        length = response.headers.get("Inference-Header-Content-Length")
        return Answer(
            response.status,
            read[0] if len(read) == 1 else b"".join(read),
            int(length) if length is not None and length.isdecimal() else None,
            response.headers.get("Location") or "",
        )

    def _was_closed(self) -> bool:
        """Whether the server has ended the connection meanwhile: then there is an end of file to read."""
        sock = self._connection.sock if self._connection is not None else None
        return sock is None or bool(select.select([sock], [], [], 0)[0])

    def _break_off(self) -> None:
        self._gave_up = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Translate what the system and the HTTP library raise; the connection is left."""
        try:
            yield
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            self.close()
            if self._gave_up or isinstance(error, TimeoutError):
                reason, hint = f"gave no answer within {self._limit_s:.3g} s", "look into the server's log"
            else:
                reason, hint = _reason(error)
            raise unreachable(self.address, reason, hint) from error


def _reason(error: OSError | http.client.HTTPException | UnicodeError) -> tuple[str, str]:
    """What went wrong, and the way out."""
    if isinstance(error, ConnectionRefusedError):
        return "refuses the connection", "start the server, or correct host and port"
    if isinstance(error, socket.gaierror | UnicodeError):  # the latter: its name cannot be one
        return "is not known: no such host", "correct the host"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails ({first_line(error)})", "a certificate that this machine trusts is required"
    if isinstance(error, http.client.RemoteDisconnected | http.client.IncompleteRead | ConnectionError):
        return "broke the connection off before it had answered", "look into the server's log"
    if isinstance(error, OSError):
        return f"cannot be reached ({error.strerror or first_line(error)})", ""
    return "answers no HTTP", "correct the port: Triton has HTTP on 8000, gRPC on 8001"


def unreachable(address: ServedAddress, reason: str, hint: str = "") -> EngineUnavailable:
    """Return the error about a server that does not do its part."""
    return EngineUnavailable(
        f"{address.spec}: {address.server} {reason}", hint=hint, engine=address.kind, reason=reason
    )
