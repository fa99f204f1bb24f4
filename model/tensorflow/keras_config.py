"""What the configuration of a Keras file would make Python run when the file is loaded.

Keras rebuilds a model from a JSON tree of `{"module", "class_name", "config", "registered_name"}`. Layers of
Keras itself are data. Others are code: a Lambda holds marshalled bytecode, a wrapper unpickles or loads
another model, and a class of another module is imported. This file needs the standard library alone: qcompile
reads `.keras` files with it, and the process with TensorFlow reads `.h5` files with it.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

_RUNS_CODE = ("Lambda", "__lambda__", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer")
"""Classes of Keras whose configuration is code: bytecode, a pickled module, another model."""
_OWN = ("keras", "builtins")
"""Modules whose names Keras looks up among its own objects."""
_FUNCTIONS = ("builtins", "keras.activations", "keras.src.activations", "keras.ops", "keras.src.ops")
"""Modules of functions that compute; those of others can load and download files."""
_LARGEST = 1 << 26
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, OSError, RecursionError, RuntimeError,
)  # fmt: skip
_DEEPEST = 400


class Foreign(NamedTuple):
    """A part of a model that is no data.

    Attributes:
        layer: Its name; its class where it has none.
        what: Its class, with the module where that is not Keras.
        runs: Whether the file itself holds code; else the code is expected elsewhere.
    """

    layer: str
    what: str
    runs: bool


def foreign_parts(config: Any) -> list[Foreign]:
    """Return the parts of a configuration that are code, in its order, each once."""
    return list(dict.fromkeys(_walk(config, "", 0)))


def refusal(path: str, config: Any, *, trust: bool) -> tuple[str, str] | None:
    """Return why a file with this configuration is not loaded, and the way out; None where it is."""
    for part in foreign_parts(config):
        if not part.runs:
            return (
                f"{path}: {part.layer!r} is a {part.what}, whose code is not in the file",
                "where its class is known, save a SavedModel: model.export('folder')",
            )
        if not trust:
            return (
                f"{path}: layer {part.layer!r} ({part.what}) holds Python code, which loading would run",
                "give `trust` if you know its origin, or save a SavedModel: model.export('folder')",
            )
    return None


def read_keras_config(path: str) -> Any:
    """Return the configuration in a `.keras` file.

    Raises:
        ValueError: If it is no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo("config.json").file_size > _LARGEST:
                raise ValueError("its config.json is too large")
            return json.loads(archive.read("config.json"))
    except _DAMAGE as error:
        raise ValueError(f"no zip archive with a config.json ({error})") from error


def _walk(value: Any, layer: str, depth: int) -> Iterator[Foreign]:
    if depth > _DEEPEST:
        yield Foreign(layer, "a configuration nested too deeply", True)
        return
    if isinstance(value, dict):
        said = value.get("class_name")
        if isinstance(said, str):
            inner = value.get("config")
            name = inner.get("name") if isinstance(inner, dict) else None
            layer = name if isinstance(name, str) else layer or said
            yield from _judged(value, said, layer)
        for item in value.values():
            yield from _walk(item, layer, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item, layer, depth + 1)


def _judged(value: dict[str, Any], said: str, layer: str) -> Iterator[Foreign]:
    module, registered = value.get("module"), value.get("registered_name")
    plain = said.rpartition(">")[2]
    if plain in _RUNS_CODE:
        yield Foreign(layer, "Lambda" if plain == "__lambda__" else plain, True)
    elif plain == "function" and isinstance(module, str) and not _computes(module):
        yield Foreign(layer, f"function {module}.{value.get('config')}", True)
    elif isinstance(module, str) and module.partition(".")[0] not in _OWN:
        yield Foreign(layer, f"{module}.{said}", False)
    elif any(isinstance(one, str) and ">" in one for one in (registered, said)):
        yield Foreign(layer, str(registered or said), False)


def _computes(module: str) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in _FUNCTIONS)
