"""The JSON Schemas of `docs/`, from the types that write and read the files."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from typing import Any

from qcompile.artifact.file_types import manifest_schema
from qcompile.calibration import ranges_file
from qcompile.comparison.layers.file_types import layers_schema
from qcompile.spec.recipes import recipe_schema

_ENTRY = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)  # of a docstring's attributes
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """Return the name of each schema's file to what it holds."""
    made = {
        "manifest": manifest_schema(),
        "layers": layers_schema(),
        "ranges": ranges_file.header_schema(),
    }
    files = {f"{name}.schema.json": described(f"qcompile {name}", one) for name, one in made.items()}
    return {"recipe.schema.json": recipe_schema(), **files}


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
            for key in names.split(", "):
                if key in part.get("properties", {}):
                    part["properties"][key]["description"] = " ".join(sentence.split())
        parts[name.removeprefix("_")] = part
    return whole
