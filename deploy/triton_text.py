"""A configuration as `config.pbtxt`, written by Triton's own definitions (package tritonclient)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ..errors import ArtifactError, EngineUnavailable, first_line

Message = Mapping[str, Any]
"""Fields of a protobuf message by name: enumerations by their names, messages as mappings."""

_INSTALL = "pip install 'qcompile[triton]'"


def format_config(fields: Message) -> str:
    """Return the text form of a `ModelConfig` (common, protobuf/model_config.proto).

    Raises:
        EngineUnavailable: If tritonclient is missing.
        ArtifactError: If its `ModelConfig` has no such field, or one of another type.
    """
    try:
        definition: Any = importlib.import_module("tritonclient.grpc.model_config_pb2")
    except (ImportError, RuntimeError, TypeError) as error:  # a half installed one raises RuntimeError
        raise EngineUnavailable(
            f"config.pbtxt: Triton's definitions are missing ({first_line(error)})",
            hint=_INSTALL,
            engine="triton",
        ) from error
    from google.protobuf import json_format, text_format

    try:
        message = json_format.ParseDict(fields, definition.ModelConfig())
    except json_format.ParseError as error:
        from importlib.metadata import version

        raise ArtifactError(
            f"config.pbtxt: tritonclient {version('tritonclient')} refuses it: {first_line(error)}",
            hint="install a newer tritonclient",
        ) from error
    text: str = text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True)
    return text
