"""TensorRT's options as they are spelled, and the manifests of other versions and GPUs."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.artifact import Manifest
from qcompile.cli.build import build
from qcompile.engines.gpu import Gpu
from qcompile.engines.tensorrt.adapter import Adapter
from qcompile.engines.tensorrt.compatibility import check_loadable, target_of
from qcompile.errors import ArtifactError, InvalidOption
from qcompile.spec.tensorrt import TensorRTOptions, parse_bytes, weights_on_gpu


def test_the_command_line_offers_every_option_there_is() -> None:
    offered = {one.name for one in build.params}
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
def test_an_engine_is_loaded_by_the_versions_and_gpus_that_its_manifest_fits(
    built: Manifest, here: str, gpu: Gpu, said: str, hint: str
) -> None:
    if not said:
        check_loadable(Path("m.engine"), built, adapter(here), gpu)
        return
    with pytest.raises(ArtifactError, match=said) as caught:
        check_loadable(Path("m.engine"), built, adapter(here), gpu)
    assert hint in caught.value.hint


def test_the_first_bytes_tell_tensorrt_rtx_from_tensorrt() -> None:
    assert target_of(b"vtrt\0\0\0\0") == "tensorrt-rtx"
    assert target_of(b"ftrt\0\0\0\0") == "tensorrt"
