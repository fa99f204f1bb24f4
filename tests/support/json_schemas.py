"""The JSON Schemas of the files, from the types that write and read them."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from qcompile.bench.diff.layers.outcome import SCHEMA_VERSION as LAYERS_VERSION
from qcompile.bench.diff.layers.outcome import LayerDiff
from qcompile.bench.results.results import SCHEMA_VERSION as RESULTS_VERSION
from qcompile.bench.results.results import Environment, Results, Run, Settings
from qcompile.calibration import ranges_file
from qcompile.calibration.ranges import Portion
from qcompile.core.artifact import IO, SCHEMA_VERSION, Device, Manifest, Proof
from qcompile.spec.recipes import recipe_schema

_ENTRY = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)  # of a docstring's attributes
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
RESULTS = "../bench/results/results.schema.json"  # from docs/


def schemas() -> dict[str, dict[str, Any]]:
    """Return the name of each schema's file to what it holds."""
    io = {"io": {"anyOf": [{"$ref": "#/$defs/IO"}, {"type": "null"}]}}
    run = {"history": {"type": "array", "items": {"$ref": "#/$defs/Run"}}}
    manifest, layers, results = (
        schema_of("manifest", Manifest, SCHEMA_VERSION, (Proof, Device), io, named=(IO,)),
        schema_of("layers", LayerDiff, LAYERS_VERSION, optional={"complete", "engine"}, whole=True),
        schema_of(
            "results", Results, RESULTS_VERSION, (Settings, Environment), run, named=(Run,),
            optional={"machines"},
        ),
    )  # fmt: skip
    ranges = msgspec.json.schema(ranges_file._Header)
    ranges["$defs"]["Portion"]["required"] = [*Portion.__struct_fields__]
    del layers["$defs"]["LayerDiff"]["properties"]["complete"]
    return {
        "recipe.schema.json": recipe_schema(),
        "manifest.schema.json": manifest,
        "ranges.schema.json": described("qcompile ranges", ranges),
        "layers.schema.json": layers,
        RESULTS: results,
    }


def schema_of(
    name: str,
    file: type,
    version: int,
    parts: Collection[type] = (),
    properties: Mapping[str, Any] | None = None,
    *,
    named: Collection[type] = (),
    optional: Collection[str] = (),
    whole: bool = False,
) -> dict[str, Any]:
    """Return the schema of a file of a type.

    Args:
        parts: Types of keys of their names that hold other keys, too.
        properties: Schemas of keys, in place of those of the type.
        named: Types that these name.
        whole: Whether files hold every key of the types inside, too.
    """
    types = (file, *parts, *named)
    (schema, *_), defined = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    top = defined[file.__name__]
    keys = top["properties"]
    keys.pop("schema_version", None)
    kind = {"kind": keys.pop("kind")} if "kind" in keys else {}
    keys |= properties or {}
    keys |= {one.__name__.lower(): {"$ref": f"#/$defs/{one.__name__}"} for one in parts}
    keys = {**kind, "schema_version": {"const": version, "description": "Of the format."}, **keys}
    required = [key for key in keys if key not in optional]
    defined[file.__name__] |= {"properties": keys, "required": required}
    for part in defined.values():
        if whole and part is not top:
            part["required"] = [*part["properties"]]
        for one in part["properties"].values():
            one.pop("default", None)
    for layer in (defined[one] for one in ("Layer", "Difference") if one in defined):
        # What is not finite is null.
        figures = {key: one for key, one in layer["properties"].items() if one.get("type") == "number"}
        layer["properties"] |= {key: {"anyOf": [one, {"type": "null"}]} for key, one in figures.items()}
    return described(f"qcompile {name}", {**schema, "$defs": _reached(defined, file.__name__)})


def _reached(defined: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The definitions that one leads to, itself first."""
    found = {name: defined[name]}
    for inner in re.findall(r"#/\$defs/(\w+)", json.dumps(defined[name])):
        if inner not in found:
            found |= _reached(defined, inner)
    return found


def described(title: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the sentences of its types' docstrings, each at the key that it is of.

    The first underscore of a type's name is left out.
    """
    text = json.dumps({"$schema": _DIALECT, **schema, "title": title})
    whole: dict[str, Any] = json.loads(text.replace("#/$defs/_", "#/$defs/"))
    parts = whole.get("$defs", {})
    for name in [*parts]:
        part = parts.pop(name)
        part["title"] = part.get("title", name).removeprefix("_")
        body, _, attributes = inspect.cleandoc(part.get("description", "")).partition("Attributes:\n")
        if body:
            part["description"] = " ".join(body.split())
        _, *entries = _ENTRY.split(textwrap.dedent(attributes))
        for names, sentence in zip(entries[::2], entries[1::2], strict=True):
            for attribute in names.split(", "):
                for key in {attribute, f"{attribute}_ms", attribute.removesuffix("_ms")} & part.get(
                    "properties", {}
                ).keys():
                    part["properties"][key]["description"] = " ".join(sentence.split())
        parts[name.removeprefix("_")] = part
    return whole
