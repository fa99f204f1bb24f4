"""Registry of the engines, a row each. To add an engine, add its folder and a row that names it.

An installed package adds an engine by an entry point: its name is the engine's, its value a mapping with the
other fields of `EngineRow`. `qcompile` imports the module of the mapping, which must import nothing itself:

    [project.entry-points."qcompile.engines"]       # row.py of my_runtime:
    mine = "my_runtime.row:ROW"                     ROW = {"home": "my_runtime.engine:Mine", "title": "Mine"}
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

GROUP = "qcompile.engines"


class EngineRow(NamedTuple):
    """Facts about an engine that are needed before its folder is imported.

    Attributes:
        name: Spelling as a target.
        home: Module and class, a subclass of `qcompile.engines.base.Engine`; a dot stands for this package.
        title: Name in tables.
        on_processor: Whether it runs on the processor, and quantized graphs are for an instruction set.
        family: Runtime with common options, such as "tensorrt" of TensorRT and TensorRT-RTX.
        graph: Engine that sets the rules of quantized graphs; None for this one, empty if it reads no ONNX.
        is_target: Whether it builds artifacts.
        environment: Variables that switch off the runtime's telemetry.
        blocked: Telemetry modules, which the runtime works without.
    """

    name: str
    home: str
    title: str
    on_processor: bool = True
    family: str = ""
    graph: str | None = None
    is_target: bool = True
    environment: Mapping[str, str] = {}
    blocked: tuple[str, ...] = ()

    @property
    def placed_for(self) -> str:
        """Engine that sets the rules of quantized graphs; empty if this one reads no ONNX."""
        return self.name if self.graph is None else self.graph

    def load(self) -> Any:
        """Return the engine's class without importing the runtime; raise EngineUnavailable if that fails."""
        from importlib import import_module

        from ..errors import EngineUnavailable

        module, _, attribute = self.home.partition(":")
        try:
            return getattr(import_module(module, __package__.rpartition(".")[0]), attribute)
        except Exception as error:  # third-party code can raise anything
            raise EngineUnavailable(
                f"engine {self.name}: {self.home} cannot be imported ({error})", engine=self.name
            ) from error


BUILT_IN = (
    EngineRow(
        "onnxruntime", ".engines.onnx_runtime:OnnxRuntime", "ONNX Runtime",
        # 1.31 writes a device id under ~/.cache/Microsoft, and sends it with names of graphs after about 8
        # seconds. It reads the variable at its first import.
        environment={"ORT_DISABLE_TELEMETRY": "1"},
    ),
    EngineRow(
        # Importing it sends an event, with an id stored under ~/intel. Its API cannot switch that off.
        "openvino", ".engines.openvino:OpenVino", "OpenVINO", blocked=("openvino_telemetry",)
    ),
    EngineRow(
        "tensorrt-rtx", ".engines.tensorrt:TensorRTRTX", "TensorRT-RTX",
        on_processor=False, family="tensorrt", graph="tensorrt",
    ),
    EngineRow(
        "tensorrt", ".engines.tensorrt:TensorRT", "TensorRT", on_processor=False, family="tensorrt"
    ),
    EngineRow("torchscript", ".engines.pytorch:TorchScript", "TorchScript", graph=""),
    EngineRow("pytorch", ".engines.pytorch:PyTorch", "PyTorch", graph="", is_target=False),
)  # fmt: skip


@functools.cache
def rows() -> Mapping[str, EngineRow]:
    """Return name to row, of the built-in engines and those of installed packages."""
    from importlib.metadata import entry_points

    from ..errors import InvalidOption

    table = {row.name: row for row in BUILT_IN}
    for point in entry_points(group=GROUP):
        if point.name in table:
            raise InvalidOption(f"engine {point.name!r} is registered already ({table[point.name].home})")
        try:
            table[point.name] = EngineRow(name=point.name, **point.load())
        except Exception as error:  # third-party code can raise anything
            raise InvalidOption(
                f"engine {point.name!r}: its row {point.value} cannot be read ({error})",
                hint="an entry point of group qcompile.engines is a mapping with home and title",
            ) from error
    return table


def switch_off_telemetry() -> None:
    """Switch off telemetry in this process and its children; call it before any runtime is imported.

    huggingface_hub would send names of libraries and versions with every download.
    """
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    for row in BUILT_IN:
        os.environ.update(row.environment)  # overrides the user's values
        for module in row.blocked:
            sys.modules.setdefault(module, None)  # type: ignore[arg-type]  # importing it fails
