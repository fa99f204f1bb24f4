"""The registry of the engines: a row each. A new engine is a folder, which its row names, and the row.

An installed package adds an engine by an entry point: its name is the engine's, its value a mapping with
the other fields of `EngineRow`. What defines the mapping is imported with `qcompile`, so it imports nothing:

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
    """What must be known of an engine before its folder is imported.

    Attributes:
        name: How it is spelled as a target.
        home: Module and class, a subclass of `qcompile.engines.base.Engine`; a dot stands for this package.
        title: Its name in tables.
        on_processor: Whether it runs on the processor, and quantized graphs are for an instruction set.
        family: What engines of one runtime share, such as TensorRT's options.
        graph: Engine whose rules its quantized graph follows; None for its own, empty where it reads no ONNX.
        is_target: Whether it builds artifacts.
        environment: Variables that keep the runtime from reporting its use.
        blocked: Modules that it reports its use by, and does without.
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
        """The engine whose rules its quantized graph follows; empty where it reads no ONNX."""
        return self.name if self.graph is None else self.graph

    def load(self) -> Any:
        """Return its class, or EngineUnavailable where that fails; the runtime itself is not imported."""
        from importlib import import_module

        from ..errors import EngineUnavailable

        module, _, attribute = self.home.partition(":")
        try:
            return getattr(import_module(module, __package__.rpartition(".")[0]), attribute)
        except Exception as error:  # a package of somebody else's; whatever fails in it is named
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
        # Its import sends an event, with an id under ~/intel. It has no switch in code.
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
    """Return name to row, of the engines here and of those that installed packages add."""
    from importlib.metadata import entry_points

    from ..errors import InvalidOption

    table = {row.name: row for row in BUILT_IN}
    for point in entry_points(group=GROUP):
        if point.name in table:
            raise InvalidOption(f"engine {point.name!r} is registered already ({table[point.name].home})")
        try:
            table[point.name] = EngineRow(name=point.name, **point.load())
        except Exception as error:  # a package of somebody else's; whatever fails in it is named
            raise InvalidOption(
                f"engine {point.name!r}: its row {point.value} cannot be read ({error})",
                hint="an entry point of group qcompile.engines is a mapping with home and title",
            ) from error
    return table


def switch_off_telemetry() -> None:
    """Keep the runtimes from reporting their use, in this process and its children, before any is imported.

    huggingface_hub would send names of libraries and versions with every download.
    """
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    for row in BUILT_IN:
        os.environ.update(row.environment)  # whatever it was: nothing of ours reports
        for module in row.blocked:
            sys.modules.setdefault(module, None)  # type: ignore[arg-type]  # importing it fails
