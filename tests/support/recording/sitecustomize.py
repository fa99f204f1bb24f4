"""Record TensorRT in this process and in those that it starts.

    PYTHONPATH=tests/support/recording QCOMPILE_TENSORRT_RECORD=FILE python ...

Python imports this file before anything else. A TensorRT module is wrapped as soon as it is imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class _Finder:
    """Finds TensorRT as Python does, and records it once it is loaded."""

    @classmethod
    def find_spec(cls, name: str, *_: Any) -> ModuleSpec | None:
        if name not in ("tensorrt", "tensorrt_rtx"):
            return None
        sys.meta_path.remove(cls)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, cls)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_record(module: ModuleType) -> None:
            load(module)
            from tensorrt_recorder import record

            record(module, Path(os.environ["QCOMPILE_TENSORRT_RECORD"]))

        spec.loader.exec_module = load_and_record  # type: ignore[method-assign]
        return spec


if os.environ.get("QCOMPILE_TENSORRT_RECORD"):
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    sys.meta_path.insert(0, _Finder)
