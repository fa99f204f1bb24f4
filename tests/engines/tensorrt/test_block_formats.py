"""NVFP4 and MXFP8 are refused by every TensorRT and GPU that lacks them, by name."""

from __future__ import annotations

import pytest
from recorded_tensorrt import recorded_module

from qcompile.engines.gpu import Gpu
from qcompile.engines.tensorrt import compatibility
from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.compatibility import check_block_format, dequantized_products
from qcompile.errors import InvalidOption


def adapter(version: str) -> Adapter:
    """A TensorRT with the public names of a version."""
    return Adapter(recorded_module(version), "tensorrt-rtx" if version == "rtx" else "tensorrt")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is here, whatever the machine."""
    monkeypatch.setattr(compatibility, "find_gpu", lambda _: None)


@pytest.mark.parametrize("precision", ["nvfp4", "mxfp8"])
@pytest.mark.parametrize("version", ["10.16", "11.4", "rtx"])
def test_versions_that_have_the_types_may_build_for_blackwell(version: str, precision: str) -> None:
    check_block_format(adapter(version), precision, ("sm100", "sm120"))
    check_block_format(adapter(version), precision, ())


@pytest.mark.parametrize(
    ("precision", "kind", "since"), [("nvfp4", "FP4", "10.11"), ("mxfp8", "E8M0", "10.12")]
)
def test_a_version_without_the_type_is_refused(precision: str, kind: str, since: str) -> None:
    # Source: NvInferRuntime.h of release/10.7 has neither kFP4 nor kE8M0, release/10.11 no kE8M0.
    with pytest.raises(InvalidOption, match=rf"tensorrt 8\.5\.3\S* has no type {kind}") as caught:
        check_block_format(adapter("8.5.3"), precision, ())
    assert f"TensorRT {since} or newer" in caught.value.hint


@pytest.mark.parametrize("gpu", ["sm75", "sm80", "sm86", "sm89", "sm90"])
@pytest.mark.parametrize("precision", ["nvfp4", "mxfp8"])
def test_older_gpus_are_refused(precision: str, gpu: str) -> None:
    with pytest.raises(InvalidOption, match=f"{gpu} has no {precision.upper()}; it begins with sm100"):
        check_block_format(adapter("rtx"), precision, ("sm120", gpu))


@pytest.mark.parametrize(("architecture", "fits"), [("sm90", False), ("sm100", True), ("sm120", True)])
def test_the_gpu_here_decides_where_none_is_named(
    architecture: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility, "find_gpu", lambda _: Gpu("a GPU", architecture, 1 << 30, "12.8"))
    if fits:
        check_block_format(adapter("10.16"), "nvfp4", ())
    else:
        with pytest.raises(InvalidOption, match="sm90 has no NVFP4"):
            check_block_format(adapter("10.16"), "nvfp4", ())


def test_tensorrt_rtx_warns_that_it_multiplies_floats_for_mxfp8() -> None:
    (warning,) = dequantized_products(adapter("rtx"), "mxfp8")
    assert "dequantize both operands" in warning
    assert dequantized_products(adapter("rtx"), "nvfp4") == []
    assert dequantized_products(adapter("10.16"), "mxfp8") == []
