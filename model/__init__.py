"""Model files: MODEL spellings, ONNX files and graphs, sessions, output errors."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _Lazy(ModuleType):
    """A package that is imported on the first use of an attribute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


if TYPE_CHECKING:
    import onnx as onnx
else:
    onnx = _Lazy("onnx")
