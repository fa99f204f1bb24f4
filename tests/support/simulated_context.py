"""Behaviours of TensorRT's execution contexts, which compute on the bytes at the addresses they are given.

The arithmetic is ONNX Runtime's on the CPU; memory and streams are `simulated_cuda`'s. What NVIDIA documents
as wrong use is refused as TensorRT does, or is a `Misuse`.

Sources: "header" is include/NvInferRuntime.h, "binding" python/src/infer/pyCore.cpp of NVIDIA/TensorRT, at
release/10.16 where no other branch is named.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from simulated_cuda import Error, Misuse
from simulated_engine import Counted
from simulated_network import complain
from simulated_plan import WORDS, PlanTensor


class Context(Counted):
    """IExecutionContext.

    Source: NvInferRuntime.h, `IExecutionContext`; its members name what else is known.
    """

    _counts = "execution context"

    def _open(self, engine: Any, config: Any = None) -> None:
        self._engine, self._log = engine, engine._log
        # Source: header of release/8.5, createExecutionContext: "each execution context in concurrent use
        # must use a separate optimization profile. The first execution context created will call
        # setOptimizationProfile(0) implicitly"; getOptimizationProfile: -1 before one is set.
        self._exclusive = self._module.__version__.startswith("8.5") and any(engine._plan["profiles"])
        first = engine._contexts == 0
        engine._contexts += 1
        self._profile = 0 if first or not self._exclusive else -1
        if self._exclusive and first:
            engine._profiles_in_use[0] = id(self)
        strategy = getattr(config, "_strategy", config)
        self._user_managed = strategy is not None and strategy.name == "USER_MANAGED"
        self._provided = 0
        self._config = config if hasattr(config, "_strategy") else None
        self._runs: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._report: Any = None
        self._listener: Any = None
        self._shown: set[str] = set()
        self._copying: list[int] = []
        self._state = 0
        self._is_settled = False
        self._begin()

    def __del__(self) -> None:
        if getattr(self, "_alive", False):
            in_use = self._engine._profiles_in_use
            for index in [index for index, user in in_use.items() if user == id(self)]:
                del in_use[index]
        Counted.__del__(self)

    @property
    def engine(self) -> Any:
        return self._engine

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

    def _all_known(self) -> bool:
        inputs = [tensor for tensor in self._engine._tensors.values() if tensor.is_input]
        return all(tensor.name in self._shapes or min(tensor.shape, default=0) >= 0 for tensor in inputs)

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        # Source: header, setOptimizationProfileAsync: data may be copied on the stream, and "it is the
        # application's responsibility to guarantee that synchronization between the profile sync stream and
        # the enqueue stream occurs".
        in_use = self._engine._profiles_in_use
        refused = "injected" if self._gpu.enter("set_optimization_profile_async") else ""
        if self._exclusive and in_use.get(profile_index, id(self)) != id(self):
            refused = f"Profile {profile_index} has been chosen by another context"
        if refused:
            # Source: NVIDIA/TensorRT, release/8.5 to 11.1, python/src/infer/pyCore.cpp,
            # context_set_optimization_profile_async: C++'s false becomes this exception.
            complain(self, refused)
            raise RuntimeError("Error in set optimization profile async.")
        if self._exclusive:
            in_use.pop(self._profile, None)
            in_use[profile_index] = id(self)
        self._changed()
        self._profile, self._shapes, self._copying = profile_index, {}, [stream_handle]
        if stream_handle:
            self._stream(stream_handle).tell(self._copying.clear)
        return True

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        # Source: header, setInputShape: "false if [...] some other error occurred"; so the binding.
        if self._profile < 0:
            return complain(self, "no optimization profile is chosen")
        declared, shape = self._engine._tensors[name].shape, tuple(shape)
        low, _, high = self._engine._plan["profiles"][self._profile].get(name, [declared] * 3)
        fits = len(shape) == len(low) and all(
            a <= extent <= b for a, extent, b in zip(low, shape, high, strict=True)
        )
        if not fits or self._gpu.enter("set_input_shape"):
            return complain(self, f"{name}: {shape} is outside of the profile")
        self._changed()
        self._shapes[name] = shape
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        # Source: header, setTensorAddress: "If getTensorShape(name) reports a -1 for any dimension of an
        # output after all input shapes have been set, use setOutputAllocator()".
        tensor = self._engine._tensors[name]
        if tensor.is_input or name in self._engine._plan["data_dependent"]:
            return self._shapes.get(name, tuple(tensor.shape))
        feeds = {
            other.name: self._on_host(other, self._shapes[other.name]) if other.holds_shape
            else np.zeros(self._shapes[other.name], other.array_type)
            for other in self._engine._tensors.values() if other.is_input
        }  # fmt: skip
        return tuple(self._engine._compute(feeds)[name].shape)

    def set_tensor_address(self, name: str, memory: int) -> bool:
        # Source: header, setTensorAddress: "Pass data=nullptr to reset to the default state"; "The pointer
        # must have at least 256-byte alignment".
        if self._gpu.enter("set_tensor_address"):
            return complain(self, f"{name}: injected")
        if not memory:
            self._addresses.pop(name, None)
            return True
        if not self._engine._tensors[name].holds_shape and memory % 256:
            raise Misuse(f"{name}: address {memory:#x} is not aligned")
        self._changed()
        self._addresses[name] = memory
        return True

    def set_output_allocator(self, name: str, output_allocator: Any) -> bool:
        if self._gpu.enter("set_output_allocator"):
            return complain(self, f"{name}: no allocator")
        self._allocators[name] = output_allocator
        return True

    def is_stream_capturable(self, stream: int) -> bool:
        # Source: TensorRT-RTX's release notes 1.2: not "when using data-dependent dynamic shapes".
        return not self._engine._plan["data_dependent"]

    # Source: header, ExecutionContextAllocationStrategy: USER_MANAGED takes memory from its user, for the
    # shapes of now; setDeviceMemoryV2: the size "must be large enough for performing inference with the given
    # network inputs"; updateDeviceMemorySizeForShapes: "must specify all input shapes".

    def update_device_memory_size_for_shapes(self) -> int:
        self._provided = 0
        return self._needed()

    def set_device_memory(self, memory: int, size: int) -> None:
        self._provided = size if memory else 0

    def _needed(self) -> int:
        return sum(256 * math.prod(shape) for shape in self._shapes.values())

    def set_debug_listener(self, listener: Any) -> bool:
        self._listener = listener
        return True

    def set_all_tensors_debug_state(self, flag: bool) -> bool:
        # Source: header, setAllTensorsDebugState and setUnfusedTensorsDebugState: off unless turned on.
        (self._shown.add if flag else self._shown.discard)("marked")
        return True

    @property
    def unfused_tensors_debug_state(self) -> bool:
        return "unfused" in self._shown

    @unfused_tensors_debug_state.setter
    def unfused_tensors_debug_state(self, flag: bool) -> None:
        (self._shown.add if flag else self._shown.discard)("unfused")

    def execute_async_v3(self, stream_handle: int) -> bool:
        gpu, tensors = self._gpu, self._engine._tensors.values()
        gpu.require_context()
        stream = self._stream(stream_handle)
        if self._copying and self._copying != [stream_handle]:
            raise Misuse("the optimization profile was chosen on another stream, which nobody waited for")
        if gpu.enter("execute_async_v3"):
            return complain(self, "Cuda Runtime (an illegal memory access was encountered)")
        # Source: header, setTensorAddress: "each input must have a non-null address and each output must have
        # a non-null address or an IOutputAllocator".
        bound = {*self._addresses, *self._allocators}
        missing = [tensor.name for tensor in tensors if tensor.name not in bound]
        if missing or set(self._shapes) != {tensor.name for tensor in tensors if tensor.is_input}:
            return complain(self, f"not everything is specified: {missing}")
        # Source: header of release/8.5, enqueueV2: the first call after shapes were set "will cause failure
        # in stream capture due to resource allocation"; developer guide: data-dependent shapes.
        if stream.captured is not None and (not self._is_settled or self._allocators or self._report):
            stream.void = True
            return complain(self, "operation not permitted when stream is capturing")
        if self._user_managed and self._provided < self._needed():
            return complain(self, f"{self._provided} bytes are too few, {self._needed()} are needed")
        run = self._run()
        if stream.captured is not None:
            stream.tell(self._as_captured(run))
        else:
            stream.tell(lambda: gpu.run_kernel(run))
        if self._allocators or self._report is not None or self._shown:
            stream.run()
        self._is_settled = True
        self._note_run()
        for index, layer in enumerate(self._engine._node_names() if self._report is not None else ()):
            self._report.report_layer_time(layer, (index + 1) / 2)
        self._tell_debug_tensors(stream_handle)
        return all(self._outcomes.values())

    def _as_captured(self, run: Any) -> Any:
        # Source: NVIDIA's best practices, CUDA graphs: "Use one execution context per captured graph".
        state = self._state

        def replay() -> None:
            if self._state != state:
                raise Misuse("a graph is replayed after its execution context was changed")
            self._gpu.run_kernel(run)

        return replay

    def _run(self) -> Any:
        """What the kernels do, with shapes and addresses of now."""
        shapes, addresses, tensors = dict(self._shapes), dict(self._addresses), self._engine._tensors.values()
        self._outcomes: dict[str, bool] = {}

        def run() -> None:
            feeds = {}
            for tensor in tensors:
                if tensor.is_input and tensor.holds_shape:
                    feeds[tensor.name] = self._on_host(tensor, shapes[tensor.name])
                elif tensor.is_input:
                    size = math.prod(shapes[tensor.name]) * tensor.array_type.itemsize
                    data = self._gpu.bytes_at(addresses[tensor.name], size).copy()
                    feeds[tensor.name] = data.view(tensor.array_type).reshape(shapes[tensor.name])
            self._computed = self._engine._compute(feeds)
            for tensor in tensors:
                if not tensor.is_input:
                    self._write(tensor, np.ascontiguousarray(self._computed[tensor.name]), addresses)

        return run

    def _write(self, tensor: PlanTensor, array: np.ndarray[Any, Any], addresses: dict[str, int]) -> None:
        data = np.asarray(array, tensor.array_type).reshape(-1).view(np.uint8)
        allocator = self._allocators.get(tensor.name)
        if allocator is None:
            address = addresses[tensor.name]
        else:
            # Source: binding, PyOutputAllocator, release/8.5 and 10.16.
            request = (tensor.name, 0, max(data.size, 1), 256)
            old = self._module.__version__.startswith("8.5")
            address = (
                allocator.reallocate_output(*request) if old
                else allocator.reallocate_output_async(*request, 0)
            )  # fmt: skip
            self._outcomes[tensor.name] = bool(address)
            if not address:
                complain(self, f"{tensor.name}: cannot be allocated")
                return
            allocator.notify_shape(tensor.name, array.shape)
        if tensor.holds_shape:
            ctypes.memmove(address, data.ctypes.data, data.size)
        else:
            self._gpu.bytes_at(address, data.size)[:] = data

    def _on_host(self, tensor: PlanTensor, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        size = math.prod(shape) * tensor.array_type.itemsize
        data = ctypes.string_at(self._addresses[tensor.name], size)
        return np.frombuffer(data, tensor.array_type).reshape(shape)

    def _stream(self, handle: int) -> Any:
        # Source: header, enqueueV3: "Using default stream may lead to performance issues".
        if handle in (0, 1, 2):
            raise Misuse("the default stream is used")
        if handle not in self._gpu.streams:
            raise Error("invalid resource handle")
        return self._gpu.streams[handle]

    def _note_run(self) -> None:
        """Count what TensorRT-RTX compiles, captures and replays by itself.

        Source: documentation, "Working with RTX CUDA Graphs": "valid capture begins on the second iteration
        and replay on the third".
        """
        if self._config is None:
            return
        shapes, cache, graphs = repr(sorted(self._shapes.items())), self._config._cache, self._config._graphs
        if cache is not None and shapes not in cache._kernels:
            cache._kernels.add(shapes)
            self._gpu.made["compiled kernel"] += 1
        if graphs and graphs.name == "WHOLE_GRAPH_CAPTURE":
            self._runs[shapes] = self._runs.get(shapes, 0) + 1
            self._gpu.made["RTX capture"] += self._runs[shapes] == 2
            self._gpu.made["RTX replay"] += self._runs[shapes] > 2

    def _tell_debug_tensors(self, stream_handle: int) -> None:
        """Call the listener: what it raises is printed and dropped, what it returns is not looked at.

        Source: header, IDebugListener::processDebugTensor: the value is there for the time of the call alone;
        binding, PyDebugListener.
        """
        shown = sorted(self._shown) if self._listener is not None else ()
        for name in [name for kind in shown for name in self._engine._plan[kind]]:
            data = np.ascontiguousarray(self._computed[name])
            address, free = self._gpu.array_on_device(data)
            kind = self._module.DataType[WORDS[data.dtype]]
            try:
                device = self._module.TensorLocation.DEVICE
                self._listener.process_debug_tensor(address, device, kind, data.shape, name, stream_handle)
            except Exception as error:
                print(f"[ERROR] Exception caught in processDebugTensor(): {error}")
            finally:
                free()


class RuntimeConfig:
    """IRuntimeConfig of TensorRT-RTX.

    Source: `help(tensorrt_rtx.IRuntimeConfig)` of tensorrt_rtx 1.7.1.116; its documentation, "Working with
    RTX CUDA Graphs": they are "disabled by default"; samples/apiUsage/api_usage.py of NVIDIA/TensorRT-RTX:
    "the default strategy is LAZY".
    """

    def __init__(self) -> None:
        strategies = getattr(self._module, "CudaGraphStrategy", None)
        self._graphs = strategies and strategies.DISABLED
        self._kernels = self._module.DynamicShapesKernelSpecializationStrategy.LAZY
        self._cache: Any = None
        self._strategy = self._module.ExecutionContextAllocationStrategy.STATIC

    @property
    def cuda_graph_strategy(self) -> Any:
        return self._graphs

    @cuda_graph_strategy.setter
    def cuda_graph_strategy(self, value: Any) -> None:
        # C++ `setCudaGraphStrategy` answers a bool, which the Python attribute cannot tell.
        if not self._module._gpu.enter("cuda_graph_strategy"):
            self._graphs = value

    dynamic_shapes_kernel_specialization_strategy: Any = None

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self._strategy = strategy

    def create_runtime_cache(self) -> Any:
        return self._module.IRuntimeCache()

    def set_runtime_cache(self, cache: Any = None) -> bool:
        self._cache = cache
        return True


class RuntimeCache:
    """IRuntimeCache: holds the names of what was compiled, one for each kernel.

    Source: `help(tensorrt_rtx.IRuntimeCache)` of tensorrt_rtx 1.7.1.116, and its documentation, "Working with
    Runtime Cache": a blob "is rejected (leaving this cache unchanged) on any mismatch"; "a current CUDA
    context must be present so the environment can be captured for comparison".
    """

    def __init__(self) -> None:
        self._kernels: set[str] = set()

    def deserialize(self, blob: Any) -> bool:
        self._module._gpu.require_context()
        content = json.loads(bytes(blob))
        if content["gpu"] != self._module._gpu.name:
            return False
        self._kernels = set(content["kernels"])
        return True

    def serialize(self) -> Any:
        content = {"gpu": self._module._gpu.name, "kernels": sorted(self._kernels)}
        return self._module.IHostMemory(json.dumps(content).encode())


BEHAVIOURS: dict[str, Any] = {
    "IExecutionContext": Context,
    "IRuntimeConfig": RuntimeConfig,
    "IRuntimeCache": RuntimeCache,
}
