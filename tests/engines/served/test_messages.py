"""Requests and answers on the wire, against tritonclient and the protocol's examples."""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qcompile.engines.served.messages import JSON_LENGTH, decode_answer, encode_request
from qcompile.errors import DataError, ModelError

DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
)


@pytest.fixture(scope="module")
def triton() -> Iterator[types.SimpleNamespace]:
    """The encoder and decoder of `tritonclient.http`, without its HTTP library."""
    home = pytest.importorskip("tritonclient", reason="pip install 'qcompile[triton]'")
    package = types.ModuleType("tritonclient.http")
    package.__path__ = [str(Path(next(iter(home.__path__))) / "http")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tritonclient.http", package)
        parts = ("_infer_input", "_infer_result", "_requested_output", "_utils")
        modules = {part: importlib.import_module(f"tritonclient.http.{part}") for part in parts}
        yield types.SimpleNamespace(**modules)
        for part in parts:
            sys.modules.pop(f"tritonclient.http.{part}")


def by_triton(
    triton: Any, feeds: dict[str, Any], outputs: list[str], *, binary: bool
) -> tuple[bytes, int | None]:
    """The body that tritonclient sends."""
    from tritonclient.utils import np_to_triton_dtype

    inputs = []
    for name, array in feeds.items():
        one = triton._infer_input.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        one.set_data_from_numpy(array, binary_data=binary)
        inputs.append(one)
    wanted = [triton._requested_output.InferRequestedOutput(name, binary_data=binary) for name in outputs]
    body, length = triton._utils._get_inference_request(
        inputs=inputs, request_id="", outputs=wanted, sequence_id=0, sequence_start=False, sequence_end=False,
        priority=0, timeout=None, custom_parameters=None,
    )  # fmt: skip
    return (body if isinstance(body, bytes) else body.encode()), length


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), ARRAYS, min_size=1, max_size=3))
def test_a_binary_request_is_the_one_of_tritonclient(triton: Any, feeds: dict[str, Any]) -> None:
    body, headers = encode_request(feeds, ["y", "z"], binary=True)
    length = int(headers[JSON_LENGTH])
    theirs, their_length = by_triton(triton, feeds, ["y", "z"], binary=True)
    assert their_length is not None
    assert json.loads(body[:length]) == json.loads(theirs[:their_length])
    assert body[length:] == theirs[their_length:]


@settings(max_examples=40, deadline=None)
@given(hnp.arrays("float32", (2, 3), elements=st.floats(-1e6, 1e6, width=32)))
def test_a_json_request_holds_the_very_values(triton: Any, array: Any) -> None:
    body, headers = encode_request({"x": array}, ["y"], binary=False)
    request = json.loads(body)
    theirs = json.loads(by_triton(triton, {"x": array}, ["y"], binary=False)[0])
    assert headers == {"Content-Type": "application/json"}
    assert request["inputs"] == theirs["inputs"]
    assert np.array_equal(np.array(request["inputs"][0]["data"], np.float32).reshape(2, 3), array)


def answer_of(arrays: dict[str, Any]) -> tuple[bytes, int]:
    """A binary answer, written from the text of Triton's extension."""
    from tritonclient.utils import np_to_triton_dtype

    entries = [
        {"name": name, "datatype": np_to_triton_dtype(array.dtype), "shape": list(array.shape),
         "parameters": {"binary_data_size": array.nbytes}}
        for name, array in arrays.items()
    ]  # fmt: skip
    header = json.dumps({"model_name": "m", "model_version": "1", "outputs": entries}).encode()
    return header + b"".join(array.tobytes() for array in arrays.values()), len(header)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), ARRAYS, min_size=1, max_size=3))
def test_a_binary_answer_is_read_as_tritonclient_reads_it(triton: Any, arrays: dict[str, Any]) -> None:
    body, length = answer_of(arrays)
    ours = decode_answer(body, length, "server")
    theirs = triton._infer_result.InferResult.from_response_body(body, header_length=length)
    assert list(ours) == list(arrays)
    for name, array in arrays.items():
        assert ours[name].tobytes() == theirs.as_numpy(name).tobytes() == array.tobytes()
        assert (ours[name].shape, ours[name].dtype) == (array.shape, array.dtype)


def test_the_example_of_the_specification_is_read() -> None:
    """inference_rest.md of the Open Inference Protocol, "Inference Response JSON Object Examples"."""
    answer = {"id": "42", "outputs": [{"name": "output0", "shape": [3, 2], "datatype": "FP32",
              "data": [1.0, 1.1, 2.0, 2.1, 3.0, 3.1]}]}  # fmt: skip
    read = decode_answer(json.dumps(answer).encode(), None, "server")["output0"]
    assert np.array_equal(read, np.array([[1, 1.1], [2, 2.1], [3, 3.1]], np.float32))
    answer["outputs"][0]["data"] = [[1.0, 1.1], [2.0, 2.1], [3.0, 3.1]]  # type: ignore[index]
    assert np.array_equal(decode_answer(json.dumps(answer).encode(), None, "server")["output0"], read)


@pytest.mark.usefixtures("triton")
def test_texts_travel_as_tritonclient_writes_them() -> None:
    from tritonclient.utils import serialize_byte_tensor

    texts = np.array([["a", "ö€"], ["", "long " * 9]], object)
    body, headers = encode_request({"t": texts}, [], binary=True)
    raw = serialize_byte_tensor(texts).item()
    assert body[int(headers[JSON_LENGTH]) :] == raw
    entry = {"name": "t", "datatype": "BYTES", "shape": [2, 2], "parameters": {"binary_data_size": len(raw)}}
    header = json.dumps({"outputs": [entry]}).encode()
    assert decode_answer(header + raw, len(header), "server")["t"].tolist() == texts.tolist()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(2, np.float16), "FP16 has no JSON form"),
        (np.array([1, np.nan], np.float32), "NaN or infinity"),
        (np.zeros(2, np.complex64), "no such type"),
    ],
)
def test_what_json_cannot_carry_is_refused(array: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        encode_request({"x": array}, [], binary=False)


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b"", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"outputs": [1]}', None),
        (b'{"outputs": [{"name": "y", "datatype": "FP99", "shape": [1], "data": [1]}]}', None),
        (b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1]}]}', None),
        (b'{"outputs": [{"name": "y", "datatype": "UINT8", "shape": [1], "data": [-1]}]}', None),
        (b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [-1], "data": [1]}]}', None),
        (b'{"outputs": []}', 99),
        (
            b'{"outputs": [{"name":"y","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":8}}]}',
            None,
        ),
        (b"[" * 100_000, None),
    ],
)
def test_an_answer_that_is_none_is_a_sentence(body: bytes, length: int | None) -> None:
    with pytest.raises(ModelError) as raised:
        decode_answer(body, length, "server")
    assert raised.value.message.startswith("server")
    assert len(raised.value.message) < 300


@given(st.binary(max_size=200), st.none() | st.integers(-5, 300))
def test_any_bytes_are_an_answer_or_a_sentence(body: bytes, length: int | None) -> None:
    with pytest.raises(ModelError):
        decode_answer(body, length, "server")
