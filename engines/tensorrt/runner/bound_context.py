"""An execution context with its buffers on one stream: all resources of one inference in flight."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from numpy.typing import NDArray

from ....errors import ModelError, first_line
from ....spec.tensors import format_shape
from ...gpu import GpuTimes, time_runs
from ...libcuda import CudaError
from .cuda import CudaGraph, Event, Stream
from .io_tensors import FeedShapes, IOTensor, Profile
from .loaded_engine import GRAPH_HINT, LoadedEngine
from .memory import DeviceBuffer, DeviceInput, HostBuffer, make_output_allocator, make_profiler

Values = Mapping[str, "NDArray[Any] | DeviceInput"]


class BoundContext:
    """An execution context that is bound to feeds, run, and bound again. The device's primary CUDA context
    must be active. `binding` is a new object after every `bind`: compare it to detect later binds."""

    def __init__(self, loaded: LoadedEngine, stream: Stream) -> None:
        self._loaded = loaded
        self._stream: Any = stream
        self._captures = loaded.cuda_graph and not loaded.captures_itself
        self._cuda = loaded.context.cuda
        self._context = loaded.make_context()
        self.binding: object = object()
        self._bound: tuple[int, object] | None = None
        self._activations = DeviceBuffer(self._cuda)
        self._device = {tensor.name: DeviceBuffer(self._cuda) for tensor in loaded.tensors}
        self._host = {tensor.name: HostBuffer(self._cuda) for tensor in loaded.tensors}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._owners: list[Any] = []
        self._uploads: list[str] = []
        self._device_copies: dict[str, DeviceInput] = {}
        self._on_host: dict[str, NDArray[Any]] = {}
        self._graph: CudaGraph | None = None
        self._under_way = False

    def bind(self, values: Values, feed_shapes: FeedShapes, profile: Profile, *, graph: bool = True) -> None:
        """Bind feeds: choose profile and shapes, copy to page-locked memory, set every address."""
        self.synchronize()
        self.binding = object()
        is_new = self._choose_shapes(profile, feed_shapes)
        self._uploads, self._owners, self._device_copies = [], [], {}
        for tensor in self._loaded.inputs:
            self._bind_input(tensor, values[tensor.name])
        if is_new and self._loaded.user_managed:
            # Memory for the bound shapes (trtexec: sampleInference.cpp of 10.16:393).
            size = int(self._context.update_device_memory_size_for_shapes())
            self._context.set_device_memory(self._activations.reserve(size), size)
        for tensor in self._loaded.outputs:
            self._bind_output(tensor)
        if self._captures and graph and self._graph is None:
            self._capture()

    def start(self) -> None:
        self._under_way = True
        self._upload()
        self._enqueue()
        self._download()

    def synchronize(self) -> None:
        """Wait for the run under way, if any."""
        if self._under_way:
            self._stream.synchronize()
            self._under_way = False

    def outputs_on_host(self, *, copied: bool) -> dict[str, NDArray[Any]]:
        """Return the outputs: copies, or the page-locked memory, which the next run overwrites."""
        return {name: array.copy() if copied else array for name, array in self._on_host.items()}

    def gpu_times(self, iterations: int) -> GpuTimes:
        self._under_way = True
        phases = self._upload, self._enqueue, self._download
        return time_runs(iterations, lambda: Event(self._cuda), self._stream, *phases)

    def layer_times(self, iterations: int, warmup: int) -> dict[str, float]:
        """Return the median time of each layer in milliseconds, by TensorRT's profiler."""
        self._drop_graph()  # a graph reports no times, and was captured without the profiler
        for _ in range(warmup):
            self.start()
            self.synchronize()
        profiler = make_profiler(self._loaded.adapter.module)
        self._context.profiler = profiler
        try:
            for _ in range(iterations):
                self.start()
                self.synchronize()
        finally:
            self._context.profiler = None
        return dict(profiler.median_ms())

    def run_listened(self, listener: Any) -> None:
        """Run once without a graph, while TensorRT passes debug tensors, including unfused ones, to a
        listener. The caller must hold the listener, because bindings before 10.12 do not."""
        self._drop_graph()
        context = self._context
        with ExitStack() as stack:
            context.set_debug_listener(listener)
            stack.callback(context.set_debug_listener, None)
            context.set_all_tensors_debug_state(True)
            stack.callback(context.set_all_tensors_debug_state, False)
            if hasattr(context, "unfused_tensors_debug_state"):
                context.unfused_tensors_debug_state = True
                stack.callback(setattr, context, "unfused_tensors_debug_state", False)
            self.start()
            self.synchronize()

    def free(self) -> None:
        """Free everything, even if freeing one part fails."""
        self.binding = object()
        with ExitStack() as stack:
            stack.callback(self._forget)
            for device in (self._activations, *self._device.values()):
                stack.callback(device.free)
            for host in self._host.values():
                stack.callback(host.free)
            stack.callback(self._drop_graph)
            stack.callback(self.synchronize)

    def _forget(self) -> None:
        self._owners, self._on_host, self._device_copies, self._allocators = [], {}, {}, {}
        self._context = self._stream = None

    def _drop_graph(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.free()

    def _choose_shapes(self, profile: Profile, feed_shapes: FeedShapes) -> bool:
        """Choose profile and shapes; return whether they differ from the previous ones."""
        binding = (profile.index, feed_shapes.key)
        if self._bound == binding:
            return False
        self._drop_graph()  # a graph is void once its execution context changes
        self._bound = None
        if self._context.active_optimization_profile != profile.index:
            self._loaded.require(
                f"optimization profile {profile.index} cannot be chosen",
                self._context.set_optimization_profile_async,
                profile.index,
                self._stream.handle,
            )
            self._stream.synchronize()
        for name, shape in feed_shapes.shapes.items():
            refusal = f"input {name!r} cannot be of shape {format_shape(shape)}"
            self._loaded.require(refusal, self._context.set_input_shape, name, shape)
        for tensor in self._loaded.inputs:
            if tensor.on_host:  # the address must be set again after the values have changed
                self._addresses.pop(tensor.name, None)
        self._bound = binding
        return True

    def _bind_input(self, tensor: IOTensor, value: NDArray[Any] | DeviceInput) -> None:
        name, buffer = tensor.name, self._device[tensor.name]
        if isinstance(value, DeviceInput):
            self._owners.append(value.owner)
            if value.written is not None:
                self._stream.wait_for_event(value.written)
            if not self._loaded.cuda_graph:
                self._set_address(name, value.address or buffer.reserve(1))
                return
            # A graph reads from the captured address: a new address would require a new capture each time.
            self._set_address(name, buffer.reserve(value.nbytes))
            if value.nbytes:
                self._device_copies[name] = value
            return
        self._host[name].view(value.shape, value.dtype)[...] = value
        if tensor.on_host:
            self._set_address(name, self._host[name].address)
            return
        self._set_address(name, buffer.reserve(value.nbytes))
        if value.nbytes:
            self._uploads.append(name)

    def _bind_output(self, tensor: IOTensor) -> None:
        name = tensor.name
        shape = tuple(int(extent) for extent in self._context.get_tensor_shape(name))
        if any(extent < 0 for extent in shape):
            self._set_output_allocator(name)
            return
        self._on_host[name] = self._host[name].view(shape, tensor.dtype)
        if tensor.on_host:
            self._set_address(name, self._host[name].address)
        else:
            self._set_address(name, self._device[name].reserve(self._on_host[name].nbytes))

    def _set_output_allocator(self, name: str) -> None:
        if self._loaded.cuda_graph:
            problem = f"output {name!r}: its shape depends on data, which no CUDA graph can capture"
            raise ModelError(problem, hint=GRAPH_HINT, tensor=name)
        if name in self._allocators:
            return
        allocator = make_output_allocator(self._loaded.adapter.module, self._device[name])
        refusal = f"output {name!r} takes no allocator"
        self._loaded.require(refusal, self._context.set_output_allocator, name, allocator)
        self._allocators[name] = allocator

    def _set_address(self, name: str, address: int) -> None:
        if self._addresses.get(name) == address:
            return
        self._drop_graph()
        self._addresses.pop(name, None)
        refusal = f"tensor {name!r} takes no address"
        self._loaded.require(refusal, self._context.set_tensor_address, name, address)
        self._addresses[name] = address

    def _upload(self) -> None:
        for name in self._uploads:
            self._cuda.copy_to_device(self._device[name].address, self._host[name].used, self._stream)
        for name, value in self._device_copies.items():
            target, stream = self._device[name].address, self._stream.handle
            self._cuda.call("cuMemcpyDtoDAsync", target, value.address, value.nbytes, stream)

    def _enqueue(self) -> None:
        if self._graph is not None:
            self._graph.launch()
        else:
            self._execute()

    def _execute(self) -> None:
        for allocator in self._allocators.values():
            allocator.begin()
        if not self._context.execute_async_v3(self._stream.handle):
            for allocator in self._allocators.values():
                allocator.raise_stored_error()
            raise self._failure("the engine failed")

    def _download(self) -> None:
        for tensor in self._loaded.outputs:
            if tensor.name in self._allocators:
                shape: tuple[int, ...] | None = self._allocators[tensor.name].shape
                if shape is None:
                    raise self._failure(f"output {tensor.name!r} has no shape")
                self._on_host[tensor.name] = self._host[tensor.name].view(shape, tensor.dtype)
            if self._on_host[tensor.name].nbytes and not tensor.on_host:
                target, source = self._host[tensor.name].used, self._device[tensor.name].address
                self._cuda.copy_to_host(target, source, self._stream)

    def _capture(self) -> None:
        """Run once, as TensorRT requires after new shapes, then capture; raise ModelError if this fails."""
        self._under_way = True
        self._upload()
        self._execute()
        self.synchronize()
        try:
            if not self._loaded.adapter.can_be_captured(self._context, self._stream.handle):
                raise self._failure("TensorRT cannot capture it")
            self._graph = CudaGraph(self._cuda, self._stream, self._execute)
        except (CudaError, ModelError) as error:
            problem = f"{self._loaded.path}: it cannot be captured in a CUDA graph: {first_line(error)}"
            raise ModelError(problem, hint=GRAPH_HINT) from error

    def _failure(self, problem: str) -> ModelError:
        return ModelError(f"{self._loaded.path}: {problem}: {self._loaded.said()}")
