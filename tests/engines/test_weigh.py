"""The policy for every target: more than 10% of the planned multiply-adds fails, one layer with `strict`."""

from __future__ import annotations

from typing import Any

import pytest

from qcompile.engines.base import BuildOutcome, Planned
from qcompile.engines.weigh import weigh
from qcompile.tensors import ModelIO

COUNTS = {"large": 88, "small": 9, "tiny": 3}


def outcome(precision: str, *missed: str, unreported: tuple[str, ...] = (), **changes: Any) -> BuildOutcome:
    reached = len(COUNTS) - len(missed) - len(unreported)
    values = {
        "planned": len(COUNTS),
        "reached": reached,
        "proof": {"layers_by_precision": {precision: {"MatMul": reached}, "fp32": {"MatMul": len(missed)}}},
        "layers": Planned(
            tuple(COUNTS), dict.fromkeys(missed, "in fp32"), dict.fromkeys(unreported, "not told")
        ),
        **changes,
    }
    return BuildOutcome(kind="onnx", io=ModelIO((), ()), device={}, packages=(), **values)


def test_all_that_was_planned_is_reached() -> None:
    found = weigh("int8", outcome("int8"), COUNTS, strict=True)
    assert (found.failure, found.warnings) == ("", ())
    assert (found.proof["missed_share"], found.proof["weighed_by"]) == (0, "multiply-adds")


def test_less_than_a_tenth_is_a_warning_with_names_shares_and_reasons() -> None:
    found = weigh("int8", outcome("int8", "small"), COUNTS)
    assert found.failure == ""
    (warning,) = found.warnings
    assert "2 of 3 layers that compute reached it (2 in int8, 1 in fp32)" in warning
    assert warning.endswith("9.0% of the planned multiply-adds missed it: small (9.0%: in fp32)")
    assert found.proof["missed"] == {"small": {"reason": "in fp32", "share": 0.09}}


@pytest.mark.parametrize("strict", [False, True])
def test_more_than_a_tenth_fails_and_strict_fails_for_one(strict: bool) -> None:
    missed = ("tiny",) if strict else ("small", "tiny")
    found = weigh("int8", outcome("int8", *missed), COUNTS, strict=strict)
    assert "missed it: " + ("tiny" if strict else "small (9.0%: in fp32), tiny") in found.failure
    assert found.warnings == ()


def test_where_multiply_adds_are_unknown_layers_are_counted() -> None:
    found = weigh("int8", outcome("int8", "tiny"), {"large": 88})
    assert "33.3% of the planned layers missed it" in found.failure
    assert found.proof["weighed_by"] == "layers"


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("counts", [COUNTS, {}, dict.fromkeys(COUNTS, 0)])
def test_an_artifact_that_reached_nothing_never_passes(counts: dict[str, int], strict: bool) -> None:
    found = weigh("fp16", outcome("fp16", *COUNTS), counts, strict=strict)
    assert found.failure.startswith("fp16 was asked for; 0 of 3 layers")
    assert "large (33.3%: in fp32)" in found.failure
    assert weigh("fp16", outcome("fp16", reached=0), counts).failure  # whatever the names say
    assert weigh("int8", outcome("int8", planned=0, reached=0, layers=None), counts).failure


def test_what_is_not_told_is_neither_reached_nor_missed() -> None:
    few = weigh("int8", outcome("int8", unreported=("small",)), COUNTS, strict=True)
    assert few.failure == ""
    assert few.warnings[0].startswith("1 of 3 layers are unreported, 9.0% of the planned multiply-adds")
    most = weigh("int8", outcome("int8", unreported=("large",)), COUNTS)
    assert most.failure.startswith("int8 was asked for and cannot be proven: 1 of 3 layers are unreported")


def test_an_engine_without_names_is_weighed_by_its_counts() -> None:
    assert weigh("int8", outcome("int8", layers=None), {}).failure == ""
    assert weigh("int8", outcome("int8", layers=None, planned=20, reached=19), {}).warnings
    assert weigh("int8", outcome("int8", layers=None, planned=20, reached=19), {}, strict=True).failure
    assert weigh("int8", outcome("int8", layers=None, planned=20, reached=17), {}).failure


def test_a_model_without_layers_that_compute_is_float32() -> None:
    nothing: dict[str, Any] = {"planned": 0, "reached": 0, "layers": Planned(())}
    empty = outcome("fp32", proof={"layers_by_precision": {"fp32": {}}}, **nothing)
    assert weigh("fp32", empty, {}).failure == ""
    assert weigh("int8", empty, {}).failure


@pytest.mark.parametrize(
    ("unproven", "evidence", "strict", "passes"),
    [
        (True, "", False, False),
        (True, "flags permit it", False, True),
        (True, "flags permit it", True, False),
        (False, "binding", True, True),
    ],
)
def test_what_is_unreported_fails_where_nothing_is_known_or_each_layer_is_demanded(
    unproven: bool, evidence: str, strict: bool, passes: bool
) -> None:
    names = ("large", "small")
    planned = Planned(tuple(COUNTS), {}, dict.fromkeys(names, "in a block"), unproven, evidence)
    found = weigh("fp16", outcome("fp16", reached=1, layers=planned), COUNTS, strict=strict)
    assert (not found.failure) == passes
    assert found.proof["unreported_share"] == pytest.approx(0.97)
    assert found.proof.get("evidence", "") == evidence
    said = [found.failure] if found.failure else list(found.warnings)
    assert bool(said) == unproven
    assert all(text.endswith(evidence) for text in said)


def test_an_artifact_of_which_nothing_is_reported_stands_where_its_types_are_binding() -> None:
    planned = Planned(tuple(COUNTS), {}, dict.fromkeys(COUNTS, "in a block"), False, "binding")
    found = weigh("fp16", outcome("fp16", reached=0, layers=planned), COUNTS, strict=True)
    assert (found.failure, found.warnings) == ("", ())
    assert found.proof["unreported_share"] == 1
