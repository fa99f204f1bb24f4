"""Which addresses are spoken to: by TLS any, without it this machine alone.

A scheduler runs what it is told to by whoever reaches it, and so do its workers: another host must be named
twice, `--insecure HOST` each.
"""

from __future__ import annotations

import ipaddress
import json
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...errors import ClusterError, InvalidOption, MissingFile, first_line

if TYPE_CHECKING:
    from distributed import Security

_PROTOCOLS = ("tls", "wss", "tcp", "ws", "inproc")
_TWICE = 2


def scheduler_error(address: str, problem: str, hint: str) -> ClusterError:
    """Return the error of a scheduler."""
    return ClusterError(f"scheduler {address}: {problem}", hint=hint, address=address)


def split_address(address: str) -> tuple[str, str, int | None]:
    """Return protocol, host and port of an address; "tcp" where it names no protocol."""
    text = address.strip() if "://" in address else f"tcp://{address.strip()}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _wrong(address, str(error)) from error
    if parts.scheme not in _PROTOCOLS:
        problem = f"has the protocol {parts.scheme!r}; one of {', '.join(_PROTOCOLS)} is required"
        raise _wrong(address, problem)
    if parts.scheme == "inproc":
        return parts.scheme, host, None
    if not host or parts.path.strip("/") or set(parts.netloc) & set("@ %"):
        raise _wrong(address, "names no host; PROTOCOL://HOST:PORT is required")
    return parts.scheme, host, port


def check_address(address: str, insecure: Sequence[str] = (), *, what: str = "scheduler") -> None:
    """Refuse an address of another host without TLS that the user did not name twice in `insecure`."""
    protocol, host, _ = split_address(address)
    if protocol not in ("tcp", "ws") or is_this_machine(host):
        return
    times = sum(name.strip().strip("[]").lower() == host.lower() for name in insecure)
    if times >= _TWICE:
        return
    hint = f"use tls:// with `tls_ca`, `tls_cert` and `tls_key`; or give `insecure` {host} twice"
    if times == 1:
        hint = f"give `insecure` {host} once more: whoever is on that network can run code on the cluster"
    raise ClusterError(
        f"{what} {address}: is another host without TLS; TLS or an address of this machine is required",
        hint=hint,
        address=address,
    )


def is_this_machine(host: str) -> bool:
    """Whether a host is an address of the loopback device, or the name that all systems give it."""
    if host.lower().rstrip(".") in ("localhost", "ip6-localhost", "localhost.localdomain"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name: who answers for it is another's to say
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def read_scheduler(text: str) -> str:
    """Return the address of a scheduler given as an address, or as the file that Dask writes of it."""
    path = Path(text)
    if "://" in text or not (path.suffix == ".json" or path.is_file()):
        return text
    if not path.is_file():
        raise MissingFile(f"scheduler file {path}: does not exist", hint="give tls://HOST:PORT", file=path)
    try:
        address = json.loads(path.read_bytes())["address"]
        if not isinstance(address, str):
            raise TypeError("no text")
        return address
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"scheduler file {path}: holds no address; what `dask scheduler` writes is"
        raise InvalidOption(f"{problem} required", option="scheduler", file=path) from error


def security(ca: Path | None, cert: Path | None, key: Path | None) -> Security | None:
    """Return what Dask needs for TLS; None without it."""
    files = {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
    if not any(files.values()):
        return None
    for option, path in files.items():
        if path is None:
            other = next(name for name, file in files.items() if file)
            raise InvalidOption(f"`{option}` is missing; it is required with `{other}`", option=option)
        if not path.is_file():
            raise MissingFile(f"`{option}` {path}: does not exist; a file is required", file=path)
    from distributed import Security

    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(ca))
        context.load_cert_chain(str(cert), str(key), password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidOption(
            f"`tls_ca` {ca}, `tls_cert` {cert} and `tls_key` {key}: cannot be used ({first_line(error)})",
            hint="give the authority's certificate, this machine's and its unencrypted private key, as PEM",
            option="tls_cert",
        ) from error
    return Security(  # type: ignore[no-untyped-call]
        require_encryption=True,
        tls_ca_file=str(ca),
        **{f"tls_{role}_cert": str(cert) for role in ("client", "scheduler", "worker")},
        **{f"tls_{role}_key": str(key) for role in ("client", "scheduler", "worker")},
    )


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _wrong(address: str, problem: str) -> InvalidOption:
    hint = "tls://HOST:PORT, or the file that `dask scheduler` writes"
    return InvalidOption(f"`scheduler` {address!r}: {problem}", hint=hint, option="scheduler")
