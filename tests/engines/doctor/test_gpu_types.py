"""The table of compute capabilities, against TensorRT-RTX's support matrix and its real builder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.engines.doctor.gpu_types import gpu_types
from qcompile.errors import InvalidOption

# TensorRT-RTX Support Matrix: FP16, BF16, FP8, FP4.
MATRIX = {"12.0": "YYYY", "8.9": "YYYN", "8.6": "YYNN", "7.5": "YNNN"}


@pytest.mark.parametrize("capability", MATRIX)
def test_the_types_are_those_of_the_support_matrix(capability: str) -> None:
    types = gpu_types(capability).types
    found = "".join("Y" if name in types else "N" for name in ("FP16", "BF16", "FP8", "FP4"))
    assert found == MATRIX[capability]


def test_int4_came_with_turing_and_left_with_hopper() -> None:
    assert [one for one in ("7.0", "7.5", "8.9", "9.0", "12.0") if "INT4" in gpu_types(one).types] == [
        "7.5",
        "8.9",
    ]


@pytest.mark.parametrize("text", ["sm86", "SM_86", "8.6", "86", "sm86a"])
def test_the_spellings_of_a_capability(text: str) -> None:
    assert gpu_types(text).capability == "sm86"


def test_a_capability_that_is_not_listed_takes_the_row_below_and_says_so() -> None:
    types = gpu_types("sm88")
    assert (types.architecture, types.note) == ("Ampere (Orin)", "not in the tables: as sm87")
    assert gpu_types("sm61").types == ()
    assert gpu_types("sm121").note == ""


@pytest.mark.parametrize("text", ["", "RTX 3090", "sm", "sm3", "4.0", "sm30", "sm99999"])
def test_what_is_no_capability_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="a compute capability from sm50 on is required"):
        gpu_types(text)


@given(st.integers(50, 999))
def test_every_capability_answers_for_every_precision(number: int) -> None:
    types = gpu_types(f"sm{number}")
    assert types.why_not("fp32") == ""
    assert bool(types.why_not("bf16")) == (number < 80)
    assert bool(types.why_not("fp8")) == (number < 89)
    assert bool(types.why_not("nvfp4")) == bool(types.why_not("mxfp8")) == (number < 100)


def test_the_reason_names_the_first_that_has_it() -> None:
    assert gpu_types("sm86").why_not("fp8") == "the Tensor Cores of sm86 take no FP8, which begins with sm89"
