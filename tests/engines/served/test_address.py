"""`kserve:URL` and `triton:URL`: what they name, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcompile.bench.outputs import short_name
from qcompile.engines.load import engine_of
from qcompile.engines.served import is_served, parse_served
from qcompile.errors import InvalidOption
from qcompile.model.source import parse_source

HTTP = "kserve:http://127.0.0.1:8000/v2/models/digits"


@pytest.mark.parametrize(
    ("spec", "server", "prefix", "model", "version"),
    [
        (HTTP, "127.0.0.1:8000", "", "digits", ""),
        (f"{HTTP}/", "127.0.0.1:8000", "", "digits", ""),
        (f"{HTTP}/versions/3", "127.0.0.1:8000", "", "digits", "3"),
        ("triton:https://ml.example/a/b/v2/models/m%2Fn", "ml.example:443", "/a/b", "m/n", ""),
        ("kserve:http://[::1]:80/v2/models/digits", "[::1]:80", "", "digits", ""),
        ("triton:grpc://host:8001/digits", "host:8001", "", "digits", ""),
        ("triton:grpc://host:8001/digits/versions/2", "host:8001", "", "digits", "2"),
        ("triton:grpc://host:8001/v2/models/digits", "host:8001", "", "digits", ""),
    ],
)
def test_an_address_names_server_model_and_version(
    spec: str, server: str, prefix: str, model: str, version: str
) -> None:
    address = parse_served(spec)
    assert (address.server, address.prefix, address.model, address.version) == (
        server,
        prefix,
        model,
        version,
    )
    assert short_name(spec) == f"{address.kind}:{model}" + (f"/{version}" if version else "")
    assert engine_of(spec) == address.kind == spec.partition(":")[0]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("kserve:", "no address of a server"),
        ("kserve:digits", "no address of a server"),
        ("kserve:ftp://host/v2/models/m", "no address of a server"),
        ("kserve:http://host:99999/v2/models/m", "is no URL"),
        ("kserve:http://host:8000/", "names no model"),
        ("kserve:http://host:8000/v2/models/", "names no model"),
        ("kserve:http://host:8000/v1/models/m", "names no model"),
        ("kserve:grpc://host/m", "names no port"),
        ("kserve:http://host:8000/v2/models/m?key=secret", "behind the model's name"),
        ("kserve:http://host:8000/v2/models/a b", "holds a space"),
        ("kserve:http://host:8000/v2/models/a\r\nHost:x", "holds a space"),
    ],
)
def test_what_names_no_model_is_refused_with_an_example(spec: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as raised:
        parse_served(spec)
    assert "\n" not in raised.value.message
    assert "secret" not in str(raised.value)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidOption, match="holds a user or password") as raised:
        parse_served("kserve:http://me:secret@host:8000/v2/models/m")
    assert "secret" not in str(raised.value)


@settings(max_examples=60, deadline=None)
@given(st.text("htps:/.@?#[]v2models1a%0ö \x00", max_size=40))
def test_any_text_is_an_address_or_a_sentence(text: str) -> None:
    try:
        address = parse_served(f"kserve:http://h:1{text}")
    except InvalidOption:
        return
    assert address.model
    assert 0 < address.port < 65536
    assert "@" not in address.server


def test_only_measuring_takes_a_served_model() -> None:
    assert is_served(HTTP)
    assert not is_served("kserve")
    assert not is_served("model.onnx")
    with pytest.raises(InvalidOption, match="is on a server"):
        parse_source(HTTP)
    source = parse_source(HTTP, served=True)
    assert (source.kind, source.absolute) == ("kserve", HTTP)
