"""Write what passes between qcompile and a TensorRT module as JSON: values, and the names the module has.

| value | JSON |
|---|---|
| None, bool, int, str, finite float | itself |
| other floats | `{"float": "nan"}` |
| member of an enumeration | `{"enum": "DataType.FLOAT"}` |
| object of a class of the module | `{"object": 7, "class": "ITensor"}` |
| `Dims` and its kin | `{"dims": [1, 3, 224, 224]}` |
| bytes, and other buffers | `{"bytes": 103, "sha256": "...", "head": "66747274..."}` |
| numpy array | `{"array": "float32", "shape": [2, 3], "sha256": "..."}` |
| name of a file | `{"file": ".onnx"}`, with `bytes` and `sha256` where it is there |
| list, tuple, dict | list, `{"tuple": [...]}`, `{"dict": {...}}` |
| anything else | `{"python": "its class"}` |
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEAD_BYTES = 32
LARGEST_FILE_BYTES = 64 << 20
"""Of larger files no digest is taken."""
VALUE_CLASSES = ("Dims", "Permutation", "Weights", "IHostMemory", "PluginField")
"""How classes begin whose objects are values: their members are not recorded."""


def is_enumeration(kind: object) -> bool:
    """Whether a class is an enumeration of pybind11's."""
    return isinstance(kind, type) and hasattr(kind, "__members__")


def is_value_class(name: str) -> bool:
    """Whether a class of the module holds values alone."""
    return name.startswith(VALUE_CLASSES)


def encode(value: Any, refer: Callable[[Any], dict[str, object] | None]) -> Any:
    """Return the JSON form of a value.

    Args:
        value: Anything that is given to TensorRT or comes from it.
        refer: Object of the module to its reference, such as `{"object": 7, "class": "ITensor"}`; None for
            what is not of the module.
    """
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if is_enumeration(type(value)):
        return {"enum": f"{type(value).__name__}.{value.name}"}
    if isinstance(value, list | tuple):
        items = [encode(item, refer) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict):
        return {"dict": {str(key): encode(item, refer) for key, item in value.items()}}
    return _object(value, refer)


def _object(value: Any, refer: Callable[[Any], dict[str, object] | None]) -> dict[str, object]:
    reference = refer(value)
    name = str((reference or {}).get("class", ""))
    if name == "IHostMemory":
        return {**(reference or {}), **_buffer(value)}
    if name == "Weights":
        return {"weights": str(value.dtype).rsplit(".", 1)[-1], "size": int(value.size)}
    if name and is_value_class(name) and hasattr(value, "__len__"):
        return {"dims": [int(value[index]) for index in range(len(value))]}
    if reference is not None:
        return reference
    if hasattr(value, "__array_interface__"):
        return _array(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _buffer(value)
    if isinstance(value, Path):
        return _file(value)
    return {"python": value.__qualname__ if isinstance(value, type) else type(value).__qualname__}


def _text(text: str) -> object:
    return _file(Path(text)) if text.startswith("/") and "\n" not in text else text


def _file(path: Path) -> dict[str, object]:
    about: dict[str, object] = {"file": path.suffix}
    try:
        if path.is_file() and path.stat().st_size <= LARGEST_FILE_BYTES:
            content = path.read_bytes()
            about |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    except OSError:
        pass  # TensorRT will say so, and that is recorded
    return about


def _buffer(value: Any) -> dict[str, object]:
    content = memoryview(value).cast("B")
    digest = hashlib.sha256(content).hexdigest()
    return {"bytes": content.nbytes, "sha256": digest, "head": bytes(content[:HEAD_BYTES]).hex()}


def _array(value: Any) -> dict[str, object]:
    import numpy as np

    array = np.ascontiguousarray(value)
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return {"array": str(array.dtype), "shape": list(array.shape), "sha256": digest}


def module_names(module: Any) -> dict[str, object]:
    """Return every public name of a module: what `hasattr` answers, and the values of its enumerations.

    Returns:
        Name to `{"enum": {member: value}}`, to `{"class": {member: kind}}`, where a kind is "property",
        "read-only", "method", a number, or of an enumeration in the class its values; to `{"member": name}`
        for a member of an enumeration, and to `{"kind": type}` for what is left.
    """
    found: dict[str, object] = {}
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if is_enumeration(value):
            found[name] = {"enum": {key: int(member) for key, member in value.__members__.items()}}
        elif isinstance(value, type):
            found[name] = {"class": _members(value)}
        elif is_enumeration(type(value)):
            found[name] = {"member": f"{type(value).__name__}.{value.name}"}
        else:
            found[name] = {"kind": type(value).__name__}
    return found


def _members(kind: type) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in dir(kind):
        if name.startswith("_"):
            continue
        value = getattr(kind, name)
        if is_enumeration(value):
            found[name] = {key: int(member) for key, member in value.__members__.items()}
        elif is_enumeration(type(value)):
            found[name] = f"{type(value).__name__}.{value.name}"
        elif isinstance(value, int):
            found[name] = value
        elif isinstance(value, property):
            found[name] = "property" if value.fset else "read-only"
        else:
            found[name] = "method"
    return found
