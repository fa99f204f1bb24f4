"""The JSON Schemas of `docs/` hold for the files that qcompile writes, and not for others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from json_schemas import RESULTS, schemas
from jsonschema import Draft202012Validator
from safetensors import safe_open

from qcompile.comparison.layers.outcome import (
    EngineSearch,
    FirstBad,
    Layer,
    LayerDiff,
    Neighbour,
    PairCounts,
    load_layers,
)

SAMPLES = Path(__file__).parents[1] / "samples/formats"
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
        found = sorted(path for pattern in patterns for path in SAMPLES.glob(f"*/{pattern}"))
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
