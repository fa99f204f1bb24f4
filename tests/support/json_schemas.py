"""The JSON Schemas of `docs/`, from the types that write and read the files; that of layers is kept there."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Any

from qcompile.artifact.file_types import manifest_schema
from qcompile.calibration import ranges_file
from qcompile.spec.recipes import recipe_schema

_ENTRY = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)  # of a docstring's attributes
_DOCS = Path(__file__).parents[2] / "docs"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """Return the name of each schema's file to what it holds."""
    made = {
        "manifest": manifest_schema(),
        "ranges": ranges_file.header_schema(),
    }
    files = {f"{name}.schema.json": described(f"qcompile {name}", one) for name, one in made.items()}
    layers = json.loads((_DOCS / "layers.schema.json").read_text())  # written by hand
    return {"recipe.schema.json": recipe_schema(), **files, "layers.schema.json": layers}


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
