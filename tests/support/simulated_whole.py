"""A TensorRT that builds engines and runs them: the builder's stand-in and the runtime's, joined.

An engine computes the ONNX graph that was parsed, by ONNX Runtime, on the bytes at the addresses it is
given. It is for the tests of tests/engines/gpu, which are written for a real TensorRT: what is no fault of
TensorRT's shows here. Nothing is simulated here that is not in the two.
"""

from __future__ import annotations

import base64
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import simulated_builder
import simulated_engine
import simulated_gpu
import simulated_machine
import simulated_refit
from computed_plan import make_kernel
from onnx import numpy_helper
from simulated_cuda import SimulatedGpu
from simulated_cuda import install as install_cuda
from simulated_plan import read_plan, write_plan

from qcompile.compiler.io_types import set_io_types


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> SimulatedGpu:
    """Put a version of TensorRT and a GPU into this process.

    Source: the tests' own.
    """
    gpu = install_cuda(monkeypatch)
    gpu.stack.append(0xBEEF)  # PyTorch's context: as in a process where somebody else uses the GPU
    machine = simulated_machine.install(monkeypatch, folder, version)
    module = simulated_builder.simulated_tensorrt(version, machine.circumstances, _behaviours(version, gpu))
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    return gpu


def _behaviours(version: str, gpu: SimulatedGpu) -> dict[str, Any]:
    """The classes that both stand-ins have, each as one.

    Source: the tests' own: it joins simulated_builder.py and simulated_gpu.py.
    """
    running = simulated_gpu.behaviours(version, gpu)

    class Builder(simulated_builder.Builder):
        def build_serialized_network(self, network: Any, config: Any) -> Any:
            made = simulated_builder.Builder.build_serialized_network(self, network, config)
            plan = read_plan(made) if made is not None else None
            if plan is None:
                return None
            plan["model"] = _text(network._model)
            plan["values"] = [dict(profile._values) for profile in config._profiles] or [{}]
            return self._module.IHostMemory(write_plan(plan, with_weights=not plan["stripped"]))  # type: ignore[attr-defined]

    class Runtime(running["Runtime"], simulated_engine.Runtime):  # type: ignore[misc]
        def deserialize_cuda_engine(self, plan: Any) -> Any:
            content = read_plan(plan)
            reason = self._why_not(content)
            if reason or content is None:
                self._log.log(self._log.Severity.ERROR, f"IRuntime::deserializeCudaEngine: {reason}")
                return None
            engine = self._module.ICudaEngine()
            engine._plan = content
            engine._open(self, _about(content), _computed(content))
            return engine

    class ICudaEngine(running["ICudaEngine"], simulated_engine.Engine):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        def create_execution_context(self, *_: Any) -> Any:
            return running["ICudaEngine"].create_execution_context(self)

        def get_tensor_format(self, name: str, profile: int = 0) -> Any:
            return running["ICudaEngine"].get_tensor_format(self, name)

    class IExecutionContext(running["IExecutionContext"]):  # type: ignore[misc]
        @property
        def engine(self) -> Any:
            return self._engine

        def _all_known(self) -> bool:
            return True

        def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
            # The build's own inspection is on the default stream, which the runner must not use.
            handle = stream_handle or gpu.foreign_stream().handle
            chosen = running["IExecutionContext"].set_optimization_profile_async
            return bool(chosen(self, profile_index, handle))

    class Refitter(simulated_refit.Refitter):
        def _give(self, name: str, array: Any) -> bool:
            taken = simulated_refit.Refitter._give(self, name, array)
            vars(self).setdefault("_arrays", {})[name] = np.array(array)
            return taken

        def refit_cuda_engine(self) -> bool:
            done = simulated_refit.Refitter.refit_cuda_engine(self)
            if done:
                model = _model(self._engine._plan["model"])
                for item in model.graph.initializer:
                    if item.name in self._arrays:
                        item.CopyFrom(numpy_helper.from_array(self._arrays[item.name], item.name))
                self._engine._plan["model"] = _text(model)
                self._engine._kernel = make_kernel(model)
            return done

    ours = {kind.__name__: kind for kind in (Builder, Runtime, ICudaEngine, IExecutionContext, Refitter)}
    return {**running, **ours}


def _text(model: onnx.ModelProto) -> str:
    return base64.b64encode(model.SerializeToString()).decode()


def _model(text: str) -> onnx.ModelProto:
    return onnx.load_from_string(base64.b64decode(text))


def _computed(plan: dict[str, Any]) -> onnx.ModelProto:
    """What an engine computes: with inputs and outputs of 32 bits where TensorRT 8 has narrowed them.

    Source: onnx-tensorrt 8.5-GA, ModelImporter.cpp, importInput: "convertDtype", which makes INT32 of INT64.
    """
    model = _model(plan["model"])
    held = {
        value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)
    }
    narrow = {tensor["name"]: "int32" for tensor in plan["io"] if tensor["dtype"] == "INT32"}
    return set_io_types(
        model, {name: kind for name, kind in narrow.items() if held[name] == onnx.TensorProto.INT64}
    )


def _about(plan: dict[str, Any]) -> dict[str, Any]:
    """What `simulated_gpu` asks of a plan, as `computed_plan` writes it.

    Source: the tests' own.
    """
    model = _model(plan["model"])
    types = [value.type.tensor_type for value in model.graph.output]
    open_ended = [
        value.name
        for value, kind in zip(model.graph.output, types, strict=True)
        if any(dim.dim_param not in _known(model) for dim in kind.shape.dim if not dim.HasField("dim_value"))
    ]
    return {
        "version": plan["version"], "profiles": plan["profiles"] or [{}], "values": plan["values"],
        "host": [tensor["name"] for tensor in plan["io"] if tensor["holds_shape"]],
        "data_dependent": open_ended if any(n.op_type == "NonZero" for n in model.graph.node) else [],
        "types": {},
        "formats": {tensor["name"]: tensor["format"] for tensor in plan["io"]},
    }  # fmt: skip


def _known(model: onnx.ModelProto) -> set[str]:
    """Names of axes that the inputs have."""
    return {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim}


_NOT_HERE = {
    "test_a_group_norm_runs_in_a_fresh_process": "another process has no stand-ins",
    "test_ten_thousand_inferences_take_no_memory": "the driver counts the memory",
    "test_a_hundred_loads_give_everything_back": "the driver counts the memory",
    "test_no_context_stays_current": "asks libcuda itself",
}


def gpu_tests(name: str) -> dict[str, Any]:
    """Return the tests and fixtures of a file of tests/engines/gpu, without its mark.

    Source: the tests' own.
    """
    path = Path(__file__).parents[1] / f"engines/gpu/{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_on_stand_ins", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = {}
    for key, value in vars(module).items():
        if type(value).__name__ == "FixtureFunctionDefinition":
            found[key] = pytest.fixture(
                value._get_wrapped_function()
            )  # for one version alone, whatever its scope
        elif key.startswith("test_") and key not in _NOT_HERE:
            found[key] = value
    return found
