"""What a client is told that cannot reach its scheduler."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from qcompile.cluster.client.connection import connect
from qcompile.errors import ClusterError, InvalidOption


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterError, match="cannot be reached") as raised, connect(address):
            pass
    assert address in raised.value.message
    assert "dask scheduler" in raised.value.hint


def test_a_scheduler_of_tls_needs_certificates() -> None:
    with pytest.raises(ClusterError, match="certificates are required"), connect("tls://127.0.0.1:8786"):
        pass


def test_another_host_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ClusterError, match="another host without TLS"), connect("tcp://203.0.113.1:8786"):
        pass


def test_what_is_no_scheduler_is_named() -> None:
    with pytest.raises(InvalidOption, match="is a int"), connect(7):
        pass
