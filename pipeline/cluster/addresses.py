"""Which addresses may be contacted: any address with TLS, only this machine without TLS.

A scheduler and its workers run code from anybody who reaches them, so another host without TLS requires
`--insecure HOST` twice.
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
_TIMES_REQUIRED = 2


def scheduler_error(address: str, problem: str, hint: str) -> ClusterError:
    """Return an error about a scheduler."""
    return ClusterError(f"scheduler {address}: {problem}", hint=hint, address=address)


def split_address(address: str) -> tuple[str, str, int | None]:
    """Return protocol, host and port of an address; the default protocol is "tcp"."""
    text = address.strip() if "://" in address else f"tcp://{address.strip()}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _address_error(address, str(error)) from error
    if parts.scheme not in _PROTOCOLS:
        problem = f"has the protocol {parts.scheme!r}; one of {', '.join(_PROTOCOLS)} is required"
        raise _address_error(address, problem)
    if parts.scheme == "inproc":
        return parts.scheme, host, None
    if not host or parts.path.strip("/") or set(parts.netloc) & set("@ %"):
        raise _address_error(address, "names no host; PROTOCOL://HOST:PORT is required")
    return parts.scheme, host, port


def check_address(address: str, insecure: Sequence[str] = (), *, what: str = "scheduler") -> None:
    """Raise if an address is another host without TLS and `insecure` does not list the host twice."""
    protocol, host, _ = split_address(address)
    if protocol not in ("tcp", "ws") or is_this_machine(host):
        return
    times = sum(name.strip().strip("[]").lower() == host.lower() for name in insecure)
    if times >= _TIMES_REQUIRED:
        return
    hint = f"use tls:// with `tls_ca`, `tls_cert` and `tls_key`; or give `insecure` {host} twice"
    if times == 1:
        hint = f"give `insecure` {host} once more: anybody on that network can run code on the cluster"
    raise ClusterError(
        f"{what} {address}: is another host without TLS; TLS or an address of this machine is required",
        hint=hint,
        address=address,
    )


def is_this_machine(host: str) -> bool:
    """Return whether a host is a loopback address or a standard name of it."""
    if host.lower().rstrip(".") in ("localhost", "ip6-localhost", "localhost.localdomain"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name can resolve to any machine
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def read_scheduler(text: str) -> str:
    """Return the address in `text`, or the address in a file of `dask scheduler`."""
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
        problem = f"scheduler file {path}: contains no address; a file of `dask scheduler` is"
        raise InvalidOption(f"{problem} required", option="scheduler", file=path) from error


def security(ca: Path | None, cert: Path | None, key: Path | None) -> Security | None:
    """Return Dask's TLS settings, or None without certificates."""
    files = {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
    if not any(files.values()):
        return None
    for option, path in files.items():
        if path is None:
            present = next(name for name, file in files.items() if file)
            raise InvalidOption(f"`{option}` is missing; it is required with `{present}`", option=option)
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


def _address_error(address: str, problem: str) -> InvalidOption:
    hint = "tls://HOST:PORT, or the file that `dask scheduler` writes"
    return InvalidOption(f"`scheduler` {address!r}: {problem}", hint=hint, option="scheduler")
