"""Registry of the engines, by name."""

from __future__ import annotations

import difflib
from importlib import import_module

from ..errors import InvalidOption
from .base import Engine

_HOMES: dict[str, tuple[str, str]] = {}


def register(name: str, module: str, attribute: str) -> None:
    """Announce an engine without importing it."""
    if name in _HOMES:
        raise InvalidOption(f"engine {name!r} is registered already ({_HOMES[name][0]})")
    _HOMES[name] = (module, attribute)


def names() -> tuple[str, ...]:
    """Return the names of all engines."""
    return tuple(_HOMES)


def engine(name: str) -> Engine:
    """Return an engine by name."""
    if name not in _HOMES:
        near = difflib.get_close_matches(name, names(), n=1)
        raise InvalidOption(
            f"target {name!r} is unknown; known are {', '.join(names())}",
            hint=f"did you mean {near[0]!r}?" if near else "",
            option="target",
        )
    module, attribute = _HOMES[name]
    made = getattr(import_module(module, __package__), attribute)()
    assert isinstance(made, Engine)
    return made


register("onnxruntime", ".onnx_runtime", "OnnxRuntime")
register("openvino", ".openvino", "OpenVino")
register("tensorrt-rtx", ".tensorrt", "TensorRTRTX")
register("tensorrt", ".tensorrt", "TensorRT")
register("torchscript", ".pytorch", "TorchScript")
register("pytorch", ".pytorch", "PyTorch")
