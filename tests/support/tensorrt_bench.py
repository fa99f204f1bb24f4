"""One build of a real or a simulated TensorRT, step by step, for tests of both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Said(list[tuple[str, str]]):
    """What a logger was told: (severity, text)."""

    def errors(self) -> list[str]:
        return [text for severity, text in self if severity == "ERROR"]


def listen(module: Any) -> tuple[Any, Said]:
    """A logger, and what it will be told."""
    said = Said()

    class Log(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            said.append((severity.name, message))

    return Log(), said


class Bench:
    """A builder with a parsed network, and a configuration ready to build for one batch size."""

    def __init__(
        self, module: Any, model: Path | str, *, weak: bool = False, libraries: Sequence[str] = ()
    ) -> None:
        self.module = module
        self.log, self.said = listen(module)
        self.builder = module.Builder(self.log)
        for library in libraries:
            assert self.builder.get_plugin_registry().load_library(library) is not None
        flags = module.NetworkDefinitionCreationFlag.__members__
        name = "STRONGLY_TYPED" if "STRONGLY_TYPED" in flags and not weak else "EXPLICIT_BATCH"
        self.network = self.builder.create_network(1 << int(flags[name]))
        self.parser = module.OnnxParser(self.network, self.log)
        self.parsed = self.parser.parse_from_file(str(model))
        self.config = self.builder.create_builder_config()
        self.config.profiling_verbosity = module.ProfilingVerbosity.DETAILED

    def add_profile(self, batch: int = 2) -> None:
        tensor = self.network.get_input(0)
        shape = (batch, *tuple(tensor.shape)[1:])
        profile = self.builder.create_optimization_profile()
        profile.set_shape(tensor.name, shape, shape, shape)
        assert self.config.add_optimization_profile(profile) == 0

    def calibrate_at(self, *shape: int) -> None:
        """Give the calibration profile one shape of the first input."""
        profile = self.builder.create_optimization_profile()
        profile.set_shape(self.network.get_input(0).name, shape, shape, shape)
        assert self.config.set_calibration_profile(profile)

    def permit(self, *flags: str) -> None:
        for flag in flags:
            self.config.set_flag(self.module.BuilderFlag.__members__[flag])

    def build(self) -> Any:
        return self.builder.build_serialized_network(self.network, self.config)

    def layers(self, *, shape: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        """The inspector's layers, with or without a context that knows the input's shape."""
        engine = self.module.Runtime(self.log).deserialize_cuda_engine(self.build())
        inspector = engine.create_engine_inspector()
        if shape:
            context = engine.create_execution_context()
            assert context.set_input_shape(self.network.get_input(0).name, shape)
            inspector.execution_context = context
        found = inspector.get_engine_information(self.module.LayerInformationFormat.JSON)
        layers: list[dict[str, Any]] = json.loads(found)["Layers"]
        return layers
