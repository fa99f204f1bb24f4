"""Weight streaming, memory of execution contexts, tiling and build routes, as both tools spell them."""

from __future__ import annotations

import shlex

import pytest

from qcompile.errors import InvalidOption
from qcompile.pipeline.migrate.translate import translate
from qcompile.spec.tensorrt import TensorRTOptions

STREAMS = "--allowWeightStreaming --weightStreamingBudget="
MISSING, IDLE = "missing", "unneeded"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--allowWeightStreaming", {"weight_streaming": "all"}),
        ("--weightStreamingBudget=25% --allowWeightStreaming", {"weight_streaming": "25%"}),
        (f"{STREAMS}1.5G", {"weight_streaming": "1.5G"}),
        (f"{STREAMS}4096B", {"weight_streaming": "4096"}),
        (f"{STREAMS}0", {"weight_streaming": "0%"}),
        (f"{STREAMS}-2", {"weight_streaming": "all"}),
        ("--weightStreamingBudget=-1", MISSING),
        ("--tilingOptimizationLevel=3", {"tiling_level": 3}),
        ("--tilingOptimizationLevel=0", IDLE),
        ("'--setBuildRoute=-a=off -b:c=2'", {"build_route": "-a=off -b:c=2"}),
        ("'--tuneBuildRoutes=-a=[on|off]'", MISSING),
        ("--allocationStrategy=profile", {"allocation_strategy": "profile"}),
        ("--allocationStrategy=runtime", {"allocation_strategy": "runtime"}),
        ("--allocationStrategy=static", IDLE),
    ],
)
def test_options_of_trtexec(options: str, expected: dict[str, object] | str) -> None:
    intent = translate("trtexec", shlex.split(options), "tensorrt")
    assert {outcome.fate for outcome in intent.outcomes} == {
        expected if isinstance(expected, str) else "kept"
    }
    assert intent.tensorrt == ({} if isinstance(expected, str) else expected)
    TensorRTOptions(**intent.tensorrt)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--allocationStrategy=lazy", "static, profile or runtime is required"),
        ("--weightStreamingBudget=some", "is no size"),
        ("--weightStreamingBudget=120%", "all, a share such as 50%, or a size such as 2G is required"),
    ],
)
def test_a_wrong_value_is_an_error(options: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        TensorRTOptions(**translate("trtexec", [options], "tensorrt").tensorrt)  # type: ignore[arg-type]


def test_rtx_keeps_no_build_route() -> None:
    intent = translate("trtexec", ["--setBuildRoute=-a=off"], "tensorrt-rtx")
    assert [outcome.fate for outcome in intent.outcomes] == [MISSING]


def test_a_level_that_polygraphy_has_not_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="none, fast, moderate or full is required"):
        translate("polygraphy", ["run", "m.onnx", "--tiling-optimization-level", "4"], "tensorrt")
