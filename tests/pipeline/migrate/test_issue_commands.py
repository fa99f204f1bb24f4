"""Command lines of public issues: each becomes a recipe that TensorRT-RTX builds, with the precision proven,
or the option that has no equal is named.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import onnx
import pytest
from issue_models import (
    COMMANDS,
    REFUSED,
    IssueCommand,
    assert_keys_are_there,
    issue_model,
    write_cache,
    write_loader,
    write_samples,
)

import qcompile
from qcompile.artifact import Manifest, read_manifest
from qcompile.errors import CalibrationError, InvalidOption
from qcompile.pipeline.migrate.intent import RTX, flags_of
from qcompile.pipeline.migrate.migration import Migration
from qcompile.pipeline.recipe import read_recipe

pytest.importorskip("tensorrt_rtx")


def prepare(one: IssueCommand, folder: Path) -> onnx.ModelProto:
    """Write the model, and what the command names beside it."""
    model = issue_model(one.inputs, types=one.types, layers=one.layers)
    path = folder / one.model
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    write_samples(model, folder / "samples.npz")
    if one.cache:
        write_cache(model, folder / one.cache)
    if one.loader:
        write_loader(model, folder / one.loader, extent=32)
    if one.quantized:
        ranges = qcompile.calibrate(path, folder / "samples.npz", folder / "float.ranges").path
        onnx.save(model, folder / "float.onnx")
        qcompile.quantize(folder / "float.onnx", path, ranges=ranges, target="tensorrt")
    return model


def built(recipe: Path) -> Manifest:
    """The manifest of the engine that a recipe makes, without measuring: no GPU is here."""
    text = recipe.read_text().partition("\n[bench]")[0]
    recipe.with_name("build.toml").write_text(text)
    report = qcompile.run(recipe.with_name("build.toml"))
    assert not report.failures
    (artifact,) = report.artifacts.values()
    manifest = read_manifest(artifact)
    assert manifest is not None
    return manifest


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: "#".join(one.source.split("/")[-3::2]))
def test_a_command_of_an_issue_builds_with_the_precision_it_meant(
    one: IssueCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(one, tmp_path)
    options = {"target": "tensorrt-rtx", "gpus": ["sm86"], "paths": one.paths}
    if one.data:
        with pytest.raises(InvalidOption, match=r"`data` is missing: \w+ needs real samples") as caught:
            qcompile.migrate(one.command, **options)
        assert caught.value.exit_code == 2
        assert not Path("recipe.toml").exists()
        options["data"] = "samples.npz"
    done = qcompile.migrate(one.command, **options)
    assert len(done.missing) == len(one.missing)
    assert all(said.flag.startswith(flag) for said, flag in zip(done.missing, one.missing, strict=True))
    assert all(said.note for said in done.outcomes if said.fate != "kept")
    assert_keys_are_there(done)
    recipe = read_recipe(done.recipe)
    assert recipe.artifact[0].floats == ("fp32" if recipe.artifact[0].precision == "best" else one.floats)

    manifest = built(done.recipe)
    assert manifest.precision == one.precision
    assert manifest.proof["reached_in_precision"] == manifest.proof["planned_in_precision"]
    assert one.precision in manifest.proof["layers_by_precision"]
    assert (done.ranges is not None) == bool(one.cache)
    diff = shlex.split(done.then[1])[4:] if len(done.then) > 1 else None
    assert diff == (None if one.compares is None else list(one.compares))
    for layer, precision in one.by_layer.items():
        assert f"{layer}={precision}" in recipe.artifact[0].layers
        # TensorRT-RTX may narrow an FP32 layer between FP16 ones; the manifest says so.
        said = [text for text in manifest.warnings if "in fp32" in text and layer in text]
        assert said or precision in manifest.proof["layers_by_precision"]


def test_a_cache_that_tensorrt_would_ignore_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT issue 3612: "quantization data is missing" for every layer, and the engine was built."""
    monkeypatch.chdir(tmp_path)
    one = next(one for one in COMMANDS if one.source.endswith("/3612"))
    prepare(one, tmp_path)
    other = issue_model({"images": (1, 3, 32, 32), "more": (1, 4, 8)})
    write_cache(other, tmp_path / one.cache)
    with pytest.raises(CalibrationError, match=r"names 2 of 9 tensors that model\.onnx does not have: more"):
        qcompile.migrate(one.command)
    assert not list(tmp_path.glob("recipe.*"))


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: "#".join(row["source"].split("/")[-3::2]))
def test_a_command_that_the_tool_refuses_or_that_builds_nothing_is_an_error(
    row: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(issue_model({"images": (1, 3, 32, 32)}), "model.onnx")
    with pytest.raises(qcompile.QCompileError) as caught:
        qcompile.migrate(row["command"])
    assert caught.value.exit_code == 2
    assert row["says"] in caught.value.message
    assert row["hint"] in caught.value.hint
    assert not Path("recipe.toml").exists()


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
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with `m.onnx`."""
    monkeypatch.chdir(tmp_path)
    onnx.save(issue_model({"images": ("batch", 3, 32, 32)}), "m.onnx")
    return tmp_path


def migrated(options: str) -> Migration:
    command = f"trtexec --onnx=m.onnx --fp16 --skipInference {options}"
    return qcompile.migrate(command, target=RTX, gpus=["sm86", "sm120"])


@pytest.mark.usefixtures("images")
def test_what_is_kept_is_taken_by_the_builder() -> None:
    done = migrated(" ".join(TAKEN))
    assert not done.missing
    manifest = built(done.recipe)
    asked = read_recipe(done.recipe).artifact[0].tensorrt.as_json()
    assert {name: manifest.options[name] for name in asked} == asked
    assert len(asked) == 13
    assert manifest.proof["layers_by_precision"] == {"fp16": {"CONVOLUTION": 2}}


@pytest.mark.parametrize("options", REFUSED)
def test_what_is_not_kept_is_refused_by_the_builder(options: str, images: Path) -> None:
    done = migrated(options)
    assert not read_recipe(done.recipe).artifact[0].tensorrt.as_json()
    with pytest.raises(InvalidOption):
        qcompile.build(
            "m.onnx", images / "m.engine", target=RTX, gpus=["sm86"], precision="fp16",
            max_shapes=["images:1x3x32x32"], tensorrt=REFUSED[options],
        )  # fmt: skip


def test_each_row_that_differs_for_rtx_is_looked_at_here() -> None:
    differing = {flag.name for flag in flags_of("trtexec").values() if flag.rtx_fate}
    of_timing = {"errorOnTimingCacheMiss", "minTiming", "avgTiming", "maxTactics"}
    assert differing == of_timing | {
        "setBuildRoute", "useDLACore", "allowGPUFallback", "hardwareCompatibilityLevel", "timingCacheFile",
    }  # fmt: skip
