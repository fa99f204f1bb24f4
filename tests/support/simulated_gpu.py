"""TensorRT where no GPU is: engines that really compute, on the bytes at the addresses they are given.

Names are those that each version has (`recorded_tensorrt`), the arithmetic is ONNX Runtime's on the CPU, and
memory and streams are `simulated_cuda`'s. What NVIDIA documents as wrong use is refused as TensorRT does, or
is a `Misuse`.

Sources: "header" is include/NvInferRuntime.h, "binding" python/src/infer/pyCore.cpp of NVIDIA/TensorRT, at
release/10.16 where no other branch is named. Getters return what the plan says.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from computed_plan import TYPES, PlanTensor, make_kernel
from recorded_tensorrt import recorded_module
from simulated_cuda import Error, Misuse, SimulatedGpu
from simulated_process import init_plugins, missing_plugin, registered_logger
from simulated_runtime_config import ContextMemory, EngineMemory, RtxKernels
from simulated_runtime_config import behaviours as runtime_behaviours

from qcompile.engines.tensorrt.adapter import Adapter


def make_adapter(version: str, gpu: SimulatedGpu) -> Adapter:
    """Return the adapter of one version, on a simulated GPU.

    Source: the tests' own.
    """
    module: Any = recorded_module(version, behaviours(version, gpu))
    module.init_libnvinfer_plugins = init_plugins(module)
    return Adapter(module, "tensorrt-rtx" if version == "rtx" else "tensorrt")


def behaviours(version: str, gpu: SimulatedGpu) -> dict[str, Any]:
    """Return what the classes of TensorRT do, for `recorded_module`."""

    def complain(log: Any, text: str) -> bool:
        log.log(log.Severity.ERROR, f"[executionContext.cpp::check::1] Error Code 3: API Usage Error: {text}")
        return False

    class Counted:
        """Exists as long as Python holds it.

        Source: header, ~IExecutionContext and ~ICudaEngine free device memory, which needs the CUDA context.
        """

        _counts = ""

        def _begin(self) -> None:
            gpu.require_context()
            gpu.count(self._counts, 1)
            self._alive = True

        def __del__(self) -> None:
            if getattr(self, "_alive", False):
                gpu.count(self._counts, -1)
                if not gpu.stack:
                    gpu.complaints.append(f"{self._counts} destroyed without a current context")

    class Runtime(Counted):
        _counts = "runtime"

        def __init__(self, logger: Any) -> None:
            self._log = registered_logger(self, logger, "Runtime")
            self._begin()

        def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
            # Source: header, IRuntime::deserializeCudaEngine: "nullptr if it could not be deserialized".
            header, _, model = serialized_engine.partition(b"\0")
            about = json.loads(header) if header.startswith(b"{") else {"version": "unknown"}
            if about["version"] != version or gpu.enter("deserialize_cuda_engine"):
                complain(self._log, "The engine plan file is not compatible with this version of TensorRT")
                return None
            if missing := missing_plugin(self, about):
                complain(self._log, missing)
                return None
            engine = self._module.ICudaEngine()  # what is given to a call is recorded, and so kept
            engine._open(self, about, onnx.load_from_string(model))
            return engine

    class ICudaEngine(EngineMemory, Counted):
        _counts = "engine"

        def _open(self, runtime: Any, about: dict[str, Any], model: onnx.ModelProto) -> None:
            self._runtime, self._log, self._about = runtime, runtime._log, about
            self._tensors = {
                value.name: PlanTensor(value, is_input)
                for values, is_input in ((model.graph.input, True), (model.graph.output, False))
                for value in values
            }
            self._kernel = make_kernel(model)
            self._nodes = [node.name or node.op_type for node in model.graph.node]
            self._profiles_in_use: dict[int, Any] = {}
            self._contexts = 0
            self._begin()

        @property
        def num_io_tensors(self) -> int:
            return len(self._tensors)

        @property
        def num_optimization_profiles(self) -> int:
            return len(self._about["profiles"])

        @property
        def _is_dynamic(self) -> bool:
            return any(self._about["profiles"])

        def get_tensor_name(self, index: int) -> str:
            return list(self._tensors)[index]

        def get_tensor_dtype(self, name: str) -> Any:
            tensor = self._tensors[name]
            return self._module.DataType[self._about["types"].get(name, TYPES[str(tensor.dtype)])]

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return self._tensors[name].shape

        def get_tensor_mode(self, name: str) -> Any:
            return self._module.TensorIOMode["INPUT" if self._tensors[name].is_input else "OUTPUT"]

        def get_tensor_location(self, name: str) -> Any:
            return self._module.TensorLocation["HOST" if name in self._about["host"] else "DEVICE"]

        def get_tensor_format(self, name: str) -> Any:
            return self._module.TensorFormat[self._about["formats"].get(name, "LINEAR")]

        def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
            return [tuple(shape) for shape in self._about["profiles"][profile_index][name]]

        def is_shape_inference_io(self, name: str) -> bool:
            return name in self._about["host"]

        def get_tensor_profile_values(self, profile: int, name: str) -> list[list[int]]:
            # Source: NVIDIA/TensorRT release/10.16, python/src/infer/pyCore.cpp, get_tensor_profile_values.
            if not (self.is_shape_inference_io(name) and self._tensors[name].is_input):
                raise RuntimeError("Binding index does not correspond to an input shape tensor.")
            return list(self._about["values"][profile].get(name, []))

        def create_runtime_config(self) -> Any:
            return self._module.IRuntimeConfig()

        def create_execution_context(self, *config: Any) -> Any:
            # Source: binding, create_execution_context: None for C++'s nullptr.
            if gpu.enter("create_execution_context"):
                complain(self._log, "out of memory")
                return None
            context = self._module.IExecutionContext()
            context._open(self, *config)
            return context

    class IExecutionContext(ContextMemory, Counted):
        _counts = "execution context"

        def _open(self, engine: Any, config: Any = None) -> None:
            self._engine, self._log = engine, engine._log
            self._compiled = RtxKernels(gpu, self._allocated_by(config))
            # Source: header of release/8.5, createExecutionContext: "each execution context in concurrent use
            # must use a separate optimization profile. The first execution context created will call
            # setOptimizationProfile(0) implicitly"; getOptimizationProfile: -1 before one is set.
            self._exclusive = version == "8.5.3" and engine._is_dynamic
            first = engine._contexts == 0
            engine._contexts += 1
            self._profile = 0 if first or not self._exclusive else -1
            if self._exclusive and first:
                engine._profiles_in_use[0] = id(self)
            self._shapes: dict[str, tuple[int, ...]] = {}
            self._addresses: dict[str, int] = {}
            self._allocators: dict[str, Any] = {}
            self._report: Any = None
            self._state = 0
            self._is_settled = False
            self._begin()

        def __del__(self) -> None:
            if getattr(self, "_alive", False):
                in_use = self._engine._profiles_in_use
                for index in [index for index, user in in_use.items() if user == id(self)]:
                    del in_use[index]
            Counted.__del__(self)  # type: ignore[arg-type]

        @property
        def active_optimization_profile(self) -> int:
            return self._profile

        @property
        def profiler(self) -> Any:
            return self._report

        @profiler.setter
        def profiler(self, value: Any) -> None:
            self._changed()
            self._report = value

        def _changed(self) -> None:
            self._state += 1
            self._is_settled = False

        def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
            self._check_stream(stream_handle)
            in_use = self._engine._profiles_in_use
            refused = "injected" if gpu.enter("set_optimization_profile_async") else ""
            if self._exclusive and in_use.get(profile_index, id(self)) != id(self):
                refused = f"Profile {profile_index} has been chosen by another context"
            if refused:
                # Source: NVIDIA/TensorRT, release/8.5 to 11.1, python/src/infer/pyCore.cpp,
                # context_set_optimization_profile_async: C++'s false becomes this exception.
                complain(self._log, refused)
                raise RuntimeError("Error in set optimization profile async.")
            if self._exclusive:
                in_use.pop(self._profile, None)
                in_use[profile_index] = id(self)
            self._changed()
            self._profile, self._shapes = profile_index, {}
            gpu.streams[stream_handle].tell(lambda: None)
            return True

        def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
            # Source: header, setInputShape: "false if [...] some other error occurred"; so the binding.
            if self._profile < 0:
                return complain(self._log, "no optimization profile is chosen")
            declared, shape = self._engine._tensors[name].shape, tuple(shape)
            low, _, high = self._engine._about["profiles"][self._profile].get(name, [declared] * 3)
            fits = len(shape) == len(low) and all(
                a <= extent <= b for a, extent, b in zip(low, shape, high, strict=True)
            )
            if not fits or gpu.enter("set_input_shape"):
                return complain(self._log, f"{name}: {shape} is outside of the profile")
            self._changed()
            self._shapes[name] = shape
            return True

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            # Source: header, setTensorAddress: "If getTensorShape(name) reports a -1 for any dimension of an
            # output after all input shapes have been set, use setOutputAllocator()".
            tensor = self._engine._tensors[name]
            if tensor.is_input:
                return self._shapes.get(name, tensor.shape)
            if name in self._engine._about["data_dependent"]:
                return tensor.shape
            feeds = {}
            for found in self._engine._tensors.values():
                if found.is_input and found.name in self._engine._about["host"]:
                    feeds[found.name] = self._host(found, self._shapes[found.name]).copy()
                elif found.is_input:
                    feeds[found.name] = np.zeros(self._shapes[found.name], found.dtype)
            index = [n for n, found in self._engine._tensors.items() if not found.is_input].index(name)
            return tuple(self._engine._kernel(feeds)[index].shape)

        def set_tensor_address(self, name: str, memory: int) -> bool:
            # Source: header, setTensorAddress: "Pass data=nullptr to reset to the default state"; "The
            # pointer must have at least 256-byte alignment".
            if gpu.enter("set_tensor_address"):
                return complain(self._log, f"{name}: injected")
            if not memory:
                self._addresses.pop(name, None)
                return True
            if name not in self._engine._about["host"] and memory % 256:
                raise Misuse(f"{name}: address {memory:#x} is not aligned")
            self._changed()
            self._addresses[name] = memory
            return True

        def set_output_allocator(self, name: str, output_allocator: Any) -> bool:
            if gpu.enter("set_output_allocator"):
                return complain(self._log, f"{name}: no allocator")
            self._allocators[name] = output_allocator
            return True

        def is_stream_capturable(self, stream: int) -> bool:
            # Source: TensorRT-RTX's release notes 1.2: not "when using data-dependent dynamic shapes".
            return not self._engine._about["data_dependent"]

        def execute_async_v3(self, stream_handle: int) -> bool:
            gpu.require_context()
            self._check_stream(stream_handle)
            stream = gpu.streams[stream_handle]
            if gpu.enter("execute_async_v3"):
                return complain(self._log, "Cuda Runtime (an illegal memory access was encountered)")
            tensors = self._engine._tensors.values()
            # Source: header, setTensorAddress: "each input must have a non-null address and each output must
            # have a non-null address or an IOutputAllocator".
            missing = [
                tensor.name
                for tensor in tensors
                if tensor.name not in self._addresses and tensor.name not in self._allocators
            ]
            if missing or set(self._shapes) != {tensor.name for tensor in tensors if tensor.is_input}:
                return complain(self._log, f"not everything is specified: {missing}")
            # Source: header of release/8.5, enqueueV2: the first call after shapes were set "will cause
            # failure in stream capture due to resource allocation"; developer guide: data-dependent shapes.
            if stream.captured is not None and (not self._is_settled or self._allocators or self._report):
                stream.void = True
                return complain(self._log, "operation not permitted when stream is capturing")
            if too_little := self._too_little_memory():
                return complain(self._log, too_little)
            run = self._run()
            if self._allocators or self._report is not None:
                stream.run()
                gpu.run_kernel(run)
            elif stream.captured is not None:
                stream.tell(self._as_captured(run))
            else:
                stream.tell(lambda: gpu.run_kernel(run))
            self._is_settled = True
            self._compiled.run(tuple(sorted(self._shapes.items())))
            for index, node in enumerate(self._engine._nodes if self._report is not None else ()):
                self._report.report_layer_time(node, (index + 1) / 2)
            return all(allocator.notified for allocator in self._outcomes.values())

        def _as_captured(self, run: Any) -> Any:
            # Source: NVIDIA's best practices, CUDA graphs: "Use one execution context per captured graph".
            state = self._state

            def replay() -> None:
                if self._state != state:
                    raise Misuse("a graph is replayed after its execution context was changed")
                gpu.run_kernel(run)

            return replay

        def _run(self) -> Any:
            """What the kernels do, with shapes and addresses of now."""
            shapes, addresses = dict(self._shapes), dict(self._addresses)
            self._outcomes: dict[str, Any] = {}

            def run() -> None:
                feeds = {}
                outputs = []
                for tensor in self._engine._tensors.values():
                    if not tensor.is_input:
                        outputs.append(tensor)
                    elif tensor.name in self._engine._about["host"]:
                        feeds[tensor.name] = self._host(tensor, shapes[tensor.name])
                    else:
                        size = int(np.prod(shapes[tensor.name])) * tensor.dtype.itemsize
                        data = gpu.bytes_at(addresses[tensor.name], size)
                        feeds[tensor.name] = data.copy().view(tensor.dtype).reshape(shapes[tensor.name])
                found = self._engine._kernel(feeds)
                for tensor, array in zip(outputs, found, strict=True):
                    self._write(tensor, np.ascontiguousarray(array), addresses)

            return run

        def _write(self, tensor: PlanTensor, array: np.ndarray[Any, Any], addresses: dict[str, int]) -> None:
            data = np.asarray(array, tensor.dtype).reshape(-1).view(np.uint8)
            if tensor.name in self._allocators:
                address = self._ask(tensor.name, max(data.size, 1))
                self._outcomes[tensor.name] = _Outcome(bool(address))
                if not address:
                    complain(self._log, f"{tensor.name}: cannot be allocated")
                    return
                self._allocators[tensor.name].notify_shape(tensor.name, array.shape)
            else:
                address = addresses[tensor.name]
            if tensor.name in self._engine._about["host"]:
                ctypes.memmove(address, data.ctypes.data, data.size)
            else:
                gpu.bytes_at(address, data.size)[:] = data

        def _ask(self, name: str, size: int) -> int:
            # Source: binding, PyOutputAllocator, release/8.5 and 10.16.
            allocator = self._allocators[name]
            if version == "8.5.3":
                return allocator.reallocate_output(name, 0, size, 256)  # type: ignore[no-any-return]
            return allocator.reallocate_output_async(name, 0, size, 256, 0)  # type: ignore[no-any-return]

        def _host(self, tensor: PlanTensor, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
            size = int(np.prod(shape)) * tensor.dtype.itemsize
            data = ctypes.string_at(self._addresses[tensor.name], size)
            return np.frombuffer(data, tensor.dtype).reshape(shape)

        def _check_stream(self, handle: int) -> None:
            # Source: header, enqueueV3: "Using default stream may lead to performance issues".
            if handle in (0, 1, 2):
                raise Misuse("the default stream is used")
            if handle not in gpu.streams:
                raise Error("invalid resource handle")

    class _Outcome:
        def __init__(self, notified: bool) -> None:
            self.notified = notified

    classes = {"Runtime": Runtime, "ICudaEngine": ICudaEngine, "IExecutionContext": IExecutionContext}
    return {**classes, **runtime_behaviours(gpu)}
