"""EPContext files of whole networks, built for all GPUs that the provider takes: inputs of int64, two dynamic
axes, several profiles and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from road_models import COMPACT, started

import qcompile
from qcompile.artifact import load_artifact
from qcompile.deploy import package_ep_context
from qcompile.model.onnx_file import model_io

pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")

EXTENTS = {"batch": (1, 4, 8), "length": (16, 32, 64)}
GPUS = ["sm86", "sm89", "sm120"]


def profile(inputs: list[str], times: int) -> str:
    """One profile of a recipe's inputs, its largest extents so many times as large."""
    parts = []
    for spelling in inputs:
        name, shape = spelling.split(":")[:2]
        axes = [EXTENTS.get(axis, (axis,) * 3) for axis in shape.strip("[]").split(",")]
        kinds = ["x".join(str(axis[kind]) for axis in axes) for kind in range(3)]
        low, opt, high = kinds if times == 1 else [kinds[2]] * 3
        parts.append(f"{name}:{low}..{opt}..{high}")
    return ",".join(parts)


@pytest.mark.parametrize("name", ["bert-length", "unet"])
def test_a_network_is_packaged_for_every_gpu_of_the_provider(name: str, tmp_path: Path) -> None:
    recipe = COMPACT[name]
    torch.manual_seed(0)
    model, engine = tmp_path / "m.onnx", tmp_path / "m.engine"
    qcompile.export(started(recipe.make()), model, inputs=recipe.inputs)
    profiles = [profile(list(recipe.inputs), times) for times in (1, 2)]
    options: dict[str, Any] = {"precision": "fp16", "tensorrt": {"profiles": profiles}}
    qcompile.build(model, engine, target="tensorrt-rtx", gpus=GPUS, **options)
    packaged = package_ep_context(engine, tmp_path / "m_ctx.onnx")
    assert any(text.startswith("2 optimization profiles: the first is used") for text in packaged.warnings)
    assert packaged.architecture == "86,89,120"
    assert [check.passed for check in packaged.checks] == [True] * 5
    written = model_io(onnx.load(packaged.path))
    assert written == load_artifact(engine).manifest.io
    assert [tensor.name for tensor in written.inputs] == [text.split(":")[0] for text in recipe.inputs]
    assert len(load_artifact(packaged.path).manifest.proof["profiles"]) == 2  # type: ignore[arg-type]
