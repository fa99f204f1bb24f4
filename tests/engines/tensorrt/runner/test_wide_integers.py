"""64-bit integers of a model whose engine has 32: narrowed where they fit, refused where not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.engines.tensorrt.runner.io_tensors import WideIntegers
from qcompile.errors import DataError
from qcompile.tensors import ModelIO, TensorInfo


def io(tokens: str, y: str = "float32") -> ModelIO:
    """Tokens and a table in, y out."""
    inputs = (TensorInfo("tokens", tokens, ("?", 4)), TensorInfo("table", "int32", (4,)))
    return ModelIO(inputs, (TensorInfo("y", y, ("?",)),))


MODEL, ENGINE = io("int64", "int64"), io("int32", "int32")


def test_the_models_types_are_shown_and_taken() -> None:
    wide = WideIntegers(ENGINE, MODEL)
    assert [tensor.dtype for tensor in wide.io.inputs] == ["int64", "int32"]
    assert [tensor.dtype for tensor in wide.io.outputs] == ["int64"]
    assert wide.io.inputs[0].shape == ("?", 4)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=8))
def test_values_that_fit_survive_both_ways(values: list[int]) -> None:
    wide, tokens = WideIntegers(ENGINE, MODEL), np.array(values, np.int64)
    given_values = wide.narrow({"tokens": tokens, "table": np.zeros(4, np.int32)})
    assert given_values["tokens"].dtype == np.int32
    np.testing.assert_array_equal(given_values["tokens"], tokens)
    back = wide.widen({"y": given_values["tokens"]})["y"]
    assert back.dtype == np.int64
    np.testing.assert_array_equal(back, tokens)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**62])
def test_a_value_that_does_not_fit_is_an_error_and_never_wraps(value: int) -> None:
    with pytest.raises(DataError, match=rf"input 'tokens' holds {min(0, value)} to {max(0, value)}"):
        WideIntegers(ENGINE, MODEL).narrow({"tokens": np.array([0, value], np.int64)})


def test_an_empty_batch_is_narrowed_too() -> None:
    found = WideIntegers(ENGINE, MODEL).narrow({"tokens": np.zeros((0, 4), np.int64)})
    assert found["tokens"].shape == (0, 4)
    assert found["tokens"].dtype == np.int32


def test_an_array_on_the_device_is_not_converted() -> None:
    with pytest.raises(DataError, match="input 'tokens' is int64 on the device, and int32 in this engine"):
        WideIntegers(ENGINE, MODEL).narrow({"tokens": object()})


@pytest.mark.parametrize("model", [None, ENGINE, io("float32")])
def test_nothing_is_narrowed_that_the_model_has_no_wider(model: ModelIO | None) -> None:
    wide, tokens = WideIntegers(ENGINE, model), np.zeros((1, 4), np.int32)
    assert wide.io == ENGINE
    assert wide.narrow({"tokens": tokens})["tokens"] is tokens
    assert WideIntegers(MODEL, MODEL).io == MODEL
