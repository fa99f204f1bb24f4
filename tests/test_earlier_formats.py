"""The promise of docs/compatibility.md: files that earlier code wrote are read, or refused by their version.

`tests/samples/formats/README.md` says which code wrote which file. The schemas of `docs/` hold for the newer.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from json_schemas import RESULTS, schemas
from jsonschema import Draft202012Validator
from safetensors import safe_open

import qcompile
from qcompile.artifact import is_manifest, load_artifact, read_manifest
from qcompile.bench.results.results import load_results, save_results
from qcompile.calibration import load_ranges, save_ranges
from qcompile.calibration.tensorrt_cache import read_cache
from qcompile.comparison.layers.outcome import (
    EngineSearch,
    FirstBad,
    Layer,
    LayerDiff,
    Neighbour,
    PairCounts,
    load_layers,
)
from qcompile.errors import ArtifactError, CalibrationError, QCompileError
from qcompile.files import write_json
from qcompile.model.graph import count_operators
from qcompile.model.onnx_file import read_graph
from qcompile.reporting.source import read_source

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "samples/formats"
SMALL, SAMPLES = FOLDER / "small.onnx", FOLDER / "samples.npz"
WRITE_IT = "python tests/samples/formats/write.py, with the code of that version"


def of_json(path: Path) -> int:
    return int(json.loads(path.read_text())["schema_version"])


def of_metadata(path: Path) -> int:
    with safe_open(path, framework="np") as file:
        return int(json.loads(file.metadata()["qcompile"])["version"])


def of_recipe(path: Path) -> int:
    return int(re.findall(r"^version = (\d+)", path.read_text(), re.MULTILINE)[0])


FORMATS: dict[str, tuple[str, Callable[[Path], int]]] = {
    "artifact.py SCHEMA_VERSION": ("formats/*/int8.onnx.json", of_json),
    "bench/results/results.py SCHEMA_VERSION": ("formats/*/results.json", of_json),
    "calibration/ranges_file.py FORMAT_VERSION": ("formats/*/*.ranges", of_metadata),
    "calibration/ranges_file.py _FIXED_VERSION": ("formats/*/*.ranges", of_metadata),
    "comparison/layers/outcome.py SCHEMA_VERSION": ("formats/*/layers.json", of_json),
    "spec/recipes.py RECIPE_VERSION": ("recipe-*.toml", of_recipe),
}
"""File and name of each constant, the files of its format, and their versions."""
PRINTED = {"bench/gate.py SCHEMA_VERSION"}
"""What `--json` prints, and nothing reads again."""


@functools.cache
def versions_in_source() -> dict[str, int]:
    """Return `FILE NAME` of every constant that ends in VERSION, and its number."""
    found = {}
    rooms = (path.parent for path in ROOT.glob("*/__init__.py"))
    for path in [*ROOT.glob("*.py"), *(path for room in rooms for path in room.rglob("*.py"))]:
        for names, numbers in re.findall(r"^((?:\w*VERSION(?:, )?)+) = ([\d, ]+)$", path.read_text(), re.M):
            numbered = zip(names.split(", "), numbers.split(", "), strict=True)
            found |= {f"{path.relative_to(ROOT)} {name}": int(number) for name, number in numbered}
    return found


def files(name: str) -> list[Path]:
    found = sorted(FOLDER.glob(f"*/{name}"))
    assert found, name
    return found


def by_commit(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def test_every_format_is_known_here() -> None:
    of_files = {name for name in versions_in_source() if "IR_VERSION" not in name}  # ONNX's own
    assert of_files - PRINTED == FORMATS.keys(), "a new format needs files of its first version"


@pytest.mark.parametrize("constant", FORMATS)
def test_every_version_of_a_format_has_a_file(constant: str) -> None:
    """To raise a version is to keep a file of the former."""
    pattern, version_of = FORMATS[constant]
    there = {version_of(path) for path in FOLDER.parent.glob(pattern)}
    assert there >= set(range(1, versions_in_source()[constant] + 1)), WRITE_IT


@pytest.mark.parametrize("path", files("int8.onnx"), ids=by_commit)
def test_an_artifact_of_an_earlier_version_is_what_its_manifest_says_and_runs(
    path: Path, on_processor: Callable[..., None]
) -> None:
    """The files are as they were written. The test presents the processor of their manifests."""
    manifest = load_artifact(path).manifest
    assert (manifest.kind, manifest.stage, manifest.target) == ("onnx", "build", "onnxruntime")
    assert manifest.precision == "int8"
    assert all(check.passed for check in manifest.checks)
    # Any processor runs these operators: none is of a memory layout.
    assert set(count_operators(read_graph(path).load())) == {"QuantizeLinear", "com.microsoft::QGemm"}
    features = manifest.device["features"]
    assert isinstance(features, list)
    on_processor(*features)
    x = np.load(SAMPLES)["x"]
    with qcompile.load(path) as runner, qcompile.load(SMALL) as small:
        quantized, exact = runner.infer({"x": x})["y"], small.infer({"x": x})["y"]
    assert np.abs(quantized - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("path", files("fp16.engine.json"), ids=by_commit)
def test_the_manifest_of_an_engine_of_an_earlier_version_is_read(path: Path) -> None:
    assert is_manifest(path)
    manifest = read_manifest(path.with_suffix(""))
    assert manifest is not None
    assert (manifest.kind, manifest.target, manifest.precision) == ("engine", "tensorrt-rtx", "fp16")
    assert manifest.io is not None
    assert [tensor.name for tensor in manifest.io.inputs] == ["x"]
    assert manifest.digest.startswith("sha256:")


@pytest.mark.parametrize("path", files("*.ranges"), ids=by_commit)
def test_ranges_of_an_earlier_version_give_the_same_thresholds(path: Path, tmp_path: Path) -> None:
    if of_metadata(path) == 1:  # never released
        with pytest.raises(CalibrationError, match="ranges file of version 1; this qcompile reads") as caught:
            load_ranges(path)
        assert caught.value.hint == "calibrate again"
        return
    ranges = load_ranges(path)
    simplified = path.with_name("small.simplified.onnx")
    model, target = (
        simplified if simplified.exists() else SMALL,
        "tensorrt" if ranges.fixed else "onnxruntime",
    )
    assert ranges.amax("x") == pytest.approx(float(np.abs(np.load(SAMPLES)["x"]).max()), rel=1e-6)
    made = qcompile.quantize(model, tmp_path / "int8.onnx", ranges=path, target=target)
    assert made.manifest.precision == "int8"


def test_a_cache_of_tensorrt_that_an_earlier_version_wrote_is_read() -> None:
    (path,) = files("small.cache")
    largest = float(np.abs(np.load(SAMPLES)["x"]).max())
    assert read_cache(path, SMALL).fixed["x"] == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("path", files("results.json"), ids=by_commit)
def test_results_of_an_earlier_version_are_read_and_reported(path: Path, tmp_path: Path) -> None:
    results, written = load_results(path), json.loads(path.read_text())
    assert [row.name for row in results.rows] == [row["name"] for row in written["artifacts"]]
    (int8,) = (row for row in results.rows if row.name == "int8")
    (as_written,) = (row for row in written["artifacts"] if row["name"] == "int8")
    assert int8.latency is not None
    assert int8.latency.median_ms == as_written["latency_ms"]["median"]
    assert int8.speedup is not None
    page = qcompile.report(path, tmp_path / "report.html").read_text()
    assert "int8" in page


def written_again(path: Path, copy: Path) -> bytes:
    """The bytes of a file that is read and saved."""
    if path.name == "layers.json":
        load_layers(path).save(copy)
    elif path.suffix == ".ranges":
        save_ranges(load_ranges(path), copy)
    elif path.name.startswith("results"):
        save_results(load_results(path), copy)
    else:
        manifest = read_manifest(path.with_suffix(""))
        assert manifest is not None
        write_json(copy, manifest.as_json())
    return copy.read_bytes()


AGAIN = {
    *FOLDER.glob("*/*.json"), *FOLDER.glob("*/*.ranges"), *FOLDER.parent.glob("bench/*.json"),
} - {FOLDER / "19f5535/sweep.json", FOLDER / "d60e3ba/small.ranges"}  # fmt: skip
NEWEST = {FOLDER / "3ce08b2/results.json", *FOLDER.glob("a883d5b/*.ranges")}
FEWER_KEYS = {path for path in AGAIN if path.name.startswith("results") or path.suffix == ".ranges"} - NEWEST
"""Of earlier code: rows have more keys now, and ranges a checksum."""


@pytest.mark.parametrize("path", sorted(AGAIN), ids=by_commit)
def test_a_file_is_written_again_byte_for_byte(path: Path, tmp_path: Path) -> None:
    """One with fewer keys is given them once: what it then is, it stays."""
    again = written_again(path, tmp_path / path.name)
    if path in FEWER_KEYS:
        assert again != path.read_bytes()
        upgraded = shutil.copy(tmp_path / path.name, tmp_path / f"results.upgraded{path.suffix}")
        assert written_again(upgraded, tmp_path / path.name) == again
    else:
        assert again == path.read_bytes()


@pytest.mark.parametrize("path", files("layers.json"), ids=by_commit)
def test_layers_of_an_earlier_version_are_read(path: Path) -> None:
    source = read_source(path.with_name("results.json"), layers=[path])
    (layers,) = source.layers
    name, diff = layers
    assert (name, bool(diff.layers)) == ("layers.json", True)


@pytest.mark.parametrize("path", files("interrupted.checkpoint"), ids=by_commit)
def test_a_checkpoint_of_an_earlier_version_does_no_harm(path: Path, tmp_path: Path) -> None:
    """It is gone on from where it is of the same calibration, else begun anew: the ranges are equal."""
    shutil.copy(path, tmp_path / ".small.ranges.checkpoint")
    qcompile.calibrate(SMALL, str(SAMPLES), tmp_path / "small.ranges", method="minmax")
    qcompile.calibrate(SMALL, str(SAMPLES), tmp_path / "afresh.ranges", method="minmax")
    resumed, afresh = load_ranges(tmp_path / "small.ranges"), load_ranges(tmp_path / "afresh.ranges")
    assert resumed.samples == afresh.samples == 8
    assert resumed.amax("x") == afresh.amax("x")
    assert (resumed.histograms["x"].counts == afresh.histograms["x"].counts).all()


@pytest.mark.parametrize("store", sorted(FOLDER.glob("*/store")), ids=lambda path: path.parent.name)
def test_a_store_of_an_earlier_version_is_made_again_where_it_does_not_fit(
    store: Path, tmp_path: Path
) -> None:
    for path in (SMALL, SAMPLES):
        shutil.copy(path, tmp_path)
    shutil.copytree(store, tmp_path / "out/.qcompile")
    for folder in (tmp_path / "out/.qcompile").iterdir():
        for path in [*store.parent.glob("int8.onnx*"), *store.parent.glob("small.ranges*")]:
            shutil.copy(path, folder)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'version = 1\nname = "small"\n[model]\nsource = "small.onnx"\n[data]\ncalibration = "samples.npz"\n'
        '[calibrate]\nmethod = "minmax"\n'
        '[[artifact]]\nname = "int8"\ntarget = "onnxruntime"\nprecision = "int8"\n'
    )
    qcompile.run(recipe)
    artifact = load_artifact(tmp_path / "out/int8.onnx")
    assert artifact.manifest.precision == "int8"


def newer_json(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        value = json.loads(files(name)[-1].read_text())
        path.write_text(json.dumps(value | {"schema_version": 99}))
        return path

    return write


def test_a_key_that_is_not_known_yet_is_ignored(tmp_path: Path) -> None:
    """A later version may add keys without a new number."""
    artifact, results = files("int8.onnx.json")[-1], files("results.json")[-1]
    for path in (artifact, results):
        value = json.loads(path.read_text()) | {"added_later": {"x": 1}}
        (tmp_path / path.name).write_text(json.dumps(value))
    assert read_manifest(tmp_path / "int8.onnx") == read_manifest(artifact.with_suffix(""))
    assert load_results(tmp_path / results.name) == load_results(results)


def newer_ranges(folder: Path) -> Path:
    path = folder / "small.ranges"
    made = files("*.ranges")[0].read_bytes()
    path.write_bytes(re.sub(rb"(version\W+)\d", rb"\g<1>9", made, count=1))
    return path


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (newer_json("int8.onnx.json"), lambda path: read_manifest(path.with_suffix(""))),
        (newer_json("results.json"), load_results),
        (newer_json("layers.json"), lambda path: read_source(files("results.json")[-1], layers=[path])),
        (newer_ranges, load_ranges),
    ],
    ids=["manifest", "results", "layers", "ranges"],
)
def test_a_file_of_a_later_version_is_refused_by_its_version(
    write: Callable[[Path], Path], read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = write(tmp_path)
    with pytest.raises((ArtifactError, CalibrationError), match=r"of version 9"):
        read(path)
    assert issubclass(ArtifactError, QCompileError)


ALL = schemas()
FILES = {
    "manifest.schema.json": ("int8.onnx.json", "fp16.engine.json", "small.ranges.json"),
    RESULTS: ("results.json",),
    "layers.schema.json": ("layers.json",),
    "ranges.schema.json": ("*.ranges",),
}


def content(path: Path) -> Any:
    """What a file holds, of a safetensors file its header."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    with safe_open(path, framework="np") as file:
        return json.loads(file.metadata()["qcompile"])


def samples() -> Iterator[tuple[str, Path]]:
    for schema, patterns in FILES.items():
        found = sorted(path for pattern in patterns for path in FOLDER.glob(f"*/{pattern}"))
        assert found, schema
        yield from ((schema, path) for path in found if not is_former(path))


def is_former(path: Path) -> bool:
    """Whether a sample is of a version that is no longer written, which a schema need not describe."""
    if path.name == "results.json":
        return bool(content(path)["schema_version"] == 1)
    return path.suffix == ".ranges" and content(path)["version"] == 1


@pytest.mark.parametrize("name", ALL)
def test_a_schema_is_one(name: str) -> None:
    Draft202012Validator.check_schema(ALL[name])


@pytest.mark.parametrize(
    ("schema", "path"),
    [*samples()],
    ids=lambda one: one if isinstance(one, str) else f"{one.parent.name}/{one.name}",
)
def test_a_file_that_was_written_fits_and_one_without_a_key_does_not(schema: str, path: Path) -> None:
    validator, value = Draft202012Validator(ALL[schema]), content(path)
    assert list(validator.iter_errors(value)) == []
    first = ALL[schema]
    first = first["$defs"][first["$ref"].rpartition("/")[2]] if "$ref" in first else first
    for key in first["required"]:
        assert not validator.is_valid({name: one for name, one in value.items() if name != key}), key


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
