"""Each TensorRT is asked only for what it has: its flags, GPUs, types, and the operators that it reads."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import onnx
import pytest
import tensorrt_rtx
from recorded_tensorrt import recorded_module

from qcompile.engines.gpu import Gpu
from qcompile.engines.tensorrt import compatibility
from qcompile.engines.tensorrt.adapter import Adapter, load_adapter
from qcompile.engines.tensorrt.compatibility import check_block_format, dequantized_products, require_gpus
from qcompile.engines.tensorrt.log import make_log
from qcompile.engines.tensorrt.parser_operators import ParserOperators, ask_parser, parser_of
from qcompile.errors import EngineUnavailable, InvalidOption


def config() -> Any:
    """A builder configuration that records the GPUs which it is told."""
    found: Any = SimpleNamespace(num_compute_capabilities=1, chosen={})
    found.set_compute_capability = lambda value, index: found.chosen.update({index: value.name})
    return found


V8, V10, V11 = (Adapter(recorded_module(version), "tensorrt") for version in ("8.5.3", "10.16", "11.4"))
RTX = Adapter(recorded_module("rtx"), "tensorrt-rtx")
AHEAD = Adapter(recorded_module("11.4"), "tensorrt")
"""A TensorRT that builds for named GPUs, as TensorRT-RTX does."""
AHEAD.module.ComputeCapability = RTX.module.ComputeCapability


@pytest.mark.parametrize(
    ("adapter", "network_flag", "monitor", "ahead"),
    [
        (V8, "EXPLICIT_BATCH", False, False),
        (V10, "STRONGLY_TYPED", True, False),
        (V11, "STRONGLY_TYPED", True, False),
        (AHEAD, "STRONGLY_TYPED", True, True),
        (RTX, "STRONGLY_TYPED", True, True),
    ],
)
def test_names_tell_what_is_there(adapter: Adapter, network_flag: str, monitor: bool, ahead: bool) -> None:
    flags = adapter.module.NetworkDefinitionCreationFlag
    assert adapter.strongly_typed == (network_flag == "STRONGLY_TYPED")
    assert adapter.network_flags() == 1 << int(getattr(flags, network_flag))
    if hasattr(flags, "EXPLICIT_BATCH"):  # calibrators need weak types
        assert adapter.network_flags(weak=True) == 1 << int(flags.EXPLICIT_BATCH)
    assert (adapter.has_progress_monitor, adapter.builds_ahead_of_time) == (monitor, ahead)
    assert adapter.keeps_timing_caches == (adapter is not RTX)


@pytest.mark.parametrize("adapter", [V8, V10, V11])
def test_a_version_that_builds_for_its_own_gpu_refuses_others(adapter: Adapter) -> None:
    with pytest.raises(InvalidOption, match="builds only for the GPU in this machine") as caught:
        adapter.set_gpus(config(), ["sm86"])
    assert "tensorrt-rtx" in caught.value.hint


@pytest.mark.parametrize(
    ("adapters", "gpus", "chosen"),
    [
        ((V8, V10, V11, AHEAD, RTX), [], (1, {})),
        ((AHEAD, RTX), ["sm89", "SM80"], (2, {0: "SM89", 1: "SM80"})),
    ],
)
def test_the_gpus_named_are_chosen_in_order(
    adapters: tuple[Adapter, ...], gpus: list[str], chosen: tuple[int, dict[int, str]]
) -> None:
    for adapter in adapters:
        found = config()
        adapter.set_gpus(found, gpus)
        assert (found.num_compute_capabilities, found.chosen) == chosen


def test_a_tensorrt_that_builds_for_named_gpus_is_not_taken_for_rtx() -> None:
    assert AHEAD.hardware_level("ampere+").name == "AMPERE_PLUS"
    assert dequantized_products(AHEAD, "mxfp8") == dequantized_products(RTX, "nvfp4") == []
    (warning,) = dequantized_products(RTX, "mxfp8")
    assert "dequantize both operands" in warning


def test_the_real_rtx_is_strongly_typed_and_builds_ahead_of_time() -> None:
    adapter = load_adapter("tensorrt-rtx")
    assert adapter.module is tensorrt_rtx
    assert adapter.version == tensorrt_rtx.__version__
    assert adapter.network_flags() == 1 << int(tensorrt_rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    assert {"SM86", "SM89", "SM120"} <= set(adapter.compute_capabilities())
    assert "CURRENT" not in adapter.compute_capabilities()
    real = tensorrt_rtx.Builder(make_log(tensorrt_rtx).logger).create_builder_config()
    adapter.set_gpus(real, ["sm86", "sm89"])
    assert real.num_compute_capabilities == 2
    assert real.get_compute_capability(1) == tensorrt_rtx.ComputeCapability.SM89


def test_a_tensorrt_that_is_not_there_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(EngineUnavailable, match="tensorrt cannot be imported") as caught:
        load_adapter("tensorrt")
    assert caught.value.hint == "pip install 'qcompile[tensorrt]'"


def reads(version: str) -> ParserOperators:
    """What the parser of a version reads, of which the data knows."""
    found = parser_of(version)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("opset", "versions"),
    [
        (16, "8.5.3.1"),  # its operators.md says 17, and N of LayerNormalization, which 17 brought
        (17, "8.6.1.6"),
        (20, "10.0.1.6 10.5.0.18"),
        (22, "10.6.0.26"),
        (23, "10.11.0.33"),
        (24, "10.14.1.48 11.1.0.106"),
    ],
)
def test_the_opset_is_that_of_the_versions_source(opset: int, versions: str) -> None:
    assert {reads(version).highest_opset for version in versions.split()} == {opset}


@pytest.mark.parametrize(
    ("operators", "last_without", "first_with"),
    [
        ("LayerNormalization IsInf GroupNormalization", "8.5.3", "8.6.1"),
        ("Gelu CastLike TRT_INT4DequantizeLinear", "8.6.1", "10.0.1"),
        ("DeformConv", "10.0.1", "10.1.0"),
        ("HannWindow", "10.3.0", "10.4.0"),
        ("STFT", "10.4.0", "10.5.0"),
        ("TRT_MXFP8DynamicQuantize", "10.11.0", "10.12.0"),
        ("Attention", "10.13.3", "10.14.1"),
        ("RMSNormalization TensorScatter", "10.14.1", "10.15.1"),
        ("Swish", "10.16.1", "11.1.0"),
    ],
)
def test_an_operator_is_there_from_its_version_on(operators: str, last_without: str, first_with: str) -> None:
    brought = set(operators.split())
    assert not brought & reads(last_without).operators
    assert brought <= reads(first_with).operators


def test_every_operator_of_the_data_is_onnxs_or_tensorrts() -> None:
    # Three are from before ONNX 1.0, which the parser still reads.
    old = {"ImageScaler", "ParametricSoftplus", "ScaledTanh"}
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""} | old
    assert not {name for name in reads("11.1.0").operators if not name.startswith("TRT_")} - known


@pytest.mark.parametrize("version", ["7.2", "8.4.3", "11.2.1", "11.4.0.106", "12.0", "dev"])
def test_a_version_without_a_source_is_unknown(version: str) -> None:
    assert parser_of(version) is None


def test_the_real_parser_of_rtx_is_asked() -> None:
    found = load_adapter("tensorrt-rtx").parser()
    assert found is not None
    assert {"LayerNormalization", "Attention", "Swish", "TRT_FP4DynamicQuantize"} <= found.operators
    assert not {"DeformConv", "Det", "Bernoulli", "Col2Im"} & found.operators
    # So the data is what a real parser says.
    assert reads("11.1.0").operators - found.operators == {"DeformConv"}


def test_an_unknown_version_is_asked_where_it_can_be_and_else_unknown() -> None:
    assert V10.parser() == parser_of("10.16")
    assert ask_parser(SimpleNamespace(__version__="11.4.0", __name__="tensorrt")) is None
    names = ModuleType("tensorrt")
    for name in ("ILogger", "Builder", "OnnxParser"):
        setattr(names, name, getattr(tensorrt_rtx, name))
    found = ask_parser(names)
    assert found is not None
    assert "LayerNormalization" in found.operators


@pytest.mark.parametrize(
    ("gpu", "hint"),
    [
        *[("8.9", "write sm89"), ("89", "write sm89"), ("sm_86", "write sm86")],
        *[("sm90", "RTX 40 and L4 sm89"), ("RTX 4090", "RTX 40 and L4 sm89")],
        ("current", "`qcompile doctor` tells it"),
    ],
)
def test_a_gpu_that_cannot_be_built_for_is_refused_with_the_list_and_the_way_out(gpu: str, hint: str) -> None:
    adapter = load_adapter("tensorrt-rtx")
    for gpus in ([], ["sm86"], ["SM80", "sm89"]):
        require_gpus(adapter, gpus)
    with pytest.raises(InvalidOption, match=f"`gpus` {re.escape(gpu)}: .* builds for .*sm80, sm86") as caught:
        require_gpus(adapter, ["sm80", gpu])
    assert hint in caught.value.hint
    assert caught.value.data["option"] == "gpus"


@pytest.mark.parametrize(
    ("adapter", "precision", "gpus", "here", "said"),
    [
        *[(one, "nvfp4", ("sm100", "sm120"), "", "") for one in (V10, V11, RTX)],
        *[(one, "mxfp8", (), "", "") for one in (V10, V11, RTX)],
        *[(V10, "nvfp4", (), here, "") for here in ("sm100", "sm120")],
        (V10, "nvfp4", (), "sm90", "sm90 has no NVFP4; it begins with sm100"),
        *[(RTX, "nvfp4", ("sm120", gpu), "", f"{gpu} has no NVFP4; it begins") for gpu in ("sm75", "sm89")],
        *[(RTX, "mxfp8", ("sm120", gpu), "", f"{gpu} has no MXFP8; it begins") for gpu in ("sm86", "sm90")],
        # NvInferRuntime.h of release/10.7 has neither kFP4 nor kE8M0, release/10.11 no kE8M0.
        (V8, "nvfp4", (), "", r"tensorrt 8\.5\.3\S* has no type FP4.*TensorRT 10.11 or newer"),
        (V8, "mxfp8", (), "", r"tensorrt 8\.5\.3\S* has no type E8M0.*TensorRT 10.12 or newer"),
    ],
)
def test_a_block_format_needs_a_version_that_has_the_type_and_blackwell(
    adapter: Adapter, precision: str, gpus: tuple[str, ...], here: str, said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found = Gpu("a GPU", here, 1 << 30, "12.8") if here else None
    monkeypatch.setattr(compatibility, "find_gpu", lambda _: found)
    if not said:
        check_block_format(adapter, precision, gpus)
        return
    with pytest.raises(InvalidOption) as caught:
        check_block_format(adapter, precision, gpus)
    assert re.search(said, f"{caught.value.message} {caught.value.hint}")
