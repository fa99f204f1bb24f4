"""A machine with a GPU and one version of TensorRT, as far as building goes; see `simulated_builder`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from simulated_builder import Circumstances, simulated_tensorrt
from simulated_cuda import SimulatedGpu
from simulated_network import library_opener

import qcompile
from qcompile.core.artifact import Artifact
from qcompile.engines.gpu import Gpu
from qcompile.engines.tensorrt import engine, plan
from qcompile.engines.tensorrt.builder import builder, refit
from qcompile.spec.tensorrt import TensorRTOptions

MakeFile = Callable[..., Path]
OnMachine = Callable[..., "Machine"]
GPU = Gpu("Simulated A10", "sm86", 24 << 30, "12.4")


@dataclass
class Machine:
    """What a test builds on. Source: the tests' own."""

    module: Any
    circumstances: Circumstances
    folder: Path

    def build(
        self,
        model: Path,
        precision: str = "fp32",
        *,
        name: str = "m",
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Artifact:
        """Build for target tensorrt; `options` are those of `TensorRTOptions`."""
        output = self.folder / "built" / f"{name}.engine"
        chosen = TensorRTOptions(**options) if options is not None else None
        return qcompile.build(model, output, target="tensorrt", precision=precision, tensorrt=chosen, **more)

    def told(self, member: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of a member of TensorRT's classes, in order."""
        return [call.args for call in self.module.recorded_calls if call.member == member]

    def flags(self) -> set[str]:
        """The builder flags that were set and not taken away again."""
        found: set[str] = set()
        for call in self.module.recorded_calls:
            if call.owner != "IBuilderConfig":
                continue
            if call.member == "set_flag":
                found.add(call.args[0].name)
            elif call.member == "clear_flag":
                found.discard(call.args[0].name)
        return found

    @property
    def nothing_built(self) -> bool:
        """Whether no file was left behind but what was built and rejected, which has a name of its own."""
        folder = self.folder / "built"
        return not folder.exists() or all(".rejected." in path.name for path in folder.iterdir())


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, version: str, gpu: SimulatedGpu | None = None, **about: Any
) -> Machine:
    """Put a version of TensorRT and a GPU into this process; `about` are `Circumstances`.

    Without `gpu` there is no package that drives CUDA: engines are built and inspected, and none runs.

    Source: the tests' own.
    """
    circumstances = Circumstances(**about)
    module = simulated_tensorrt(version, circumstances, gpu)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    monkeypatch.setattr(plan, "open_library", library_opener(module))
    for home in (builder, engine, refit):
        monkeypatch.setattr(home, "find_gpu", lambda *_: GPU)
    monkeypatch.setattr(engine, "why_no_gpu", lambda: "")
    monkeypatch.setattr(engine, "why_not_gpu", lambda index: "" if index == 0 else f"no GPU {index}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return Machine(module, circumstances, folder)
