"""Files of each format that this version writes: schemas hold for them, and other versions are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from json_schemas import RESULTS, schemas
from jsonschema import Draft202012Validator
from safetensors import safe_open
from torch import nn
from written_models import text_model

import qcompile
from qcompile.bench.diff.layers.compare import layer_diff
from qcompile.bench.diff.layers.outcome import (
    EngineSearch,
    FirstBad,
    Layer,
    LayerDiff,
    Neighbour,
    PairCounts,
    load_layers,
)
from qcompile.bench.report.source import read_source
from qcompile.bench.results.results import load_results, save_results
from qcompile.calibration import load_ranges, save_ranges
from qcompile.core.artifact import read_manifest
from qcompile.core.files import write_json
from qcompile.errors import ArtifactError, CalibrationError

ALL = schemas()
RECIPE = """\
version = 1
name = "small"
[model]
source = "net.onnx"
[data]
calibration = "samples.npz"
[calibrate]
method = "minmax"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
[bench]
max_time_s = 0.1
threads = 1
"""
FILES = {
    "int8.onnx.json": "manifest.schema.json",
    "small.ranges.json": "manifest.schema.json",
    "results.json": RESULTS,
    "layers.json": "layers.schema.json",
    "small.ranges": "ranges.schema.json",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file of `FILES`, as a run of a recipe and `diff` write them."""
    base = tmp_path_factory.mktemp("formats")
    model, random = base / "net.onnx", np.random.default_rng(0)
    w = random.standard_normal((16, 8)).astype(np.float32)
    onnx.save(text_model("(float[batch,16] x) => (float[batch,8] y) { y = MatMul(x, w) }", w=w), model)
    x = random.standard_normal((8, 16)).astype(np.float32)
    np.savez(base / "samples.npz", x=x)
    (base / "recipe.toml").write_text(RECIPE)
    qcompile.run(base / "recipe.toml")
    layer_diff(str(model), str(base / "out/int8.onnx"), threads=1).save(base / "out/layers.json")
    return base / "out"


def test_layers_and_ranges_name_the_modules_of_an_exported_model(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    model = qcompile.export(module, tmp_path / "m.onnx", inputs=["x:[batch,3,8,8]"])
    ranges = qcompile.calibrate(model.path, tmp_path / "x.npz", tmp_path / "m.ranges")
    assert {"0 → Relu", "2"} <= {*load_ranges(ranges.path).modules.values()}
    int8 = qcompile.quantize(model.path, tmp_path / "q.onnx", ranges=ranges.path, target="onnxruntime")
    diff = layer_diff(str(model.path), str(int8.path), threads=1, data=str(tmp_path / "x.npz"))
    diff.save(tmp_path / "layers.json")
    assert {"0 → Relu", "2"} <= {layer.module for layer in load_layers(tmp_path / "layers.json").layers}


def content(path: Path) -> Any:
    """The JSON of a file, of a safetensors file that of its header."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    with safe_open(path, framework="np") as file:
        return json.loads(file.metadata()["qcompile"])


@pytest.mark.parametrize("name", ALL)
def test_a_schema_is_one(name: str) -> None:
    Draft202012Validator.check_schema(ALL[name])


@pytest.mark.parametrize(("file", "schema"), FILES.items())
def test_a_file_that_was_written_fits_and_one_without_a_key_does_not(
    file: str, schema: str, folder: Path
) -> None:
    validator, value = Draft202012Validator(ALL[schema]), content(folder / file)
    assert list(validator.iter_errors(value)) == []
    first = ALL[schema]
    first = first["$defs"][first["$ref"].rpartition("/")[2]] if "$ref" in first else first
    for key in first["required"]:
        assert not validator.is_valid({name: one for name, one in value.items() if name != key}), key


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_written_again_byte_for_byte(file: str, folder: Path, tmp_path: Path) -> None:
    path, copy = folder / file, tmp_path / file
    if file == "layers.json":
        load_layers(path).save(copy)
    elif file == "small.ranges":
        save_ranges(load_ranges(path), copy)
    elif file == "results.json":
        save_results(load_results(path), copy)
    else:
        manifest = read_manifest(path.with_suffix(""))
        assert manifest is not None
        write_json(copy, manifest.as_json())
    assert copy.read_bytes() == path.read_bytes()


def test_an_unknown_key_of_a_manifest_and_of_results_is_ignored(folder: Path, tmp_path: Path) -> None:
    for name in ("int8.onnx.json", "results.json"):
        value = content(folder / name) | {"added_later": {"x": 1}}
        (tmp_path / name).write_text(json.dumps(value))
    assert read_manifest(tmp_path / "int8.onnx") == read_manifest(folder / "int8.onnx")
    assert load_results(tmp_path / "results.json") == load_results(folder / "results.json")


@pytest.mark.parametrize("version", [0, 9])
@pytest.mark.parametrize("file", [name for name in FILES if name != "small.ranges.json"])
def test_a_file_of_another_version_is_refused_by_its_version(
    file: str, version: int, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / file
    if file == "small.ranges":
        made = (folder / file).read_bytes()
        path.write_bytes(re.sub(rb'("version\W+)\d', rb"\g<1>%d" % version, made, count=1))
    else:
        path.write_text(json.dumps(content(folder / file) | {"schema_version": version}))
    readers: dict[str, Callable[[Path], object]] = {
        "int8.onnx.json": lambda path: read_manifest(path.with_suffix("")),
        "results.json": load_results,
        "layers.json": lambda path: read_source(folder / "results.json", layers=[path]),
        "small.ranges": load_ranges,
    }
    with pytest.raises((ArtifactError, CalibrationError), match=f"of version {version}"):
        readers[file](path)


def test_layers_of_an_engine_with_infinite_figures_fit_and_are_read_again(tmp_path: Path) -> None:
    infinite = float("inf")
    layer = Layer("a", "b", "Conv", "n", -infinite, infinite, infinite, 1.0, 8)
    search = EngineSearch(9, 4, 8, "marked", {"x": infinite}, -infinite, True, ["one thing"])
    found = LayerDiff(
        reference="a.onnx", artifact="b.engine", precision="int8", samples=2, threshold_db=15.0,
        first_bad=FirstBad("a", "Conv", "n"), layers=[layer], pairs=PairCounts(3, 1, ["x"], []),
        around=[Neighbour(-1, "x", "Relu", "m", None, 0, measured=False)], outputs={"y": infinite}, runs=2,
        memory_bytes={"reference": {"plain": 1, "tapped": 2}}, engine=search,
    )  # fmt: skip
    validator = Draft202012Validator(ALL["layers.schema.json"])
    assert list(validator.iter_errors(found.as_json())) == []
    found.save(tmp_path / "layers.json")
    again = load_layers(tmp_path / "layers.json")
    assert (again.layers[0], again.first_bad) == (layer, found.first_bad)
    assert again.as_json() == found.as_json()
    assert not validator.is_valid(found.as_json() | {"samples": -1})
    assert not validator.is_valid(found.as_json() | {"engine": {"layers": 9}})
