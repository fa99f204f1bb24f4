"""Which addresses are spoken to: by TLS any, without it this machine alone."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.errors import ClusterError, InvalidOption, MissingFile
from qcompile.pipeline.cluster.addresses import check_address, read_scheduler, security, split_address

ports = st.integers(0, 65535)
names = st.from_regex(
    r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]([a-z0-9-]{0,10}[a-z0-9])?){0,2}", fullmatch=True
)
hosts = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str), names)
protocols = st.sampled_from(["tcp", "tls", "ws", "wss"])


def spelled(protocol: str, host: str, port: int) -> str:
    return f"{protocol}://[{host}]:{port}" if ":" in host else f"{protocol}://{host}:{port}"


@given(protocols, hosts, ports)
def test_an_address_is_read_as_it_is_spelled(protocol: str, host: str, port: int) -> None:
    assert split_address(spelled(protocol, host, port)) == (protocol, host, port)
    if protocol == "tcp":
        assert split_address(spelled(protocol, host, port).removeprefix("tcp://")) == ("tcp", host, port)


@given(st.text(max_size=40))
def test_any_other_text_is_refused_by_name(text: str) -> None:
    try:
        protocol, host, port = split_address(text)
    except InvalidOption as error:
        said = error.message
    else:
        said = "`scheduler`"
        assert protocol in ("tcp", "tls", "ws", "wss", "inproc")
        assert host or protocol == "inproc"
        assert port is None or 0 <= port < 1 << 16
    assert "`scheduler`" in said


@given(st.sampled_from(["tcp", "ws"]), st.ip_addresses(), ports)
def test_without_tls_only_loopback_is_spoken_to(
    protocol: str, host: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    address = spelled(protocol, str(host), port)
    mapped = getattr(host, "ipv4_mapped", None) or host
    if mapped in ipaddress.ip_network("127.0.0.0/8" if mapped.version == 4 else "::1/128"):
        check_address(address)
        return
    for said in ([], [str(host)], ["other", str(host)]):
        with pytest.raises(ClusterError, match="another host without TLS"):
            check_address(address, said)
    check_address(address, [str(host), str(host)])
    check_address(spelled("tls", str(host), port))


def test_a_name_is_another_host_but_for_localhost() -> None:
    check_address("tcp://localhost:8786")
    check_address("inproc://10.0.0.1/123/1")
    for host in ("localhost.example.com", "127.0.0.1.example.com", "loopback"):
        with pytest.raises(ClusterError):
            check_address(f"tcp://{host}:8786")


def test_the_second_time_is_asked_for() -> None:
    with pytest.raises(ClusterError) as found:
        check_address("tcp://10.0.0.1:8786", ["10.0.0.1"])
    assert found.value.hint.startswith("give `insecure` 10.0.0.1 once more")


def test_a_scheduler_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"type": "Scheduler", "address": "tls://10.0.0.1:8786"}))
    assert read_scheduler(str(path)) == "tls://10.0.0.1:8786"
    assert read_scheduler("tcp://127.0.0.1:1") == "tcp://127.0.0.1:1"
    with pytest.raises(MissingFile):
        read_scheduler(str(tmp_path / "other.json"))
    for content in ("", "[]", '{"address": 5}', '{"other": 1}', "[" * 5000):
        path.write_text(content)
        with pytest.raises(InvalidOption, match="contains no address"):
            read_scheduler(str(path))


def test_a_missing_or_wrong_certificate_is_named(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra cluster is not installed")
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    assert security(None, None, None) is None
    with pytest.raises(InvalidOption, match="`tls_cert` is missing"):
        security(file, None, file)
    with pytest.raises(MissingFile, match="`tls_key`"):
        security(file, file, tmp_path / "key.pem")
    with pytest.raises(InvalidOption, match=r"`tls_ca` .* cannot be used"):
        security(file, file, file)
