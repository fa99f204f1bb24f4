"""What options of Polygraphy become, by what its sources say that they do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import onnx
import pytest
from issue_models import assert_keys_are_there, issue_model, write_cache, write_loader

import qcompile
from qcompile.cli.diff import diff
from qcompile.errors import InvalidOption
from qcompile.pipeline.migrate import Migration
from qcompile.pipeline.recipe import Recipe, read_recipe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with `m.onnx`: image [batch,3,8,8], ids [batch,16] of int64."""
    monkeypatch.chdir(tmp_path)
    model = issue_model({"image": ("batch", 3, 8, 8), "ids": ("batch", 16)}, types={"ids": "int64"})
    onnx.save(model, "m.onnx")
    write_loader(model, tmp_path / "loader.py")
    write_cache(model, tmp_path / "m.cache")
    return tmp_path


def migrated(options: str, target: str = "tensorrt", **more: Any) -> tuple[Recipe, Migration]:
    done = qcompile.migrate(f"polygraphy {options}", target=target, **more)
    assert_keys_are_there(done)
    return read_recipe(done.recipe), done


def fate(done: Migration, typed: str) -> str:
    (one,) = [one for one in done.outcomes if one.flag.startswith(typed)]
    return one.fate


@pytest.mark.parametrize(
    ("options", "precision", "float_precision"),
    [
        ("", "fp32", "fp32"),  # config.py clears the flag TF32 where it is not asked for
        ("--tf32", "tf32", "fp32"),
        ("--fp16", "fp16", "fp32"),
        ("--fp16 --tf32", "fp16", "fp32"),
        ("--bf16", "bf16", "fp32"),
        ("--int8 --fp16 --calibration-cache m.cache", "int8", "fp16"),
        ("--int8 --data-loader-script loader.py", "int8", "fp32"),
        ("--strongly-typed", "fp32", "fp32"),
        ("--fp-to-fp16", "fp16", "fp32"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_precisions(options: str, precision: str, float_precision: str) -> None:
    for command in (f"convert m.onnx {options} -o e.engine", f"run m.onnx --trt {options}"):
        recipe, done = migrated(command)
        (artifact,) = recipe.artifact
        assert (artifact.precision, artifact.floats) == (precision, float_precision)
        assert not done.missing


@pytest.mark.usefixtures("folder")
def test_calibration() -> None:
    recipe, done = migrated("convert m.onnx -o e.engine --int8 --data-loader-script loader.py")
    assert (recipe.data.calibration, recipe.calibrate.ranges) == ("loader.py:load_data", "")
    recipe, _ = migrated("convert m.onnx -o e.engine --int8 --data-loader-script ./loader.py:other")
    assert recipe.data.calibration == "loader.py:other"
    recipe, _ = migrated(
        "convert m.onnx -o e.engine --int8 --data-loader-script loader.py --data-loader-func-name old"
    )
    assert recipe.data.calibration == "loader.py:old"
    # a cache that is there is read, and the loader is not (the help of the option)
    recipe, done = migrated(
        "convert m.onnx -o e.engine --int8 --data-loader-script loader.py --calibration-cache m.cache"
    )
    assert (recipe.data.calibration, recipe.calibrate.ranges) == ("", "recipe.ranges")
    assert fate(done, "--data-loader-script") == "unneeded"
    recipe, done = migrated(
        "convert m.onnx -o e.engine --int8 --data-loader-script loader.py --calibration-cache new.cache "
        "--calib-base-cls IInt8MinMaxCalibrator"
    )
    assert (recipe.data.calibration, recipe.calibrate.method) == ("loader.py:load_data", "minmax")
    assert fate(done, "--calibration-cache") == "unneeded"
    with pytest.raises(InvalidOption, match="calibrates on random numbers from 0 to 1"):
        migrated("convert m.onnx -o e.engine --int8 --calibration-cache new.cache")
    _, done = migrated(
        "convert m.onnx -o e.engine --int8 --data-loader-script loader.py --calib-base-cls "
        "IInt8LegacyCalibrator --quantile 0.5"
    )
    assert [one.name for one in done.missing] == ["calib-base-cls", "quantile"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"opt": ("image:1x3x8x8", "ids:1x16")}),
        ("--input-shapes image:[4,3,8,8] ids:[4,16]", {"opt": ("image:4x3x8x8", "ids:4x16")}),
        (
            "--trt-min-shapes image:[1,3,8,8] ids:[1,16] --trt-max-shapes image:[8,3,8,8] ids:[8,16]",
            {"min": ("image:1x3x8x8", "ids:1x16"), "max": ("image:8x3x8x8", "ids:8x16")},
        ),
        ("--trt-opt image:[2,3,8,8] ids:[2,16]", {"opt": ("image:2x3x8x8", "ids:2x16")}),
    ],
)
@pytest.mark.usefixtures("folder")
def test_shapes(options: str, expected: dict[str, tuple[str, ...]]) -> None:
    recipe, done = migrated(f"convert m.onnx -o e.engine {options}")
    for kind in ("min", "opt", "max"):
        assert getattr(recipe.artifact[0], f"{kind}_shapes") == expected.get(kind, ())
    assert not done.missing


@pytest.mark.usefixtures("folder")
def test_shapes_given_again_make_another_profile() -> None:
    recipe, _ = migrated(
        "convert m.onnx -o e.engine --trt-min-shapes image:[1,3,8,8] ids:[1,16] --trt-max-shapes "
        "image:[4,3,8,8] ids:[4,16] --trt-min-shapes image:[5,3,8,8] ids:[5,16] --trt-max-shapes "
        "image:[9,3,8,8] ids:[9,16]"
    )
    assert recipe.artifact[0].tensorrt.profiles == (
        "image:1x3x8x8..4x3x8x8..4x3x8x8,ids:1x16..4x16..4x16",
        "image:5x3x8x8..9x3x8x8..9x3x8x8,ids:5x16..9x16..9x16",
    )


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("--pool-limit workspace:1G", {"workspace": "1G"}),
        ("--pool-limit workspace:1e9", {"workspace": "1000000000"}),
        ("--workspace=512M", {"workspace": "512M"}),
        ("--memory-pool-limit tactic_shared_memory:48K", {"memory_pools": ("tactic-shared-memory=48K",)}),
        ("--builder-optimization-level 5", {"optimization_level": 5}),
        ("--load-timing-cache t.cache", {"timing_cache": "t.cache"}),
        ("--refittable", {"refit": True}),
        ("--strip-plan", {"strip_weights": True}),
        ("--version-compatible", {"version_compatible": True}),
        ("--hardware-compatibility-level ampere_plus", {"hardware_compatible": "ampere+"}),
        ("--sparse-weights", {"sparse_weights": True}),
        ("--max-aux-streams 2", {"aux_streams": 2}),
        ("--weight-streaming", {"weight_streaming": "all"}),
        ("--weight-streaming --weight-streaming-budget 10%", {"weight_streaming": "10%"}),
        ("--weight-streaming --weight-streaming-budget 2G", {"weight_streaming": "2G"}),
        ("--tiling-optimization-level moderate", {"tiling_level": 2}),
        ("--allocation-strategy runtime", {"allocation_strategy": "runtime"}),
        ("--tactic-sources", {"tactic_sources": ("none",)}),
        ("--tactic-sources jit_convolutions", {"tactic_sources": ("jit-convolutions",)}),
        ("--plugins a.so b.so", {"plugins": ("a.so", "b.so")}),
        ("--use-dla --allow-gpu-fallback", {"dla_core": 0, "gpu_fallback": True}),
        ("--tensor-dtypes image:float16 ids:int64", {"io_formats": ("image=float16",)}),
        (
            "--tensor-dtypes image:float16 --tensor-formats image:[hwc8]",
            {"io_formats": ("image=float16:hwc8",)},
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_options_of_the_build(options: str, kept: dict[str, object]) -> None:
    recipe, done = migrated(f"convert m.onnx -o e.engine {options}")
    assert {name: getattr(recipe.artifact[0].tensorrt, name) for name in kept} == kept
    assert set(recipe.artifact[0].tensorrt.as_json()) == set(kept)
    assert not done.missing


@pytest.mark.usefixtures("folder")
def test_compute_capabilities_of_tensorrt_rtx() -> None:
    command = (
        "POLYGRAPHY_USE_TENSORRT_RTX=1 polygraphy convert m.onnx -o e.engine --compute-capabilities 8.6 12.0"
    )
    recipe = read_recipe(qcompile.migrate(command).recipe)
    assert (recipe.artifact[0].target, recipe.artifact[0].gpus) == ("tensorrt-rtx", ("sm86", "sm120"))


@pytest.mark.parametrize(
    ("options", "arguments", "missing"),
    [
        ("", [], []),
        ("--atol 1e-3 --rtol 1e-2", ["--atol", "1e-3", "--rtol", "1e-2"], []),
        ("--atol image_out:1e-3 1e-5", ["--atol", "image_out:1e-3", "--atol", "1e-5"], []),
        ("--abs-tol 0.1 --iters 4", ["--atol", "0.1", "--samples", "4"], []),
        ("--trt-outputs mark all --onnx-outputs mark all", ["--layers"], []),
        ("--snr-threshold 20", ["--snr", "20"], []),
        ("--providers cpu --compare simple", [], []),
        ("--providers cuda --compare indices", [], ["providers", "compare"]),
        ("--trt-outputs conv1 --check-error-stat max", [], ["trt-outputs", "check-error-stat"]),
        ("--data-loader-script loader.py", ["--data", "loader.py:load_data"], []),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_comparison_with_onnx_runtime_becomes_diff(
    options: str, arguments: list[str], missing: list[str]
) -> None:
    _, done = migrated(f"run m.onnx --trt --onnxrt --save-engine e.plan {options}")
    assert [one.name for one in done.missing] == missing
    words = shlex.split(done.then[1])
    assert words == ["qcompile", "diff", "m.onnx", "out/e.engine", *arguments]
    diff.make_context("diff", words[2:])  # the verb takes these


@pytest.mark.usefixtures("folder")
def test_without_a_second_runtime_nothing_is_compared() -> None:
    _, done = migrated("run m.onnx --trt --atol 1e-3")
    assert (len(done.then), fate(done, "--atol")) == (1, "unneeded")


@pytest.mark.parametrize(
    "words", ["-v", "-vvv", "--verbose", "-q", "--silent", "--log-file l.txt", "--seed=1"]
)
@pytest.mark.usefixtures("folder")
def test_verbosity_is_not_needed(words: str) -> None:
    _, done = migrated(f"convert {words} m.onnx -o e.engine")
    assert not done.missing
    assert fate(done, words) == "unneeded"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("inspect model m.onnx", "polygraphy inspect: builds no engine to migrate"),
        ("surgeon sanitize m.onnx", "polygraphy surgeon: builds no engine"),
        ("", "polygraphy alone: builds no engine"),
        ("run m.onnx --onnxrt", "runs no TensorRT"),
        ("run m.onnx other.onnx --trt", "'other.onnx' belongs to no option"),
        ("run m.engine --trt", "m.engine"),
        ("run --trt --fp16", "names no ONNX file"),
        ("convert m.onnx -o", "-o: a value is required"),
        ("convert m.onnx -o e --trt-min-shapes image:1,3", "1x3 does not fit"),
        ("convert m.onnx -o e --trt-opt-shapes image:[a,3,8,8]", "is not NAME:[1,3,224,224]"),
        ("convert m.onnx -o e --tensor-dtypes nothing:float16", "no input or output 'nothing'"),
        ("convert m.onnx -o e --tactic-sources cutlass", "'cutlass'"),
        ("convert m.onnx -o e --fp17", "no option --fp17"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_command_is_an_error_and_writes_nothing(options: str, said: str) -> None:
    with pytest.raises(qcompile.QCompileError) as caught:
        migrated(options)
    assert said in str(caught.value)
    assert caught.value.exit_code == 2
    assert not Path("recipe.toml").exists()
