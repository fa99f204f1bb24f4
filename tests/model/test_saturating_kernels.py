"""The probe of saturating kernels: what it says of this machine is true, and recordings are what it said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated import require_emulated, run_emulated

import qcompile.model.saturating_kernels as home
from qcompile.model.saturating_kernels import NONE, RECORDED, probe, saturating_kernels
from qcompile.processor import isa_here, isa_of
from qcompile.spec.words import ISAS


def test_an_order_is_read_from_four_sums() -> None:
    assert home._order(np.float32([126, 126, 126, 126])) == ""
    assert home._order(np.float32([64, 64, 126, 126])) == "flat"
    assert home._order(np.float32([64, 126, 64, 126])) == "taps"


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_a_processor_is_one_that_was_recorded_or_saturates_nowhere(target: str) -> None:
    """Natively, whichever processor this is: with VNNI and on ARM nothing saturates."""
    found = probe(target)  # type: ignore[arg-type]
    assert found == RECORDED.get((target, isa_here()), NONE)  # type: ignore[arg-type]


def test_onnx_runtime_on_an_emulated_haswell_is_as_recorded(tmp_path: Path) -> None:
    require_emulated("haswell")
    models = [home._static_layers(), home._dynamic_layers()]
    outputs = run_emulated("haswell", [(model, dict(feeds)) for model, feeds in models], tmp_path)
    orders = {name: home._order(home._sums(sums)) for each in outputs for name, sums in each.items()}
    assert home.SaturatingKernels(**orders) == RECORDED["onnxruntime", "avx2"]  # type: ignore[arg-type]


def test_openvino_told_to_use_avx2_is_as_recorded() -> None:
    if isa_here() in ("neon", "neon-dotprod", "i8mm"):
        pytest.skip("ARM has no AVX2")
    code = """from qcompile.model.saturating_kernels import RECORDED, probe
print(probe("openvino") == RECORDED["openvino", "avx2"])"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


def test_another_instruction_set_is_looked_up_and_this_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "isa_here", lambda: "avx512-vnni")
    monkeypatch.setattr(home, "probe", lambda _: "asked")
    assert saturating_kernels("onnxruntime", "avx512-vnni") == "asked"
    monkeypatch.setattr(home, "isa_here", lambda: "avx2")
    monkeypatch.setattr(home, "probe", lambda _: NONE)  # a file for AVX2 is for every processor that has it
    assert saturating_kernels("openvino", "avx2") == RECORDED["openvino", "avx2"]
    monkeypatch.setattr(home, "isa_here", lambda: "avx512-vnni")
    assert saturating_kernels("onnxruntime", "avx2") == RECORDED["onnxruntime", "avx2"]
    assert saturating_kernels("openvino", "amx") == NONE
    assert saturating_kernels("tensorrt", "avx512-vnni") == NONE
    assert not NONE


def test_features_of_a_processor_are_one_instruction_set() -> None:
    assert isa_of(["avx2"], arm=False) == isa_of([], arm=False) == "avx2"
    assert isa_of(["avx2", "avx512f"], arm=False) == "avx2"  # AVX-512 without VNNI
    assert isa_of(["avx2", "avx_vnni"], arm=False) == "avx-vnni"
    assert isa_of(["avx512_vnni", "avx_vnni"], arm=False) == "avx512-vnni"
    assert isa_of(["avx512_vnni", "amx_int8"], arm=False) == "amx"
    assert [isa_of(one, arm=True) for one in ([], ["asimddp"], ["asimddp", "i8mm"])] == [
        "neon", "neon-dotprod", "i8mm",
    ]  # fmt: skip
    assert isa_here() in ISAS
