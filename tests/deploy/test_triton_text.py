"""What is written for Triton, protobuf's own parser reads back (`ModelConfig` is Triton's)."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from qcompile.deploy.triton_config import Message, format_config
from qcompile.errors import ArtifactError

definition = pytest.importorskip(
    "tritonclient.grpc.model_config_pb2", reason="pip install 'qcompile[triton]'"
)

# Every character that UTF-8 can carry; quotes, backslashes and controls more often than chance has them.
texts = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\\\"'\n\r\t\0\x7f1ü漢🙂"))
)
int64 = st.integers(-(2**63), 2**63 - 1)


def parse(fields: Message) -> Any:
    return text_format.Parse(format_config(fields), definition.ModelConfig())


@given(texts)
def test_any_string_comes_back(text: str) -> None:
    assert parse({"name": text}).name == text


@given(st.lists(st.tuples(texts, st.lists(int64, max_size=5), st.booleans()), max_size=4))
def test_any_tensors_come_back_in_their_order(tensors: list[tuple[str, list[int], bool]]) -> None:
    fields: list[Message] = [
        {"name": name, "data_type": "TYPE_FP16", "dims": dims, "is_shape_tensor": flag}
        for name, dims, flag in tensors
    ]
    found = parse({"input": fields}).input
    assert [(item.name, list(item.dims), item.is_shape_tensor) for item in found] == tensors
    assert {definition.DataType.Name(item.data_type) for item in found} <= {"TYPE_FP16"}


def test_an_empty_message_is_present_and_an_empty_list_is_not() -> None:
    found = parse({"dynamic_batching": {}, "input": [{"name": "x", "dims": [], "reshape": {}}]})
    assert found.HasField("dynamic_batching")
    assert not found.HasField("sequence_batching")
    assert found.input[0].HasField("reshape")


def test_the_form_is_triton_s_own() -> None:
    fields: Message = {
        "name": 'a "b" \\ ü',
        "max_batch_size": 8,
        "input": [{"name": "x", "dims": [3, -1]}, {"name": "y", "data_type": "TYPE_FP32"}],
        "dynamic_batching": {},
        "response_cache": {"enable": True},
    }
    assert format_config(fields).splitlines() == [
        'name: "a \\"b\\" \\\\ ü"',
        "max_batch_size: 8",
        "input {",
        '  name: "x"',
        "  dims: [3, -1]",
        "}",
        "input {",
        '  name: "y"',
        "  data_type: TYPE_FP32",
        "}",
        "dynamic_batching {",
        "}",
        "response_cache {",
        "  enable: true",
        "}",
    ]


@pytest.mark.parametrize(
    "fields", [{"field_of_tomorrow": 1}, {"max_batch_size": "many"}, {"input": [{"data_type": "TYPE_FP12"}]}]
)
def test_what_triton_s_definitions_do_not_know_is_refused(fields: Message) -> None:
    with pytest.raises(ArtifactError, match=r"tritonclient \d.* refuses it") as raised:
        format_config(fields)
    assert raised.value.hint == "install a newer tritonclient"
