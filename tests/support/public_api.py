"""All that users write down: Python names and keywords, commands and options, keys of recipes, exit codes.

python tests/support/public_api.py > tests/samples/api-VERSION.json    # when VERSION is released
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import click
from keyword_types import SPECS, keyword_names

import qcompile
from qcompile import errors
from qcompile.cli.main import group
from qcompile.spec.recipes import recipe_schema


def public_api() -> dict[str, Any]:
    """Return the surface, in values that JSON can hold."""
    names = {name: getattr(qcompile, name) for name in qcompile.__all__ if not name.startswith("_")}
    return {
        "python": {name: parameters(name, what) for name, what in sorted(names.items())},
        "errors": sorted(
            name
            for name, what in vars(errors).items()
            if inspect.isclass(what) and what.__module__ == errors.__name__
        ),
        "commands": dict(sorted(commands())),
        "recipe": sorted(keys(recipe_schema())),
    }


def parameters(name: str, what: Any) -> dict[str, str]:
    """Return each parameter to how it is given: required or optional, by position or by name.

    `**options` of a spec are listed one by one.
    """
    found = {}
    for one in inspect.signature(inspect.unwrap(what)).parameters.values():
        if one.kind is one.VAR_KEYWORD and name in SPECS:
            found |= {word: "optional by name" for word in keyword_names(name) if word not in found}
        elif one.kind is not one.VAR_KEYWORD:
            needed = "required" if one.default is one.empty else "optional"
            found[one.name] = f"{needed} by {'name' if one.kind is one.KEYWORD_ONLY else 'position'}"
    return found


def commands(command: click.Command = group, name: str = "qcompile") -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each command with its arguments and flags."""
    with click.Context(command) as context:
        if isinstance(command, click.Group):
            for word in command.list_commands(context):
                inner = command.get_command(context, word)
                assert inner is not None, "it is listed"
                yield from commands(inner, f"{name} {word}")
        flags = {}
        for one in command.get_params(context):
            needed = "required" if one.required else "optional"
            spelled = [*one.opts, *one.secondary_opts] if isinstance(one, click.Option) else [one.name or ""]
            flags |= dict.fromkeys(spelled, needed)
        yield name, flags


def keys(schema: dict[str, Any]) -> Iterator[str]:
    """Yield every key of a recipe, such as `bench.max_time_s`."""
    definitions = schema.get("$defs", {})

    def walk(node: dict[str, Any], at: str) -> Iterator[str]:
        reference = node.get("$ref", "").rpartition("/")[2]
        node = definitions.get(reference, node)
        for part in (node.get("items"), *node.get("anyOf", ())):
            if isinstance(part, dict):
                yield from walk(part, at)
        for key, value in node.get("properties", {}).items():
            yield f"{at}{key}"
            yield from walk(value, f"{at}{key}.")

    yield from walk(schema, "")


if __name__ == "__main__":
    print(json.dumps(public_api(), indent=1))
