"""`docs/reference/formats.md`: every key of every file that qcompile writes, from its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..bench.results.results import SCHEMA as RESULTS_SCHEMA
from .schemas import schemas

_ABOUT = """\
What qcompile writes, key by key. Text files are JSON in UTF-8; files with arrays are
[safetensors](https://huggingface.co/docs/safetensors), whose header holds one JSON text under the metadata
key `qcompile`. Nothing is pickled. Each format has a version; [compatibility](../compatibility.md#files)
says which versions are read, and for how long. Unknown keys of manifests and results are ignored.

Units stand in the names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes, `_db` decibels, `_per_s` per
second, `_points` percentage points. A digest is `sha256:` and 64 hexadecimal digits. A key that is not
marked optional is always written.

```python
import json
from jsonschema import Draft202012Validator

schema = json.load(open("manifest.schema.json"))
Draft202012Validator(schema).validate(json.load(open("model.engine.json")))
```"""
_RECIPE = """\
`recipe.toml` of `run`, and of `sweep` where it has `[sweep]`: [keys of a recipe](recipe.md). Version 1.
[JSON Schema](../recipe.schema.json)."""
_OTHERS = (
    (
        "`NAME.onnx`",
        "`export`, `simplify`, `quantize`, `build`",
        "ONNX. Its metadata hold `qcompile.inputs`: extents of the example and limits of dynamic "
        "axes. Weights beyond 2 GB lie in `NAME.onnx.data`.",
    ),
    ("`NAME.pt`", "`build` for TorchScript", "an archive of `torch.jit`"),
    ("`NAME.engine`", "`build` for TensorRT and TensorRT-RTX", "the runtime's own plan"),
    (
        "calibration cache",
        "`ranges cache`, `build` with TensorRT's calibrator",
        "TensorRT's own: `TRT-VERSION-CALIBRATOR`, then a line `TENSOR: SCALE` each, the scale a "
        "float32 in hexadecimal digits, most significant first",
    ),
    (
        "timing cache, runtime cache",
        "builds and runs of TensorRT and TensorRT-RTX",
        "the runtime's own; what does not fit is measured again",
    ),
    ("`.NAME.ranges.checkpoint`", "`calibrate` while it runs", "safetensors; removed at the end"),
    ("`out/.qcompile`", "`run`, `sweep`, `tune`, `auto`", "finished stages; a cache"),
    ("`report.html`, `.svg`, `.csv`, `.md`", "`report`, `run`, `sweep`, `bench`", "for people"),
)
"""Files of other formats: name, who writes them, what they are."""


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Attributes:
        title: What it is called.
        schema: Name of its schema's file.
        about: What it is, and who writes it.
        from_the_page: The schema's place, seen from the page.
    """

    title: str
    schema: str
    about: str
    from_the_page: str = ""


FORMATS = (
    Format(
        "Manifest",
        "manifest.schema.json",
        "`NAME.json` lies beside every artifact `NAME`. It says what the artifact holds, what it was "
        "made from, and what was verified. Version 1.",
    ),
    Format(
        "Results",
        "results.schema.json",
        "`results.json` of `bench`, `run` and `sweep`: what was measured, on which machine, and with which "
        "interval. Version 2.",
        "../../bench/results/results.schema.json",
    ),
    Format(
        "Layers",
        "layers.schema.json",
        "The file of `diff --layers --output`: every pair of tensors that was compared. Version 1.",
    ),
    Format(
        "Ranges",
        "ranges.schema.json",
        "`NAME.ranges` of `calibrate`: a safetensors file with the counts of each tensor, int64 [4096]:"
        " 2048 bins below zero and 2048 above. The keys below are those of its header. Version 2, or 3 "
        "where the file comes from TensorRT's cache.",
    ),
)


def formats_page(note: str) -> Iterator[str]:
    """Yield the lines of the page, of which `note` is the first."""
    yield from (note, "# File formats", "", _ABOUT)
    yield from ("", "## Recipe", "", _RECIPE)
    known = schemas() | {"results.schema.json": json.loads(RESULTS_SCHEMA.read_text(encoding="utf-8"))}
    for one in FORMATS:
        place = one.from_the_page or f"../{one.schema}"
        yield from ("", f"## {one.title}", "", f"{one.about} [JSON Schema]({place}).")
        yield from _tables(known[one.schema])
    yield from ("", "## Other files", "", "| file | written by | format |", "|---|---|---|")
    yield from (f"| {' | '.join(row)} |" for row in _OTHERS)


def _tables(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of the whole file, and one for each part of it, in the order they are met."""
    parts = schema.get("$defs", {})
    first = parts[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    waiting: list[tuple[str, Mapping[str, Any]]] = [("", first)]
    done: list[Mapping[str, Any]] = []
    while waiting:
        path, one = waiting.pop(0)
        if one in done:
            continue
        done.append(one)
        if path:
            yield from ("", f"**`{path}`**", "")
            yield from (one["description"], "") if "description" in one else ()
        else:
            yield ""
        yield from ("| key | type | |", "|---|---|---|")
        required = one.get("required", ())
        for key, inner in one["properties"].items():
            kind, nested = _kind(inner, parts)
            place = f"{path}.{key}" if path else key
            waiting += [(place + step, found) for step, found in nested]
            optional = "" if key in required else "optional " if kind else "optional"
            yield f"| `{key}` | {optional}{kind} | {_cell(inner.get('description', ''))} |"


_Nested = list[tuple[str, Mapping[str, Any]]]
_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
}


def _kind(inner: Mapping[str, Any], parts: Mapping[str, Any]) -> tuple[str, _Nested]:
    """Return the type in words, and the tables that it holds, each with the rest of its path."""
    if "$ref" in inner:
        return _kind(parts[inner["$ref"].rpartition("/")[2]], parts)
    if "const" in inner:
        return f"`{json.dumps(inner['const'])}`", []
    if "enum" in inner:
        return ", ".join(f"`{json.dumps(value)}`" for value in inner["enum"]), []
    if choices := inner.get("anyOf") or (inner.get("oneOf") if "type" not in inner else None):
        found = [_kind(one, parts) for one in choices]
        alternatives = dict.fromkeys(words for words, _ in found)
        return " or ".join(alternatives), [one for _, nested in found for one in nested]
    kind = inner.get("type", "")
    if kind == "array":
        words, nested = _kind(inner.get("items", {}), parts)
        return f"list of {words}" if words else "list", [(f"[]{step}", one) for step, one in nested]
    if kind == "object":
        return _table_kind(inner, parts)
    return _WORDS.get(kind, "any"), []


def _table_kind(inner: Mapping[str, Any], parts: Mapping[str, Any]) -> tuple[str, _Nested]:
    if inner.get("properties"):
        return "table", [("", inner)]
    values = inner.get("additionalProperties")
    if isinstance(values, Mapping) and values:
        words, nested = _kind(values, parts)
        return f"table of {words}", [(f".NAME{step}", one) for step, one in nested]
    return "table", []


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
