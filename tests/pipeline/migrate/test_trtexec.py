"""What options of trtexec become, by what the sources of trtexec say that they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from issue_models import assert_keys_are_there, issue_model, write_cache

import qcompile
from qcompile.calibration import load_ranges
from qcompile.errors import InvalidOption, MissingFile
from qcompile.pipeline.migrate import Migration
from qcompile.pipeline.recipe import Recipe, read_recipe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with `m.onnx`: image [batch,3,h,w], ids [batch,16] of int64, flag [2]."""
    monkeypatch.chdir(tmp_path)
    inputs = {"image": ("batch", 3, "h", "w"), "ids": ("batch", 16), "flag": (2,)}
    model = issue_model(inputs, types={"ids": "int64"}, layers=["/a/Conv", "/b[0]/Conv"])
    onnx.save(model, "m.onnx")
    np.savez("samples.npz", image=np.ones((2, 3, 4, 4), np.float32), flag=np.ones((2, 2), np.float32))
    return tmp_path


def migrated(options: str, target: str = "tensorrt", **more: Any) -> tuple[Recipe, Migration]:
    done = qcompile.migrate(f"trtexec --onnx=m.onnx {options}", target=target, **more)
    assert_keys_are_there(done)
    return read_recipe(done.recipe), done


def fate(done: Migration, typed: str) -> tuple[str, str]:
    (one,) = [one for one in done.outcomes if one.flag.startswith(typed)]
    return one.fate, one.to


ALL = "image:4x3x8x8,ids:4x16"


@pytest.mark.parametrize(
    ("options", "precision", "float_precision"),
    [
        ("", "tf32", "fp32"),  # the builder's TF32 flag stays set: sampleEngines.cpp only clears it
        ("--noTF32", "fp32", "fp32"),
        ("--fp16", "fp16", "fp32"),
        ("--fp16 --noTF32", "fp16", "fp32"),
        ("--bf16", "bf16", "fp32"),
        ("--fp16 --bf16", "fp16", "fp32"),
        ("--int8", "int8", "fp32"),
        ("--int8 --fp16", "int8", "fp16"),
        ("--int8 --bf16", "int8", "bf16"),
        ("--int8 --fp16 --bf16", "int8", "fp16"),
        ("--best", "best", "fp32"),
        ("--best --fp16 --int8", "best", "fp32"),
        ("--fp8 --fp16", "fp8", "fp16"),
        ("--stronglyTyped", "tf32", "fp32"),
        ("--stronglyTyped --fp16", "tf32", "fp32"),  # disableAndLog
        ("--int4", "tf32", "fp32"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_precisions(options: str, precision: str, float_precision: str) -> None:
    recipe, done = migrated(options, data="samples.npz")
    (artifact,) = recipe.artifact
    assert (artifact.precision, artifact.floats) == (precision, float_precision)
    assert not done.missing
    assert bool(recipe.data.calibration) == (precision in ("int8", "fp8", "best"))


@pytest.mark.parametrize("options", ["--int8", "--best", "--int8 --fp16", "--int8 --calib=not-there.cache"])
@pytest.mark.usefixtures("folder")
def test_int8_without_scales_is_not_done_in_silence(options: str) -> None:
    """trtexec takes placeholder ranges (setTensorDynamicRange) or random input (RndInt8Calibrator)."""
    with pytest.raises(InvalidOption, match="needs real samples") as caught:
        migrated(options)
    random = "random numbers" if "calib" in options else "placeholder ranges"
    assert random in caught.value.message
    assert caught.value.data["option"] == "data"
    assert not Path("recipe.toml").exists()


def test_a_calibration_cache_becomes_ranges_of_the_model(folder: Path) -> None:
    model = onnx.load("m.onnx")
    write_cache(model, folder / "m.cache")
    recipe, done = migrated("--int8 --calib=m.cache")
    assert (recipe.calibrate.ranges, recipe.data.calibration) == ("recipe.ranges", "")
    assert done.ranges is not None
    ranges = load_ranges(done.ranges)
    assert ranges.amax("image") == 127 * np.frombuffer(b"\0\0\0\x3d", "<f4")[0]
    assert set(ranges.fixed) == {v.name for v in model.graph.input} | {
        name for node in model.graph.node for name in node.output
    }
    _, without = migrated("--calib=m.cache")
    assert (fate(without, "--calib"), without.ranges) == (("unneeded", ""), None)
    _, instead = migrated("--int8 --calib=m.cache", data="samples.npz")
    assert (fate(instead, "--calib"), instead.ranges) == (("unneeded", ""), None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # processShapes: what is not given follows from what is
        ("--minShapes={0} --optShapes={0} --maxShapes={1}", {"min": "4", "opt": "4", "max": "9"}),
        ("--optShapes={0}", {"opt": "4"}),
        ("--minShapes={0} --maxShapes={1}", {"min": "4", "max": "9"}),
        ("--shapes={0}", {"opt": "4"}),  # AllOptions::parse: min, opt and max are the same
        ("--minShapes={0} --maxShapes={1} --shapes={0}", {"min": "4", "max": "9"}),
        ("--minShapes='image':4x3x8x8,'ids':4x16 --maxShapes={1}", {"min": "4", "max": "9"}),
    ],
)
@pytest.mark.usefixtures("folder")
def test_shapes(options: str, expected: dict[str, str]) -> None:
    recipe, done = migrated(options.format(ALL, ALL.replace(":4x", ":9x")))
    (artifact,) = recipe.artifact
    for kind in ("min", "opt", "max"):
        batch = expected.get(kind)
        wanted = (f"image:{batch}x3x8x8", f"ids:{batch}x16") if batch else ()
        assert getattr(artifact, f"{kind}_shapes") == wanted
    assert not done.missing


@pytest.mark.usefixtures("folder")
def test_a_dynamic_input_without_shapes_gets_one_everywhere_as_trtexec_gives_it() -> None:
    """setupNetworkAndConfig: "Automatically overriding shape to"."""
    recipe, _ = migrated("--optShapes=ids:1x16")
    assert recipe.artifact[0].opt_shapes == ("ids:1x16", "image:1x3x1x1")
    recipe, _ = migrated("")
    assert recipe.artifact[0].opt_shapes == ("image:1x3x1x1", "ids:1x16")


@pytest.mark.usefixtures("folder")
def test_several_profiles_and_names_with_a_star() -> None:
    recipe, done = migrated(
        "--profile=1 --minShapes=im*:2x3x4x4,ids:2x16 --maxShapes=im*:4x3x4x4,ids:4x16 "
        f"--profile=0 --optShapes={ALL} --useProfile=1"
    )
    assert recipe.artifact[0].tensorrt.profiles == (
        "image:4x3x8x8..4x3x8x8..4x3x8x8,ids:4x16..4x16..4x16",
        "image:2x3x4x4..4x3x4x4..4x3x4x4,ids:2x16..4x16..4x16",
    )
    assert not done.missing


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--optShapes=imge:1x3x8x8", "has no input 'imge'"),
        ("--optShapes=image:1x4x8x8", "input 'image' is [batch,3,h,w]; 1x4x8x8 does not fit"),
        ("--optShapes=image:1x3x8", "does not fit"),
        ("--optShapes=image:ax3x8x8", "is no shape"),
        ("--optShapes=image", "is not NAME:VALUE"),
        ("--precisionConstraints=always", "obey, prefer or none is required"),
        ("--memPoolSize=workspace:lots", "is no size"),
        ("--memPoolSize=dram:1", "no pool 'dram'"),
        ("--tacticSources=CUDNN", "it writes +NAME or -NAME"),
        ("--builderOptimizationLevel=high", "is no whole number"),
        ("--saveEngine", "a value is required"),
        ("--inputIOFormats=fp16:chw,fp16:chw", "2 are given for 3: image, ids, flag"),
        ("--builderOptimizationLevel=9", "--builderOptimizationLevel=9: is 9; at most 5 is required"),
        (f"--maxShapes={ALL.replace('4', '9')} --shapes={ALL}", "--shapes="),
        ("--sparsity=some", "disable, enable or force is required"),
        ("--fp16 model.onnx", "belongs to no option"),
        ("\u2014fp16", "belongs to no option"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_value_is_an_error_and_writes_nothing(options: str, said: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        migrated(options)
    assert said in str(caught.value)
    assert not Path("recipe.toml").exists()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("--workspace=4096", {"workspace": "4096M"}),
        ("--memPoolSize=workspace:1024.5", {"workspace": "1024.5M"}),
        ("--memPoolSize=workspace:2G", {"workspace": "2G"}),
        ("--memPoolSize=tacticSharedMem:48K", {"memory_pools": ("tactic-shared-memory=48K",)}),
        ("--memPoolSize=dlaSRAM:1 --useDLACore=0", {"memory_pools": ("dla-managed-sram=1M",), "dla_core": 0}),
        ("--builderOptimizationLevel=5", {"optimization_level": 5}),
        ("--heuristic", {"optimization_level": 2}),
        ("--timingCacheFile=t.cache", {"timing_cache": "t.cache"}),
        ("--noBuilderCache", {"timing_cache": "off"}),
        ("--refit", {"refit": True}),
        ("--stripWeights", {"strip_weights": True}),
        ("--weightless", {"strip_weights": True}),
        ("--stripAllWeights", {"strip_weights": True, "refit": True}),
        ("--vc", {"version_compatible": True}),
        (
            "--versionCompatible --excludeLeanRuntime",
            {"version_compatible": True, "exclude_lean_runtime": True},
        ),
        ("--hardwareCompatibilityLevel=ampere+", {"hardware_compatible": "ampere+"}),
        ("--hardwareCompatibilityLevel=sameComputeCapability", {"hardware_compatible": "same-sm"}),
        ("--sparsity=enable", {"sparse_weights": True}),
        ("--maxAuxStreams=4", {"aux_streams": 4}),
        (
            "--tilingOptimizationLevel=3 --l2LimitForTiling=1048576",
            {"tiling_level": 3, "tiling_l2_limit": "1048576"},
        ),
        ("--device=1", {"device": 1}),
        ("--tacticSources=-JIT_CONVOLUTIONS,-CUDNN", {"tactic_sources": ("edge-mask-convolutions",)}),
        ("--plugins=a.so --staticPlugins=b.so --dynamicPlugins=c.so", {"plugins": ("a.so", "b.so", "c.so")}),
        ("--useDLACore=1 --allowGPUFallback", {"dla_core": 1, "gpu_fallback": True}),
        ("--inputIOFormats=fp16:chw,int32:chw,fp32:chw", {"io_formats": ("image=float16", "ids=int32")}),
        ("--inputIOFormats=fp16:hwc8+chw,int64:chw,fp32:chw", {"io_formats": ("image=float16:hwc8",)}),
        (
            "--inputIOFormats=fp16:dla_hwc4,int64:chw,fp32:chw --useDLACore=0",
            {"io_formats": ("image=float16:dla_hwc4",), "dla_core": 0},
        ),
        (
            "--outputIOFormats=hwc8,chw,chw",
            {"io_formats": ("image_out=:hwc8",)},
        ),  # from 11.1 on without types
    ],
)
@pytest.mark.usefixtures("folder")
def test_options_of_the_build(options: str, kept: dict[str, object]) -> None:
    recipe, done = migrated(options)
    defaults = {"timing_cache": "auto"}
    tensorrt = recipe.artifact[0].tensorrt
    assert {name: getattr(tensorrt, name) for name in kept} == kept
    assert set(tensorrt.as_json()) == set(kept) - {name for name in kept if kept[name] == defaults.get(name)}
    assert not done.missing


@pytest.mark.parametrize(
    ("options", "target", "expected"),
    [
        ("--inputIOFormats=fp32:chw,int64:chw,fp32:chw", "tensorrt", "unneeded"),
        ("--inputIOFormats=int8:chw32,int64:chw,fp32:chw", "tensorrt", "missing"),
        ("--inputIOFormats=fp16:chw16,int64:chw,fp32:chw", "tensorrt", "missing"),
        ("--tacticSources=-CUDNN,-CUBLAS", "tensorrt", "unneeded"),
        ("--tacticSources=+CUBLAS", "tensorrt", "missing"),
        ("--sparsity=disable", "tensorrt", "unneeded"),
        ("--l2LimitForTiling=1048576", "tensorrt", "unneeded"),
        ("--sparsity=force", "tensorrt", "missing"),
        ("--timingCacheFile=t.cache", "tensorrt-rtx", "unneeded"),
        ("--noBuilderCache", "tensorrt-rtx", "unneeded"),
        ("--hardwareCompatibilityLevel=none", "tensorrt", "unneeded"),
        ("--hardwareCompatibilityLevel=ampere+", "tensorrt-rtx", "missing"),
        ("--useDLACore=0", "tensorrt-rtx", "missing"),
        ("--memPoolSize=dlaSRAM:1", "tensorrt-rtx", "missing"),
        ("--allowGPUFallback", "tensorrt-rtx", "unneeded"),
        ("--allowGPUFallback", "tensorrt", "unneeded"),
        ("--excludeLeanRuntime", "tensorrt", "unneeded"),
        ("--device=0", "tensorrt", "unneeded"),
        ("--buildDLAStandalone", "tensorrt", "missing"),
        ("--percentile=50,99", "tensorrt", "kept"),
        ("--percentile=95", "tensorrt", "missing"),
        ("--explicitBatch", "tensorrt", "unneeded"),
        ("--batch=8", "tensorrt", "missing"),
        ("--verbose", "tensorrt", "unneeded"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_becomes_of_an_option_depends_on_its_value_and_the_target(
    options: str, target: str, expected: str
) -> None:
    _, done = migrated(options, target)
    assert fate(done, options.partition("=")[0])[0] == expected
    assert bool(done.missing) == (expected == "missing")
    (one,) = [one for one in done.outcomes if one.flag == options]
    assert one.note or expected == "kept"


@pytest.mark.parametrize(
    ("options", "layers", "expected"),
    [
        ("--layerPrecisions=/a/Conv:fp32", (), "unneeded"),  # constraints are none by default
        ("--precisionConstraints=obey --layerPrecisions=/a/Conv:fp32", ("/a/Conv=fp32",), "kept"),
        ("--precisionConstraints=prefer --layerOutputTypes=/a/Conv:fp32", ("/a/Conv=fp32",), "kept"),
        (
            "--precisionConstraints=obey --layerPrecisions=*:fp32,/a/Conv:fp16",
            ("*=fp32", "/a/Conv=fp16"),
            "kept",
        ),
        ("--precisionConstraints=obey --layerPrecisions=/b[0]/Conv:fp32", ("/b[[]0]/Conv=fp32",), "kept"),
        ("--precisionConstraints=obey --layerPrecisions=/b*:fp32", ("/b*=fp32",), "kept"),
        ("--precisionConstraints=obey --layerPrecisions=nothing:fp32", (), "missing"),
        ("--precisionConstraints=obey --layerPrecisions=/a/Conv:int8", (), "missing"),
        ("--precisionConstraints=obey --layerPrecisions=/a/Conv:bf16", (), "missing"),
        ("--precisionConstraints=obey --layerPrecisions=/a/Conv:int32", (), "unneeded"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_precisions_of_layers(options: str, layers: tuple[str, ...], expected: str) -> None:
    recipe, done = migrated(f"--fp16 {options}")
    assert recipe.artifact[0].layers == layers
    assert fate(done, "--layer")[0] == expected


@pytest.mark.parametrize(
    ("options", "simplify"),
    [
        ("--fp16", False),
        ("--int8", True),
        ("--int8 --calib=not-there.cache", True),
        ("--int8 --fp16 --precisionConstraints=obey --layerPrecisions=/a/Conv:fp16", False),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_graph_is_folded_where_it_is_calibrated_and_no_name_of_it_is_used(
    options: str, simplify: bool
) -> None:
    """TensorRT folds constants and BatchNormalization by itself; INT8 is placed before it could."""
    recipe, _ = migrated(options, data="samples.npz")
    assert recipe.model.simplify == simplify


@pytest.mark.usefixtures("folder")
def test_layers_in_a_precision_that_is_not_permitted_are_named() -> None:
    """TensorRT refuses it: "fp16 has been set for a layer ... but fp16 is not configured" (issue 3612)."""
    _, done = migrated("--precisionConstraints=obey --layerPrecisions=/a/Conv:fp16")
    assert [one.flag.partition("=")[0] for one in done.missing] == [
        "--precisionConstraints",
        "--layerPrecisions",
    ]


@pytest.mark.parametrize(
    ("options", "measured"),
    [
        ("", True),
        ("--saveEngine=e.engine", False),
        ("--saveEngine=e.engine --duration=10", True),
        ("--saveEngine=e.engine --useCudaGraph", True),
        ("--skipInference", False),
        ("--buildOnly --duration=10", False),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_trtexec_measures_is_measured(options: str, measured: bool) -> None:
    recipe, _ = migrated(f"{options} --optShapes={ALL}")
    assert (recipe.bench is not None) == measured
    if recipe.bench is not None:
        assert recipe.bench.batch_size == 4


@pytest.mark.usefixtures("folder")
def test_graphs_and_layer_times_are_those_of_trtexec() -> None:
    options = {"useCudaGraph": (True, False), "noCudaGraph": (False, False), "dumpProfile": (None, True)}
    for option, expected in options.items():
        bench = migrated(f"--saveEngine=e.engine --{option} --optShapes={ALL}")[0].bench
        assert (bench and (bench.cuda_graph, bench.layer_times)) == expected


def test_paths_are_relative_to_the_recipe(folder: Path) -> None:
    (folder / "in").mkdir()
    Path("m.onnx").rename("in/m.onnx")
    done = qcompile.migrate(
        "docker run -v $PWD/in:/models trt trtexec --onnx=/models/m.onnx --plugins=/models/p.so "
        "--plugins=/opt/q.so",
        "recipes/one.toml",
    )
    recipe = read_recipe(done.recipe)
    assert recipe.model.source == "../in/m.onnx"
    assert recipe.artifact[0].tensorrt.plugins == ("../in/p.so", "/opt/q.so")
    assert (recipe.folder / recipe.model.source).is_file()


@pytest.mark.usefixtures("folder")
def test_a_model_that_is_not_there_is_named_with_the_way_out() -> None:
    with pytest.raises(MissingFile, match=r"model /workspace/m\.onnx does not exist") as caught:
        qcompile.migrate("trtexec --onnx=/workspace/m.onnx")
    assert "`paths` /workspace/m.onnx=FILE" in caught.value.hint
    done = qcompile.migrate("trtexec --onnx=/workspace/m.onnx", paths=["/workspace=."])
    assert read_recipe(done.recipe).model.source == "m.onnx"


@pytest.mark.usefixtures("folder")
def test_variables_in_front_are_kept_or_named() -> None:
    done = qcompile.migrate(
        "NVIDIA_TF32_OVERRIDE=0 CUDA_VISIBLE_DEVICES=1 LD_PRELOAD=p.so trtexec --onnx=m.onnx"
    )
    assert read_recipe(done.recipe).artifact[0].precision == "fp32"
    assert [one.fate for one in done.outcomes[1:]] == ["kept", "unneeded", "missing"]
