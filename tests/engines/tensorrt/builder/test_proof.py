"""What the proof makes of an engine: layers weighed by what they multiply, blocks unreported, none lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from simulated_machine import Machine

from qcompile.artifact import Check, load_artifact
from qcompile.engines.base import BuildOutcome
from qcompile.errors import BuildError, IntentNotReached

MakeFile = Callable[..., Path]
OnMachine = Callable[..., Machine]
LAYERS = 54
"""As ResNet-50 with its classifier has."""


def chain(path: Path, layers: int = LAYERS, *, batch: int | str = 1) -> Path:
    """Equal convolutions, one behind the other."""
    weight = np.random.default_rng(0).normal(0, 0.2, (4, 4, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", [f"t{i}", "w"], [f"t{i + 1}"], f"conv{i}", pads=[1] * 4, kernel_shape=[3, 3])
        for i in range(layers)
    ]
    shape = [batch, 4, 8, 8]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("t0", 1, shape)],
        [helper.make_tensor_value_info(f"t{layers}", 1, shape)],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def missed(count: int) -> dict[str, Any]:
    """Layers that fall back to float32."""
    return {"fallback": {f"conv{index}" for index in range(count)}}


def test_one_layer_of_54_is_named_with_its_share_and_the_engine_stands(
    machine: OnMachine, tmp_path: Path
) -> None:
    here, model = machine("8.5.3", **missed(1)), chain(tmp_path / "m.onnx")
    manifest = here.build(model, "fp16").manifest
    assert manifest.proof["typing"] == "weak"
    assert manifest.proof["missed_share"] == pytest.approx(1 / LAYERS, abs=1e-4)
    (warning,) = [text for text in manifest.warnings if "missed it" in text]
    assert "53 of 54 layers" in warning
    assert "conv0 (1.9%: fp32: it had no fp16 kernel or timed it slower" in warning
    assert "`layers` 'conv0=fp16' forces it" in warning
    with pytest.raises(IntentNotReached, match=r"conv0 \(1\.9%"):
        here.build(model, "fp16", strict=True, name="strict")
    assert here.build(model, "fp16", strict=True, allow_fallback=True, name="kept").path.exists()


@pytest.mark.parametrize(("count", "stands"), [(5, True), (6, False)])
def test_more_than_a_tenth_of_the_multiply_adds_fails(
    count: int, stands: bool, machine: OnMachine, tmp_path: Path
) -> None:
    here, model = machine("8.5.3", **missed(count)), chain(tmp_path / "m.onnx")
    if stands:
        assert here.build(model, "fp16").manifest.proof["reached_in_precision"] == LAYERS - count
        return
    with pytest.raises(IntentNotReached, match=r"48 of 54 layers .*11\.1% of the planned multiply-adds"):
        here.build(model, "fp16")


def silenced(here: Machine, *, whole: object = "", single: object = None) -> Machine:
    """The machine with an inspector that answers this; `single` of each layer, where it is not None."""
    inspector = here.module.EngineInspector
    inspector.get_engine_information = lambda *_: whole
    if single is not None:
        inspector.get_layer_information = lambda *_: single
    return here


@pytest.mark.parametrize("whole", ["", None, "{", '{"Layers": []}'])
@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_an_inspector_that_is_silent_on_the_whole_engine_is_asked_layer_by_layer(
    version: str, whole: object, machine: OnMachine, tmp_path: Path
) -> None:
    # NVIDIA/TensorRT issues 4438 and 2583; Polygraphy asks layer by layer (backend/trt/util.py).
    here = silenced(machine(version, **missed(1)), whole=whole)
    model = chain(tmp_path / "m.onnx", batch="n")
    profiles = ("t0:1x4x8x8..2x4x8x8..4x4x8x8", "t0:5x4x8x8..6x4x8x8..8x4x8x8")
    proof = here.build(model, "fp16", options={"profiles": profiles}).manifest.proof
    assert proof["reached_in_precision"] == LAYERS - 1
    assert "inspector" not in proof


def test_an_inspector_that_says_nothing_at_all_leaves_layers_unreported(
    machine: OnMachine, tmp_path: Path
) -> None:
    model = chain(tmp_path / "m.onnx")
    strong = silenced(machine("10.16"), single="").build(model, "fp16").manifest
    assert strong.proof["inspector"] == "not known: its answer is empty"
    assert strong.proof["engine_layers"] is None
    assert strong.proof["layers_by_precision"] == {"unreported": {"CONVOLUTION": LAYERS}}
    assert strong.proof["reached_in_precision"] == 0
    assert strong.proof["unreported_share"] == 1
    assert "binding" in str(strong.proof["evidence"])
    assert any("inspector does not say what is in the engine" in text for text in strong.warnings)
    here = silenced(machine("8.5.3"), single="")
    with pytest.raises(IntentNotReached, match="fp16 was asked for and cannot be proven: 54 of 54 layers"):
        here.build(model, "fp16", strict=True)
    weak = here.build(model, "fp16", name="weak").manifest
    assert (weak.proof["reached_in_precision"], weak.proof["unreported_share"]) == (0, 1)
    assert any("54 of 54 layers are unreported" in text for text in weak.warnings)
    plain = here.build(model, "fp32", name="plain", strict=True).manifest.proof
    assert "no flag allows" in str(plain["evidence"])


def test_a_profile_that_the_context_does_not_take_is_said_and_no_error(
    machine: OnMachine, tmp_path: Path
) -> None:
    # The binding raises where C++ returns false (python/src/infer/pyCore.cpp, release/8.5 line 322).
    here = machine("10.16")

    def refuse(*_: Any) -> bool:
        raise RuntimeError("Error in set optimization profile async.")

    here.module.IExecutionContext.set_optimization_profile_async = refuse
    profiles = ("t0:1x4x8x8..2x4x8x8..4x4x8x8", "t0:5x4x8x8..6x4x8x8..8x4x8x8")
    made = here.build(chain(tmp_path / "m.onnx", batch="n"), "fp16", options={"profiles": profiles}).manifest
    assert any("profile 1 does not take its OPT shapes" in text for text in made.warnings)
    assert made.proof["reached_in_precision"] == LAYERS


def test_layers_inside_a_block_are_unreported_not_reached(machine: OnMachine, tiny_file: MakeFile) -> None:
    blocks, model = {"conv1", "conv2", "gemm"}, tiny_file("residual")
    strong = machine("10.16", blocks=blocks).build(model, "fp16").manifest.proof
    assert strong["layers_by_precision"] == {"unreported": {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}}
    assert (strong["reached_in_precision"], strong["planned_in_precision"]) == (0, 3)
    unreported = strong["unreported"]
    assert isinstance(unreported, dict)
    assert unreported["conv1"]["reason"] == "inside a fused block, of which TensorRT tells no precision"
    assert "binding" in str(strong["evidence"])
    with pytest.raises(IntentNotReached, match="cannot be proven: 3 of 3 layers are unreported") as caught:
        machine("8.5.3", blocks=blocks).build(model, "fp16", name="weak", strict=True)
    assert "`allow_fallback`" in caught.value.hint


def test_a_manifest_is_json_whatever_is_unknown(machine: OnMachine, tmp_path: Path) -> None:
    made = silenced(machine("10.16"), single="{").build(chain(tmp_path / "m.onnx"), "fp16")
    assert json.loads(json.dumps(made.manifest.as_json()))


def test_an_engine_that_fails_the_proof_is_kept_under_another_name(
    machine: OnMachine, tmp_path: Path
) -> None:
    here, model = machine("8.5.3", **missed(6)), chain(tmp_path / "m.onnx")
    with pytest.raises(IntentNotReached, match="48 of 54 layers") as caught:
        here.build(model, "fp16")
    assert here.nothing_built
    assert caught.value.hint.endswith("; what was built is kept as m.rejected.engine")
    kept = load_artifact(tmp_path / "built" / "m.rejected.engine")
    assert kept.manifest.precision == "fp16"
    assert kept.manifest.proof["missed_share"] == pytest.approx(6 / LAYERS, abs=1e-4)
    assert any("48 of 54 layers" in text for text in kept.manifest.warnings)


def test_an_engine_that_cannot_be_loaded_after_its_build_is_kept_without_a_manifest(
    machine: OnMachine, tmp_path: Path
) -> None:
    here = machine("10.16")
    here.module.Runtime.deserialize_cuda_engine = lambda *_: None
    with pytest.raises(BuildError, match=r"the engine just built: .* cannot load it") as caught:
        here.build(chain(tmp_path / "m.onnx"), "fp16")
    assert caught.value.hint == "what was built is kept as m.rejected.engine"
    assert [path.name for path in (tmp_path / "built").iterdir()] == ["m.rejected.engine"]


def test_an_engine_whose_outputs_are_wrong_fails_and_is_kept_with_what_was_seen(
    machine: OnMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(outcome: BuildOutcome, *_: object) -> BuildOutcome:
        check = Check("same outputs as ONNX Runtime", False, "12.0 dB")
        return replace(outcome, checks=(check,), failure="output 'y' has 12.0 dB")

    monkeypatch.setattr("qcompile.engines.tensorrt.verify.verified", found)
    here, model = machine("10.16"), chain(tmp_path / "m.onnx")
    with pytest.raises(IntentNotReached, match=r"output 'y' has 12\.0 dB") as caught:
        here.build(model, "fp32")
    assert "m.rejected.engine" in caught.value.hint
    assert not load_artifact(tmp_path / "built" / "m.rejected.engine").manifest.checks[0].passed
    kept = here.build(model, "fp32", allow_fallback=True, name="kept").manifest
    assert "output 'y' has 12.0 dB" in kept.warnings
