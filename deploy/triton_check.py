"""A written configuration is read back by Triton's own definitions and compared with what was meant."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..artifact import Check
from ..errors import ArtifactError, first_line
from .protobuf_text import Message, Value, Word

_NAME = "Triton's definitions read the configuration back"
_INSTALL = "pip install 'qcompile[triton]'"


def check_config(text: str, fields: Message) -> tuple[list[Check], list[str]]:
    """Return the check that was made, or a note that says why none could be.

    Raises:
        ArtifactError: If Triton's definitions refuse the text, or read something else from it.
    """
    try:
        definition: Any = importlib.import_module("tritonclient.grpc.model_config_pb2")
    except (ImportError, RuntimeError, TypeError) as error:  # a half installed one raises RuntimeError
        return [], [f"config.pbtxt was not read back: {first_line(error)} ({_INSTALL})"]
    from importlib.metadata import version

    from google.protobuf import text_format

    definitions = f"tritonclient {version('tritonclient')}"
    try:
        message = text_format.Parse(text, definition.ModelConfig())
    except text_format.ParseError as error:
        if "no field named" in str(error):  # a field that came after this tritonclient
            return [], [f"config.pbtxt was not read back: {definitions}: {first_line(error)}"]
        raise ArtifactError(f"config.pbtxt: {definitions} refuses it: {first_line(error)}") from error
    wrong = differences(message, fields)
    if wrong:
        raise ArtifactError(f"config.pbtxt: {definitions} reads otherwise: {'; '.join(wrong)}")
    return [Check(_NAME, True, f"{definitions}: all {len(fields)} fields")], []


def differences(message: Any, fields: Message, path: str = "") -> list[str]:
    """Return where a parsed message differs from the fields it was written from."""
    wrong: list[str] = []
    known = message.DESCRIPTOR.fields_by_name
    unasked = {descriptor.name for descriptor, _ in message.ListFields()} - fields.keys()
    wrong += [f"{path}{name} was not asked for" for name in sorted(unasked)]
    for name, value in fields.items():
        where = f"{path}{name}"
        if isinstance(value, Mapping):
            wrong += (
                differences(getattr(message, name), value, f"{where}.")
                if message.HasField(name)
                else [f"{where} is absent"]
            )
        elif isinstance(value, Sequence) and not isinstance(value, str):
            wrong += _list_differences(getattr(message, name), known[name], value, where)
        else:
            wrong += _one_difference(getattr(message, name), known[name], value, where)
    return wrong


def _list_differences(actual: Any, descriptor: Any, asked: Sequence[Any], where: str) -> list[str]:
    if len(actual) != len(asked):
        return [f"{where} has {len(actual)} items, not {len(asked)}"]
    wrong: list[str] = []
    for index, item in enumerate(asked):
        if not isinstance(item, Mapping):
            wrong += _one_difference(actual[index], descriptor, item, f"{where}[{index}]")
        elif descriptor.message_type.GetOptions().map_entry:
            key = item["key"]
            wrong += (
                differences(actual[key], item["value"], f"{where}[{key!r}].")
                if key in actual
                else [f"{where}[{key!r}] is absent"]
            )
        else:
            wrong += differences(actual[index], item, f"{where}[{index}].")
    return wrong


def _one_difference(actual: Any, descriptor: Any, asked: Value, where: str) -> list[str]:
    if isinstance(asked, Word):
        actual = descriptor.enum_type.values_by_number[actual].name
    return [] if actual == asked else [f"{where} is {actual!r}, not {asked!r}"]
