"""Debug tensors of a simulated engine, told to a listener as TensorRT tells them.

Source: NvInfer.h and NvInferRuntime.h of NVIDIA/TensorRT, release/10.16 (markDebug, IDebugListener,
setAllTensorsDebugState, setUnfusedTensorsDebugState: off unless turned on), and of its Python binding
python/src/infer/pyCore.cpp, PyDebugListener: what the listener raises is printed and dropped, what it
returns is not looked at. That the value is there for the time of the call alone: processDebugTensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from computed_plan import TYPES, make_kernel
from recorded_tensorrt import recorded_module
from simulated_cuda import SimulatedGpu
from simulated_gpu import behaviours
from simulated_process import init_plugins

from qcompile.engines.tensorrt.adapter import Adapter


def make_debug_adapter(version: str, gpu: SimulatedGpu) -> Adapter:
    """As `simulated_gpu.make_adapter`, with debug tensors in the versions that have them."""
    base = behaviours(version, gpu)
    module: Any = recorded_module(version, {**base, **debug_behaviours(base, gpu)})
    module.init_libnvinfer_plugins = init_plugins(module)
    return Adapter(module, "tensorrt-rtx" if version == "rtx" else "tensorrt")


def add_debug_tensors(plan: Path, marked: Sequence[str], unfused: Sequence[str]) -> None:
    """Let an engine of `write_plan` show tensors: those that were marked, and those left unfused."""
    header, _, model = plan.read_bytes().partition(b"\0")
    about = {**json.loads(header), "marked": list(marked), "unfused": list(unfused)}
    plan.write_bytes(json.dumps(about).encode() + b"\0" + model)


def debug_behaviours(base: dict[str, Any], gpu: SimulatedGpu) -> dict[str, Any]:
    """Return an engine that computes its debug tensors, and a context that tells them."""

    class ICudaEngine(base["ICudaEngine"]):  # type: ignore[misc]
        def _open(self, runtime: Any, about: dict[str, Any], model: onnx.ModelProto) -> None:
            base["ICudaEngine"]._open(self, runtime, about, model)
            names = [*about.get("marked", []), *about.get("unfused", [])]
            self._computed: dict[str, np.ndarray[Any, Any]] = {}
            if names:
                self._kernel = _with_more(model, names, self._computed)

    class IExecutionContext(base["IExecutionContext"]):  # type: ignore[misc]
        def _open(self, engine: Any, *config: Any) -> None:
            base["IExecutionContext"]._open(self, engine, *config)
            self._listener: Any = None
            self._shown: set[str] = set()

        def set_debug_listener(self, listener: Any) -> bool:
            self._listener = listener
            return True

        def set_all_tensors_debug_state(self, flag: bool) -> bool:
            self._switch("marked", flag)
            return True

        @property
        def unfused_tensors_debug_state(self) -> bool:
            return "unfused" in self._shown

        @unfused_tensors_debug_state.setter
        def unfused_tensors_debug_state(self, flag: bool) -> None:
            self._switch("unfused", flag)

        def _switch(self, kind: str, flag: bool) -> None:
            (self._shown.add if flag else self._shown.discard)(kind)

        def execute_async_v3(self, stream_handle: int) -> bool:
            done = base["IExecutionContext"].execute_async_v3(self, stream_handle)
            if self._listener is not None and self._shown and done:
                gpu.streams[stream_handle].run()
                for kind in sorted(self._shown):
                    for name in self._engine._about.get(kind, []):
                        self._tell(name, self._engine._computed[name], stream_handle)
            return bool(done)

        def _tell(self, name: str, array: np.ndarray[Any, Any], stream: int) -> None:
            data = np.ascontiguousarray(array)
            address = gpu.allocate(max(data.nbytes, 1))
            gpu.bytes_at(address, data.nbytes)[:] = data.reshape(-1).view(np.uint8)
            location = self._module.TensorLocation.DEVICE
            kind = self._module.DataType[TYPES[str(data.dtype)]]
            try:
                self._listener.process_debug_tensor(address, location, kind, data.shape, name, stream)
            except Exception as error:
                print(f"[ERROR] Exception caught in processDebugTensor(): {error}")
            finally:
                gpu.release(address, "device memory")

    return {"ICudaEngine": ICudaEngine, "IExecutionContext": IExecutionContext}


def _with_more(
    model: onnx.ModelProto, names: Sequence[str], computed: dict[str, Any]
) -> Callable[[dict[str, Any]], list[Any]]:
    """A kernel that also computes tensors inside, into `computed`."""
    own = [value.name for value in model.graph.output]
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    inside = [name for name in dict.fromkeys(names) if name not in own]
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inside)
    kernel = make_kernel(extended)

    def run(feeds: dict[str, Any]) -> list[Any]:
        found = kernel(feeds)
        computed.update(zip([*own, *inside], found, strict=True))
        return list(found[: len(own)])

    return run
