"""The JSON Schemas of `docs/`, from the types that write and read the files."""

from __future__ import annotations

import inspect
import json
from typing import Any

from ..artifact.file_types import manifest_schema
from ..calibration import ranges_file
from ..comparison.layers.file_types import layers_schema
from ..spec.recipes import recipe_schema
from .docstrings import sections_of

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
        body, sections = sections_of(inspect.cleandoc(part.get("description", "")))
        if body:
            part["description"] = " ".join(body.split())
        for entry in (entry for section in sections for entry in section.entries):
            for key in entry.names:
                if key in part.get("properties", {}):
                    part["properties"][key]["description"] = entry.text
        parts[name.removeprefix("_")] = part
    return whole
