"""A recipe whose scales are there already: in a ranges file, in TensorRT's cache, or as Q/DQ in the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import qcompile
from qcompile.artifact import Manifest, read_manifest
from qcompile.calibration import load_ranges, save_ranges
from qcompile.calibration.tensorrt_cache import format_cache, read_cache
from qcompile.errors import CalibrationError, MissingFile

pytest.importorskip("tensorrt_rtx")
HEAD = """
version = 1
name = "tiny"
[model]
source = "{source}"
simplify = {simplify}
[calibrate]
{calibrate}
[[artifact]]
name = "engine"
target = "tensorrt-rtx"
precision = "int8"
gpus = ["sm86"]
"""
WriteRecipe = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, tiny_file: Callable[..., Path], samples: Callable[..., Path]) -> Path:
    """A folder with residual.onnx, its ranges, and the cache of these."""
    model = tiny_file("residual")
    qcompile.calibrate(model, samples("residual", 16), tmp_path / "m.ranges", method="minmax")
    ranges = load_ranges(tmp_path / "m.ranges")
    (tmp_path / "m.cache").write_text(format_cache(ranges, version="8.5.3"))
    return tmp_path


@pytest.fixture
def recipe(folder: Path) -> WriteRecipe:
    """`recipe(calibrate=TEXT, more=TEXT)` writes a recipe of static INT8 without data."""

    def write(
        calibrate: str = "", *, source: str = "residual.onnx", simplify: str = "false", more: str = ""
    ) -> Path:
        path = folder / "recipe.toml"
        path.write_text(HEAD.format(source=source, simplify=simplify, calibrate=calibrate) + more)
        return path

    return write


def built(path: Path) -> Manifest:
    report = qcompile.run(path)
    manifest = read_manifest(report.artifacts["engine"])
    assert manifest is not None
    return manifest


def test_ranges_and_the_cache_made_of_them_give_the_same_scales(folder: Path, recipe: WriteRecipe) -> None:
    graphs = []
    for name in ("m.ranges", "m.cache"):
        manifest = built(recipe(f'ranges = "{name}"'))
        assert manifest.proof["layers_by_precision"] == {"int8": {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}}
        graphs.append(onnx.load(folder / "out/engine.graph.onnx"))
    scales = [
        {t.name: t.float_data or t.raw_data for t in graph.graph.initializer if "scale" in t.name}
        for graph in graphs
    ]
    assert scales[0] == scales[1] != {}


def test_the_ranges_of_a_cache_are_kept_in_a_file(folder: Path, recipe: WriteRecipe) -> None:
    found = read_cache(folder / "m.cache", folder / "residual.onnx")
    save_ranges(found, folder / "cache.ranges")
    again = load_ranges(folder / "cache.ranges")
    assert (again.fixed, again.model, again.portions) == (found.fixed, found.model, found.portions)
    save_ranges(again, folder / "again.ranges")
    assert (folder / "again.ranges").read_bytes() == (folder / "cache.ranges").read_bytes()
    assert "calibrate" not in qcompile.run(recipe('ranges = "cache.ranges"')).stages
    failed = qcompile.run(recipe('ranges = "cache.ranges"', more='method = "entropy"\n')).failures["engine"]
    assert isinstance(failed, CalibrationError)
    assert "a TensorRT cache has one scale per tensor" in failed.message


def test_other_ranges_build_again_and_the_same_do_not(folder: Path, recipe: WriteRecipe) -> None:
    path = recipe('ranges = "m.ranges"')
    qcompile.run(path)
    assert set(qcompile.run(path).stages.values()) == {"skipped"}
    (folder / "m.ranges").write_bytes((folder / "m.ranges").read_bytes())
    assert set(qcompile.run(path).stages.values()) == {"skipped"}
    cache = (folder / "m.cache").read_text().splitlines()
    (folder / "m.cache").write_text("\n".join([*cache[:-1], cache[-1].rpartition(": ")[0] + ": 3f000000"]))
    assert qcompile.run(recipe('ranges = "m.cache"')).stages["quantize-engine"] == "done"


def test_ranges_that_are_not_there_are_named(recipe: WriteRecipe) -> None:
    with pytest.raises(MissingFile, match=r"ranges file .*n\.ranges does not exist"):
        qcompile.run(recipe('ranges = "n.ranges"'))


@pytest.mark.parametrize("float_precision", ["fp32", "fp16", "bf16"])
def test_a_model_with_qdq_needs_no_ranges_and_its_rest_gets_the_float_precision(
    float_precision: str, folder: Path, recipe: WriteRecipe
) -> None:
    """A weakly typed TensorRT made the rest FP16 by a flag; a strongly typed one takes the graph's types."""
    qcompile.quantize(
        folder / "residual.onnx", folder / "q.onnx", ranges=folder / "m.ranges", target="tensorrt",
        exclude=["gemm"],
    )  # fmt: skip
    more = f'float_precision = "{float_precision}"\n'
    manifest = built(recipe(source="q.onnx", more=more))
    layers = manifest.proof["layers_by_precision"]
    assert layers["int8"] == {"CONVOLUTION": 2}
    assert layers[float_precision] == {"MATRIX_MULTIPLY": 1}


def test_a_file_that_has_half_types_already_keeps_them(folder: Path) -> None:
    """Whoever quantized it chose them."""
    qcompile.quantize(
        folder / "residual.onnx", folder / "q.onnx", ranges=folder / "m.ranges", target="tensorrt",
        exclude=["gemm"], float_precision="fp16",
    )  # fmt: skip
    made = qcompile.build(
        folder / "q.onnx", folder / "q.engine", target="tensorrt-rtx", gpus=["sm86"], precision="int8",
        float_precision="bf16",
    )  # fmt: skip
    assert made.manifest.proof["layers_by_precision"]["fp16"] == {"MATRIX_MULTIPLY": 1}
