"""Parse `kserve:URL` and `triton:URL`: a model by the address that its server gives it.

| spelling                                                     | is                               |
|--------------------------------------------------------------|----------------------------------|
| `kserve:http://127.0.0.1:8000/v2/models/digits`              | the newest version, over HTTP    |
| `kserve:https://host/prefix/v2/models/digits/versions/3`     | version 3, over TLS              |
| `triton:grpc://127.0.0.1:8001/digits`, `…/digits/versions/3` | the same over gRPC               |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import SplitResult, unquote, urlsplit

from ...errors import InvalidOption
from ...model.source import SERVED

__all__ = ["SERVED", "Scheme", "ServedAddress", "is_served", "parse_served"]

Scheme = Literal["http", "https", "grpc"]
_PORTS: dict[str, int] = {"http": 80, "https": 443}
_MODEL = r"(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/?"
_HTTP_PATH = re.compile(rf"(?P<prefix>(?:/[^/]+)*)/v2/models/{_MODEL}")
_GRPC_PATH = re.compile(rf"/(?:v2/models/)?{_MODEL}")


@dataclass(frozen=True)
class ServedAddress:
    """A model on a server.

    Attributes:
        spec: As the user wrote it.
        kind: "kserve" or "triton".
        scheme: How it is reached.
        host, port: The server.
        prefix: What stands before `/v2` in its paths, of HTTP.
        model: Its name on the server.
        version: Its version; empty for the one that the server chooses.
    """

    spec: str
    kind: str
    scheme: Scheme
    host: str
    port: int
    prefix: str
    model: str
    version: str

    @property
    def server(self) -> str:
        """The server as `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def short(self) -> str:
        """How it is called in tables, such as "triton:digits/3"."""
        return f"{self.kind}:{self.model}" + (f"/{self.version}" if self.version else "")


def is_served(artifact: str) -> bool:
    """Return whether an artifact is spelled as one that a server holds."""
    return artifact.partition(":")[0] in SERVED and ":" in artifact


def parse_served(spec: str) -> ServedAddress:
    """Read a spelling; nothing is connected to.

    Raises:
        InvalidOption: If it names no server or no model, or holds a password.
    """
    kind, _, url = spec.partition(":")
    shown = f"{kind}:{_without_password(url)}"
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidOption(f"{shown!r}: holds a space or a character that no URL holds")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidOption(f"{shown}: is no URL ({error})") from error
    scheme = next((one for one in get_args(Scheme) if one == parts.scheme), None)
    if scheme is None or not parts.hostname:
        raise InvalidOption(
            f"{shown}: is no address of a server; http://, https:// or grpc:// and a host are required",
            hint=f"write for instance {_example(kind, 'http')}",
        )
    _refuse_secrets(shown, parts)
    port = port if port is not None else _PORTS.get(scheme)
    if not port:
        raise InvalidOption(f"{shown}: names no port", hint=f"write for instance {_example(kind, scheme)}")
    match = (_GRPC_PATH if scheme == "grpc" else _HTTP_PATH).fullmatch(parts.path)
    if match is None:
        raise InvalidOption(f"{shown}: names no model", hint=f"write for instance {_example(kind, scheme)}")
    named = match.groupdict()
    return ServedAddress(
        spec, kind, scheme, parts.hostname, port, named.get("prefix") or "",
        unquote(named["model"]), unquote(named["version"] or ""),
    )  # fmt: skip


def _refuse_secrets(shown: str, parts: SplitResult) -> None:
    """Results and manifests hold the spelling: it must hold no secret."""
    if "@" in parts.netloc:
        raise InvalidOption(
            f"{shown}: holds a user or password; results would hold it too",
            hint="forward a port of the server to this machine, and give 127.0.0.1",
        )
    if parts.query or parts.fragment:
        raise InvalidOption(
            f"{shown.partition('?')[0]}: has more behind the model's name; nothing is required"
        )


def _without_password(url: str) -> str:
    return re.sub(r"//[^/]*@", "//…@", url)


def _example(kind: str, scheme: str) -> str:
    return f"{kind}:grpc://127.0.0.1:8001/NAME" if scheme == "grpc" else (
        f"{kind}:{scheme}://127.0.0.1:8000/v2/models/NAME"
    )  # fmt: skip
