"""What the tables say of TensorRT-RTX is what its real builder says."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from issue_models import issue_model

import qcompile
from qcompile.artifact import read_manifest
from qcompile.errors import InvalidOption
from qcompile.pipeline.migrate.intent import RTX, flags_of
from qcompile.pipeline.recipe import read_recipe

pytest.importorskip("tensorrt_rtx")
TAKEN = (
    "--workspace=1024", "--memPoolSize=tacticSharedMem:48K", "--builderOptimizationLevel=2",
    "--sparsity=enable", "--maxAuxStreams=1", "--tacticSources=-JIT_CONVOLUTIONS",
    "--allowWeightStreaming --weightStreamingBudget=50%", "--allocationStrategy=runtime",
    "--tilingOptimizationLevel=1 --l2LimitForTiling=1048576", "--inputIOFormats=fp16:hwc8",
    "--versionCompatible --excludeLeanRuntime", "--noBuilderCache",
)  # fmt: skip
REFUSED = {
    "--useDLACore=0": {"dla_core": 0},
    "--hardwareCompatibilityLevel=ampere+": {"hardware_compatible": "ampere+"},
    "--setBuildRoute=-a=off": {"build_route": "-a=off"},
    "--timingCacheFile=t.cache": {"timing_cache": "t.cache"},
    "--memPoolSize=dlaSRAM:1 --useDLACore=0": {"memory_pools": ["dla-managed-sram=1M"]},
}
"""Options that the tables do not keep for TensorRT-RTX, and what they would become."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with `m.onnx`."""
    monkeypatch.chdir(tmp_path)
    onnx.save(issue_model({"images": ("batch", 3, 32, 32)}), "m.onnx")
    return tmp_path


def migrated(options: str) -> qcompile.pipeline.migrate.Migration:
    command = f"trtexec --onnx=m.onnx --fp16 --skipInference {options}"
    return qcompile.migrate(command, target=RTX, gpus=["sm86", "sm120"])


@pytest.mark.usefixtures("folder")
def test_what_is_kept_is_taken_by_the_builder() -> None:
    done = migrated(" ".join(TAKEN))
    assert not done.missing
    report = qcompile.run(done.recipe)
    assert not report.failures
    (artifact,) = report.artifacts.values()
    manifest = read_manifest(artifact)
    assert manifest is not None
    asked = read_recipe(done.recipe).artifact[0].tensorrt.as_json()
    assert {name: manifest.options[name] for name in asked} == asked
    assert len(asked) == 13
    assert manifest.proof["layers_by_precision"] == {"fp16": {"CONVOLUTION": 2}}


@pytest.mark.parametrize("options", REFUSED)
def test_what_is_not_kept_is_refused_by_the_builder(options: str, folder: Path) -> None:
    done = migrated(options)
    assert not read_recipe(done.recipe).artifact[0].tensorrt.as_json()
    with pytest.raises(InvalidOption):
        qcompile.build(
            "m.onnx", folder / "m.engine", target=RTX, gpus=["sm86"], precision="fp16",
            max_shapes=["images:1x3x32x32"], tensorrt=REFUSED[options],
        )  # fmt: skip


def test_each_row_that_differs_for_rtx_is_looked_at_here() -> None:
    differing = {flag.name for flag in flags_of("trtexec").values() if flag.rtx_fate}
    of_timing = {"errorOnTimingCacheMiss", "minTiming", "avgTiming", "maxTactics"}
    assert differing == of_timing | {
        "setBuildRoute", "useDLACore", "allowGPUFallback", "hardwareCompatibilityLevel", "timingCacheFile",
    }  # fmt: skip
