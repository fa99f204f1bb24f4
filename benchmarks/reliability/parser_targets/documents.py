"""Parsers of documents: recipes, results, layers, manifests, settings of models, what processes answer."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from target import Target, file_of

from qcompile.artifact import Check, Manifest, is_manifest, read_manifest
from qcompile.bench.results.export import markdown
from qcompile.bench.results.history import summary
from qcompile.bench.results.regress import compare_results
from qcompile.bench.results.render import csv_row, render
from qcompile.bench.results.results import Results, parse_results
from qcompile.errors import ArtifactError, QCompileError
from qcompile.figures import clean
from qcompile.model.input_notes import read_notes
from qcompile.model.named.hf_folder import processor_of, read_json
from qcompile.model.preprocessing import as_json, read_preprocessing
from qcompile.pipeline.recipe import Recipe, parse_recipe
from qcompile.reporting.source import _layers
from qcompile.spec.option import options_of
from qcompile.tensors import ModelIO, TensorInfo

ROOT = Path(__file__).parents[3]


def recipe(content: bytes) -> None:
    """A recipe: every text in it that has a grammar is read, too."""
    found: Recipe = parse_recipe(content, Path("recipe.toml"), told=lambda _: None)
    for one in found.artifact:
        for kind in ("min_shapes", "opt_shapes", "max_shapes"):
            one.shapes(kind)  # type: ignore[arg-type]
    for one in options_of(type(found)):
        assert one.key


def results(content: bytes) -> None:
    """Results; what is written of them is read as the same, and every table can be made."""
    found: Results = parse_results(content, Path("results.json"))
    text = json.dumps(found.as_json())
    again = parse_results(text.encode(), Path("results.json"))
    assert json.dumps(again.as_json()) == text
    for row in found.rows:
        render(row, found.baseline)
        csv_row(row)
    summary(found)
    markdown(found)
    try:
        compare_results(found, again)
        compare_results(found, again, relative=True)
    except QCompileError:
        pass


def report(content: bytes) -> None:
    """The report of results: every section, without drawing."""
    from qcompile.reporting.sections import sections
    from qcompile.reporting.source import read_source
    from qcompile.reporting.summary import summarize

    source = read_source(file_of(content, "results.json"))
    chosen = summarize(source)
    sections(source, chosen.chosen)


def layers(content: bytes) -> None:
    """The file of `diff --layers`, and its charts' figures."""
    from qcompile.reporting.sections_inside import _errors, _first_bad

    found = _layers(file_of(content, "layers.json"))
    _errors(found)
    _first_bad(found)


def manifest(content: bytes) -> None:
    """A manifest; what is written of it is read as the same."""
    path = file_of(b"", "m.onnx")
    beside = file_of(content, "m.onnx.json")
    is_manifest(beside)
    found = read_manifest(path)
    if found is None:  # a stranger's JSON beside a model
        return
    text = json.dumps(found.as_json())
    file_of(text.encode(), "m.onnx.json")
    assert json.dumps(read_manifest(path).as_json()) == text  # type: ignore[union-attr]


def preprocessing(content: bytes) -> None:
    """How samples become inputs; what is written of it is read as the same."""
    found = read_preprocessing(_json(content))
    assert read_preprocessing(json.loads(json.dumps(as_json(found)))) == found


def notes(content: bytes) -> None:
    """What an ONNX file says of its inputs; a damaged entry is none."""
    import onnx

    model = onnx.ModelProto()
    entry = model.metadata_props.add()
    entry.key = "qcompile.inputs"
    try:
        entry.value = content.decode("utf-8")
    except UnicodeDecodeError:
        return
    for note in read_notes(model).values():
        for limits in note.axes.values():
            limits.nearest(7)
        json.dumps(note.as_json())


def hf_folder(content: bytes) -> None:
    """Settings in a folder of transformers."""
    path = file_of(content, "preprocessor_config.json")
    read_json(path.parent, path.name)
    processor_of(path.parent, "image_processor")


def worker_answers(content: bytes) -> None:
    """What a worker process answers."""
    from qcompile.bench.workers.process import read_answer

    answer = read_answer(content)
    assert answer is None or isinstance(answer, dict)


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ArtifactError("no JSON") from None


_RECIPE = """version = 1
name = "digits"
output = "out"

[model]
source = "model.py:build"
inputs = ["x:[batch,3,8,8]"]

[data]
calibration = "data.py:calibration"
evaluation = "images:d?part=evaluation"

[calibrate]
method = "percentile:99.9"

[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
layers = ["conv*=fp16"]

[[artifact]]
name = "rtx"
target = "tensorrt-rtx"
precision = "fp16"
gpus = ["sm86"]
min_shapes = ["x:1x3x8x8"]
[artifact.tensorrt]
workspace = "4G"

[bench]
batch_sizes = [1, 8]
max_time_s = 60.0
timeout_s = 1e2
max_drop = 0.5
metric = "top1"
devices = ["cpu"]
"""
_LAYERS = {
    "kind": "qcompile.layers",
    "schema_version": 1,
    "reference": "a.onnx",
    "artifact": "b.onnx",
    "passed": False,
    "precision": "int8",
    "threshold_db": 15.0,
    "samples": 8,
    "first_bad": {"tensor": "t", "operator": "Conv", "node": "n"},
    "tensors": [
        {
            "tensor": "t",
            "artifact_tensor": "u",
            "operator": "Conv",
            "node": "n",
            "snr_db": 3.5,
            "drop_db": 9.0,
            "max_abs_error": 0.5,
            "max_abs": 2.0,
            "elements": 7,
            "state": "finite",
        }
    ],
}
_MANIFEST = Manifest(
    kind="onnx",
    stage="quantize",
    target="onnxruntime",
    precision="int8",
    io=ModelIO((TensorInfo("x", "float32", ("batch", 3)),), (TensorInfo("y", "float32", (1,)),)),
    sources={"model": "sha256:0"},
    tools={"onnx": "1"},
    device={"gpus": ["sm86"]},
    options={"mode": "static"},
    proof={"layers": {"int8": 3, "untold": {"Conv": 1}}},
    checks=(Check("outputs", True, "equal"),),
    warnings=("w",),
    digest="sha256:1",
    size_bytes=7,
)
_IMAGE = {
    "kind": "image",
    "height": 8,
    "width": 8,
    "resize": [9],
    "mean": [0.1, 0.2, 0.3],
    "std": [1, 1, 1],
    "scale": 0.1,
    "interpolation": "bicubic",
    "classes": ["a"],
    "task": "image-classification",
    "channels": 3,
}
_TEXT = {"kind": "text", "tokenizer": "t", "inputs": ["input_ids"], "max_length": 8, "padding": "longest"}
_AUDIO = {
    "kind": "audio",
    "inputs": ["x"],
    "rate_hz": 8000,
    "max_seconds": 1.5,
    "vocabulary": ["a"],
    "blank": 0,
}
_NOTES = {
    "x": {"example": [2, 3], "axes": {"0": {"min": 1, "max": None, "multiple": 2}}, "preprocessing": _IMAGE}
}
_HF = {"image_processor_type": "A", "size": {"height": 8}, "do_rescale": True, "image_processor": {"size": 3}}


def _results() -> tuple[bytes, ...]:
    made = []
    for version in (1, 2):
        value = json.loads((ROOT / f"tests/samples/bench/results.version-{version}.json").read_text())
        for one in value["artifacts"]:
            one["round_medians_ms"] = (one.get("round_medians_ms") or [])[:24]
            one["launch_rounds"] = [12, 12] if len(one["round_medians_ms"]) == 24 else []
            one["latency_quantiles_ms"] = []
        value["artifacts"] = value["artifacts"][:2]
        value["history"] = [summary(parse_results(json.dumps(value).encode(), Path("r")))]
        made.append(json.dumps(clean(value)).encode())
    return tuple(made)


def _dumped(*values: object) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


TARGETS = (
    Target(
        "recipe",
        recipe,
        (_RECIPE.encode(), b'version = 1\nname = "a"\nmodel.source = "a.onnx"\n[[artifact]]\nname = "b"\n'),
        words=(
            "nan",
            "inf",
            "-inf",
            "1e400",
            "1979-05-27T07:32:00Z",
            "07:32:00",
            "9" * 5000,
            "[[artifact]]",
            "\ufeff",
            "\0",
            '"""',
            "a.b.c",
            "[" * 2000,
            "= {a = 1}",
            "0x",
            "true",
            "\\ud800",
        ),
        longest=8192,
    ),
    Target("results", results, _results(), is_json=True, longest=16384),
    Target("report", report, _results(), is_json=True, longest=16384),
    Target("layers", layers, _dumped(_LAYERS), is_json=True, longest=2048),
    Target("manifest", manifest, _dumped(_MANIFEST.as_json()), is_json=True, longest=4096),
    Target("preprocessing", preprocessing, _dumped(_IMAGE, _TEXT, _AUDIO), is_json=True, longest=1024),
    Target("input_notes", notes, _dumped(_NOTES), is_json=True, longest=2048),
    Target("hf_folder", hf_folder, _dumped(_HF), is_json=True, longest=1024),
    Target(
        "worker_answers",
        worker_answers,
        _dumped(
            {"ok": True, "progress": 3}, {"ok": False, "type": "BuildError", "message": "m", "hint": "h"}
        ),
        is_json=True,
        longest=512,
    ),
)
