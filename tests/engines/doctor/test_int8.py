"""What `doctor` says of INT8 on a processor: figures of processors of its kind, with where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from qcompile.engines.doctor.int8 import int8_gain
from qcompile.engines.doctor.machine import this_machine

OnProcessor = Callable[..., None]


def test_without_vnni_weights_are_fitted_and_int8_gains_less(on_processor: OnProcessor) -> None:
    on_processor()
    gain = int8_gain(this_machine())
    assert gain.sentence == (
        "INT8 on avx2: weights are fitted so that no pair of products overflows, which costs accuracy; "
        "measured: 1.6x of FP32's speed by ONNX Runtime (60.9 and 37.1 ms), 2.1x of FP32's speed by OpenVINO "
        "(63.6 and 30.1 ms): ResNet-50, one image, 2 threads of an AMD EPYC with AVX2 and no VNNI"
    )
    assert asdict(gain)["measured"][1] == {"runtime": "OpenVINO", "fp32_ms": 63.6, "int8_ms": 30.1}


@pytest.mark.parametrize(
    ("flag", "isa"), [("avx512_vnni", "avx512-vnni"), ("avx_vnni", "avx-vnni"), ("amx_int8", "amx")]
)
def test_with_vnni_the_processor_of_the_figures_is_named(
    flag: str, isa: str, on_processor: OnProcessor
) -> None:
    on_processor(flag)
    assert int8_gain(this_machine()).sentence == (
        f"INT8 on {isa}: weights use all 8 bits; measured: "
        "3.3x of FP32's speed by ONNX Runtime (151 and 46 ms): "
        "ResNet-50, batch 8, 2 threads of an AMD EPYC with AVX-512 VNNI"
    )


def test_no_arm_processor_was_measured(on_processor: OnProcessor) -> None:
    on_processor()
    arm = replace(this_machine(), architecture="aarch64", features=("asimd", "asimddp"))
    sentence = "INT8 on neon-dotprod: activations are signed; its speed was measured on no such processor"
    assert int8_gain(arm).sentence == sentence
    unknown = int8_gain(replace(arm, features=()))
    assert (unknown.isa, "does not tell" in unknown.sentence) == ("auto", True)
