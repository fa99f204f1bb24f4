"""Each TensorRT is asked only for what it has, and none of them builds FP32 in silence."""

from __future__ import annotations

import enum
import sys
from types import SimpleNamespace

import pytest
import tensorrt_rtx

from qcompile.engines.tensorrt.adapter import Adapter, load_adapter
from qcompile.engines.tensorrt.compatibility import dequantized_products
from qcompile.engines.tensorrt.log import last_error, make_log
from qcompile.engines.tensorrt.parser_operators import parser_of
from qcompile.errors import EngineUnavailable, InvalidOption


class Config:
    """Records what a builder configuration is told."""

    def __init__(self) -> None:
        self.flags: list[str] = []
        self.num_compute_capabilities = 1
        self.chosen: dict[int, object] = {}

    def set_flag(self, flag: str) -> None:
        self.flags.append(flag)

    def clear_flag(self, flag: str) -> None:
        self.flags.append(f"no {flag}")

    def set_compute_capability(self, value: object, index: int) -> None:
        self.chosen[index] = value


class Capability(enum.Enum):
    """GPUs that a stand-in for TensorRT-RTX builds for."""

    NONE = 0
    CURRENT = 1
    SM80 = 80
    SM89 = 89


def stand_in(
    version: str, creation: dict[str, int], builder: str, target: str = "tensorrt", **names: object
) -> Adapter:
    """A TensorRT with these creation flags and builder flags."""
    module = SimpleNamespace(
        __version__=version,
        __name__=target.replace("-", "_"),
        NetworkDefinitionCreationFlag=SimpleNamespace(**creation),
        BuilderFlag=SimpleNamespace(**{name: name for name in builder.split()}),
        **names,
    )
    return Adapter(module, target)


MONITOR = {"IProgressMonitor": object}
V8 = stand_in("8.5.3.1", {"EXPLICIT_BATCH": 0, "EXPLICIT_PRECISION": 1}, "FP16 INT8 TF32")
V10 = stand_in("10.16.1.11", {"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1}, "FP16 INT8 BF16 TF32", **MONITOR)
V11 = stand_in("11.4.0.106", {"STRONGLY_TYPED": 1}, "TF32 REFIT", **MONITOR)
RTX = stand_in(
    "1.7.1.116", {"STRONGLY_TYPED": 0}, "TF32", "tensorrt-rtx", ComputeCapability=Capability, **MONITOR
)
NEITHER = stand_in("9.9", {}, "TF32")


@pytest.mark.parametrize(
    ("adapter", "strong", "monitor", "ahead"),
    [(V8, False, False, False), (V10, True, True, False), (V11, True, True, False), (RTX, True, True, True)],
)
def test_what_a_version_has_is_read_from_its_names(
    adapter: Adapter, strong: bool, monitor: bool, ahead: bool
) -> None:
    assert adapter.strongly_typed is strong
    assert adapter.has_progress_monitor is monitor
    assert adapter.builds_ahead_of_time is ahead


@pytest.mark.parametrize(
    ("adapter", "flags"), [(V8, 0b01), (V10, 0b10), (V11, 0b10), (RTX, 0b01), (NEITHER, 0)]
)
def test_networks_are_strongly_typed_wherever_they_can_be(adapter: Adapter, flags: int) -> None:
    assert adapter.network_flags() == flags


@pytest.mark.parametrize(
    ("precision", "flags"),
    [("fp32", ["no TF32"]), ("tf32", ["TF32"]), ("fp16", ["no TF32", "FP16"]), ("int8", ["no TF32", "INT8"])],
)
def test_a_weakly_typed_version_is_told_by_flags(precision: str, flags: list[str]) -> None:
    config = Config()
    V8.set_precision(config, precision)
    assert config.flags == flags


@pytest.mark.parametrize("adapter", [V10, V11, RTX])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_strongly_typed_version_is_told_by_the_graph_and_by_no_flag(
    adapter: Adapter, precision: str
) -> None:
    config = Config()
    adapter.set_precision(config, precision)
    assert config.flags == ["no TF32"]
    assert adapter.graph_precision(precision) == precision


def test_flags_stand_in_for_fp16_in_the_graph_but_never_for_int8() -> None:
    assert [V8.graph_precision(p) for p in ("fp32", "fp16", "int8")] == ["fp32", "fp32", "int8"]


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("adapter", [V8, V10, V11, RTX])
def test_every_version_reaches_a_precision_by_flag_or_by_graph(adapter: Adapter, precision: str) -> None:
    config = Config()
    adapter.set_precision(config, precision)
    assert config.flags != ["no TF32"] or adapter.graph_precision(precision) == precision


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_version_with_neither_flags_nor_strong_types_is_an_error(precision: str) -> None:
    with pytest.raises(InvalidOption, match=r"tensorrt 9\.9 has no builder flag (FP16|INT8)"):
        NEITHER.set_precision(Config(), precision)


@pytest.mark.parametrize("adapter", [V8, V10, V11])
def test_a_version_that_builds_for_its_own_gpu_refuses_others(adapter: Adapter) -> None:
    with pytest.raises(InvalidOption, match="builds only for the GPU in this machine") as caught:
        adapter.set_gpus(Config(), ["sm86"])
    assert "tensorrt-rtx" in caught.value.hint


@pytest.mark.parametrize("adapter", [V8, V10, V11, RTX])
def test_no_gpu_named_leaves_the_configuration_alone(adapter: Adapter) -> None:
    config = Config()
    adapter.set_gpus(config, [])
    assert (config.num_compute_capabilities, config.chosen) == (1, {})


def test_the_gpus_named_are_chosen_in_order() -> None:
    config = Config()
    RTX.set_gpus(config, ["sm89", "SM80"])
    assert config.num_compute_capabilities == 2
    assert config.chosen == {0: Capability.SM89, 1: Capability.SM80}


def test_a_tensorrt_that_builds_for_named_gpus_is_not_taken_for_rtx() -> None:
    levels = SimpleNamespace(AMPERE_PLUS="ampere")
    adapter = stand_in(
        "11.1.0.106", {"STRONGLY_TYPED": 1}, "TF32",
        ComputeCapability=Capability, HardwareCompatibilityLevel=levels,
    )  # fmt: skip
    config = Config()
    adapter.set_gpus(config, ["sm89"])
    assert config.chosen == {0: Capability.SM89}
    assert adapter.keeps_timing_caches
    assert adapter.parser() == parser_of("11.1") is not None
    assert adapter.hardware_level("ampere+") == "ampere"
    assert dequantized_products(adapter, "mxfp8") == []


def test_the_real_rtx_is_strongly_typed_and_builds_ahead_of_time() -> None:
    adapter = load_adapter("tensorrt-rtx")
    assert adapter.module is tensorrt_rtx
    assert adapter.version == tensorrt_rtx.__version__
    assert adapter.strongly_typed
    assert adapter.builds_ahead_of_time
    assert adapter.network_flags() == 1 << int(tensorrt_rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    assert {"SM86", "SM89", "SM120"} <= set(adapter.compute_capabilities())
    assert "CURRENT" not in adapter.compute_capabilities()


def test_the_real_rtx_takes_the_gpus() -> None:
    config = tensorrt_rtx.Builder(make_log(tensorrt_rtx).logger).create_builder_config()
    load_adapter("tensorrt-rtx").set_gpus(config, ["sm86", "sm89"])
    assert config.num_compute_capabilities == 2
    assert config.get_compute_capability(1) == tensorrt_rtx.ComputeCapability.SM89


def test_a_tensorrt_that_is_not_there_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(EngineUnavailable, match="tensorrt cannot be imported") as caught:
        load_adapter("tensorrt")
    assert caught.value.hint == "pip install 'qcompile[tensorrt]'"


def test_the_log_keeps_errors_and_says_the_last_without_its_source_file() -> None:
    log = make_log(tensorrt_rtx)
    severity = tensorrt_rtx.ILogger.Severity
    assert last_error(log, "nothing was said") == "nothing was said"
    for level, text in [
        (severity.ERROR, "first"),
        (severity.INTERNAL_ERROR, "[network.cpp::check::12]: the axis is wrong"),
        (severity.WARNING, "slow"),
        (severity.WARNING, "slow"),
        (severity.INFO, "hello"),
    ]:
        log.logger.log(level, text)
    assert last_error(log, "") == "the axis is wrong"
    assert log.warnings == ["slow"]
