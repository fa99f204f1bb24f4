"""Each TensorRT is asked for what it has, takes its options as spelled, and loads the engines that fit."""

from __future__ import annotations

import dataclasses
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import onnx
import pytest
import tensorrt_rtx
from hypothesis import given
from hypothesis import strategies as st
from recorded_tensorrt import recorded_module

from qcompile.cli.compile import build
from qcompile.core.artifact import Manifest
from qcompile.engines.gpu import Gpu
from qcompile.engines.tensorrt import plan
from qcompile.engines.tensorrt.adapter import Adapter, load_adapter
from qcompile.engines.tensorrt.log import make_log
from qcompile.engines.tensorrt.parser_operators import ParserOperators, ask_parser, parser_of
from qcompile.engines.tensorrt.plan import (
    check_block_format,
    check_loadable,
    dequantized_products,
    require_gpus,
    target_of,
)
from qcompile.errors import ArtifactError, EngineUnavailable, InvalidOption
from qcompile.spec.tensorrt import TensorRTOptions, parse_bytes, weights_on_gpu


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
    assert caught.value.hint == "pip install 'tensorrt>=10'"


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
    # So the data is what a real parser says, but for what it says to read and then refuses.
    refused = {"NonMaxSuppression", "NonZero"}
    assert reads("11.1.0").operators - found.operators == {"DeformConv", *refused}


def test_an_unknown_version_is_asked_where_it_can_be_and_else_unknown() -> None:
    assert V10.parser() == parser_of("10.16")
    assert ask_parser(ModuleType("tensorrt")) is None
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
        ("current", "`qcompile doctor` shows it"),
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
    monkeypatch.setattr(plan, "find_gpu", lambda _: found)
    if not said:
        check_block_format(adapter, precision, gpus)
        return
    with pytest.raises(InvalidOption) as caught:
        check_block_format(adapter, precision, gpus)
    assert re.search(said, f"{caught.value.message} {caught.value.hint}")


def test_the_command_line_offers_every_option_there_is() -> None:
    offered = {one.name for one in build.get_params(click.Context(build))}
    assert offered >= {f"tensorrt__{field.name}" for field in dataclasses.fields(TensorRTOptions)}


@pytest.mark.parametrize(("text", "size"), [("512M", 512 << 20), ("64KiB", 64 << 10), ("1.5m", 3 << 19)])
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_bytes(text, option="workspace") == size
    assert TensorRTOptions(workspace=text).workspace_bytes == size


@given(st.integers(1, 1 << 60), st.sampled_from(["", "K", "M", "G"]))
def test_every_whole_size_is_read_exactly(count: int, unit: str) -> None:
    factor = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[unit]
    found = parse_bytes(f"{count}{unit}", option="workspace")
    assert found == count * factor


@pytest.mark.parametrize(
    ("text", "size"), [("all", 1000), ("0%", 0), ("12.5%", 125), ("100%", 1000), ("100", 100), ("4G", 1000)]
)
def test_the_weights_that_stay_on_the_gpu(text: str, size: int) -> None:
    assert weights_on_gpu(text, 1000) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "4T", "G", "four", "1 2"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="a size such as 512M or 4G is required"):
        parse_bytes(text, option="workspace")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x=float16:chw32", {"x": ("float16", "chw32")}),
        ("x=float16", {"x": ("float16", "")}),
        ("x=:hwc8", {"x": ("", "hwc8")}),
        ("serving:0=int8:chw4", {"serving:0": ("int8", "chw4")}),
        ("a=b=float16", {"a=b": ("float16", "")}),
    ],
)
def test_types_and_formats_of_tensors(text: str, found: dict[str, tuple[str, str]]) -> None:
    assert TensorRTOptions(io_formats=(text,)).tensor_formats == found


@pytest.mark.parametrize(
    ("given_options", "said"),
    [
        ({"io_formats": ("x",)}, "`io_formats` 'x': NAME=.* is required"),
        *[({"io_formats": (text,)}, f"`io_formats` '{text}'") for text in ("x=", "=float16", "x=a:b:c")],
        ({"memory_pools": ("tactic-dram",)}, "`memory_pools` 'tactic-dram': NAME=SIZE is required"),
        ({"memory_pools": ("tactic-dram=lots",)}, "`memory_pools` 'tactic-dram=lots': a size"),
        ({"optimization_level": 6}, "`optimization_level` 6: at most 5 is required"),
        ({"hardware_compatible": "turing"}, r"`hardware_compatible` 'turing': one of ampere\+, same-sm"),
        ({"tiling_level": 4}, "`tiling_level` 4: at most 3 is required"),
        ({"tiling_l2_limit": "8M"}, "`tiling_l2_limit`: belongs to `tiling_level` 1 to 3"),
        ({"tiling_level": 1, "tiling_l2_limit": "half"}, "`tiling_l2_limit` 'half': a size such as"),
        *[({"weight_streaming": text}, f"`weight_streaming` '{text}': all, a share such as 50%, or a size")
          for text in ("101%", "auto")],
        ({"weight_streaming": "all", "typing": "weak"}, "`weight_streaming`: is for `typing` strong"),
        ({"allocation_strategy": "lazy"}, "`allocation_strategy` 'lazy': one of static, profile, runtime"),
        ({"exclude_lean_runtime": True}, "belongs to `version_compatible`"),
        ({"gpu_fallback": True}, "belongs to `dla_core`"),
        ({"tactic_sources": ("none", "cublas")}, "`tactic_sources`: none excludes the others"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_while_it_is_read(given_options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        TensorRTOptions(**given_options)  # type: ignore[arg-type]


def test_the_manifest_gets_what_differs_from_the_defaults_which_leave_every_choice_to_tensorrt() -> None:
    options = TensorRTOptions(workspace="4G", dla_core=0, gpu_fallback=True, plugins=("a.so",))
    assert options.as_json() == {"workspace": "4G", "dla_core": 0, "gpu_fallback": True, "plugins": ["a.so"]}
    assert TensorRTOptions().as_json() == {}
    assert (TensorRTOptions().workspace_bytes, TensorRTOptions().pool_bytes) == (0, {})


H200 = Gpu("NVIDIA H200", "sm90", 141 << 30, "12.8")
A10 = Gpu("NVIDIA A10", "sm86", 24 << 30, "12.4")
T4 = Gpu("Tesla T4", "sm75", 16 << 30, "12.4")


def adapter(version: str) -> Adapter:
    """Only name and version are read."""
    return Adapter(SimpleNamespace(__name__="tensorrt", __version__=version), "tensorrt")


def manifest(version: str, *gpus: str, proof: dict[str, object] | None = None, **options: object) -> Manifest:
    """A manifest of an engine built by a version for GPUs, for an H200 where none is named."""
    device = {"gpu": "NVIDIA H200", "gpus": list(gpus) or ["sm90"]}
    return Manifest(
        "engine", "build", tools={"tensorrt": version}, device=device, options=options, proof=proof or {}
    )


COMPATIBLE = manifest("10.3.0.26", version_compatible=True)
WITHOUT_RUNTIME = manifest("10.3.0.26", version_compatible=True, exclude_lean_runtime=True)
AMPERE = manifest("10.3.0.26", "sm80", hardware_compatible="ampere+")
STRIPPED = manifest("10.3.0.26", strip_weights=True)


@pytest.mark.parametrize(
    ("built", "here", "gpu", "said", "hint"),
    [
        # Up to 8.5 the first three numbers of a version must be the same, from 8.6 on all four.
        *[(manifest("8.5.3.1"), version, H200, "", "") for version in ("8.5.3.1", "8.5.3.2", "8.5.3")],
        # "expecting library version 8.6.1.6 got 8.6.1.2, please rebuild": NVIDIA/TensorRT issue 3069; 3793.
        (manifest("8.6.1.2"), "8.6.1.6", H200, r"was built by tensorrt 8\.6\.1\.2; here is", ""),
        (manifest("9.2.0.4"), "9.2.0.5", H200, "was built by", ""),
        (manifest("8.6.1.6"), "8.6.1.6", H200, "", ""),
        (manifest("8.6.1"), "8.6.1.6", H200, "", ""),  # the fourth is not known
        (manifest("10.16.1.11"), "10.16.1.12", H200, "was built by", ""),
        *[
            (manifest("8.5.3.1"), version, H200, f"by tensorrt 8.5.3.1; here is {version}", "version_compat")
            for version in ("8.5.2.1", "8.6.1.6", "10.0.1.6")
        ],
        *[(COMPATIBLE, version, H200, "", "") for version in ("10.3.0.1", "10.9.1.0")],
        *[(COMPATIBLE, v, H200, "was built by", "") for v in ("10.2.0.9", "11.0.0.0", "8.6.1.6")],
        (WITHOUT_RUNTIME, "10.3.0.26", H200, "", ""),
        (WITHOUT_RUNTIME, "10.9.1.0", H200, "was built by", ""),
        (Manifest("engine", "build", device={"gpus": ["sm90"]}), "8.5.3.1", H200, "unknown version", ""),
        (manifest("8.5.3.1"), "8.5.3.1", A10, r"for sm90 \(NVIDIA H200\); here is NVIDIA A10 \(sm86\)", ""),
        (manifest("8.5.3.1", "sm80", "sm86"), "8.5.3.1", A10, "", ""),
        *[(AMPERE, "10.3.0.26", gpu, "", "") for gpu in (H200, A10)],
        (AMPERE, "10.3.0.26", T4, "was built for sm80", ""),
        (STRIPPED, "10.3.0.26", H200, "stored without weights", "qcompile refit m.engine"),
        (replace(STRIPPED, proof={"refitted_with": "sha256:1"}), "10.3.0.26", H200, "", ""),
    ],
)
def test_engines_load_where_they_fit(built: Manifest, here: str, gpu: Gpu, said: str, hint: str) -> None:
    if not said:
        check_loadable(Path("m.engine"), built, adapter(here), gpu)
        return
    with pytest.raises(ArtifactError, match=said) as caught:
        check_loadable(Path("m.engine"), built, adapter(here), gpu)
    assert hint in caught.value.hint


def test_the_first_bytes_tell_tensorrt_rtx_from_tensorrt() -> None:
    assert target_of(b"vtrt\0\0\0\0") == "tensorrt-rtx"
    assert target_of(b"ftrt\0\0\0\0") == "tensorrt"
