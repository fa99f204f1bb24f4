"""Run an engine by PyCUDA, on named I/O tensors, which every TensorRT from 8.5 on has.

The primary context of the device is used, the one PyTorch uses too. A latency contains the copies to and
from the GPU. Outputs whose shape depends on data are refused: their size is not known before the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArtifactError, DataError, EngineUnavailable, ModelError
from ...shapes import Feeds, ModelIO, TensorInfo, check_feeds, format_shape
from ..base import Runner
from .adapter import Adapter
from .log import last_error, make_log

# By name: the module's own nptype() uses numpy names that numpy 2 has dropped (TensorRT 8.5).
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
}


class TensorRTRunner(Runner):
    """An engine with its execution context, stream and buffers on device 0.

    Raises:
        EngineUnavailable: If PyCUDA finds no device.
        ArtifactError: If TensorRT cannot deserialize the engine: other version, other GPU, damaged.
    """

    contains = "host to host: copies to the GPU, execute_async_v3, copies back, synchronize"

    def __init__(self, adapter: Adapter, path: Path) -> None:
        self._cuda_context: Any = None
        self._engine: Any = None
        self._context: Any = None
        self._stream: Any = None
        self._buffers: list[Any] = []
        try:
            import pycuda.driver as cuda

            self._cuda = cuda
            cuda.init()
            self._cuda_context = cuda.Device(0).retain_primary_context()
            self._cuda_context.push()
        except Exception as error:  # ImportError, or pycuda's own types, which need the import
            self._cuda_context = None
            raise EngineUnavailable(
                f"{path}: no CUDA device can be used ({error})", engine=adapter.target
            ) from error
        try:
            self._log = make_log(adapter.module)
            self._runtime = adapter.module.Runtime(self._log)
            self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
            if self._engine is None:
                raise ArtifactError(
                    f"{path}: {adapter.module.__name__} {adapter.version} cannot load it: "
                    f"{last_error(self._log, 'no reason given')}",
                    hint="build it again with this version, for this GPU",
                    file=path,
                )
            self._context = self._engine.create_execution_context()
            self._stream = cuda.Stream()
            self.io = self._read_io(adapter.module)
        except BaseException:
            self.close()
            raise

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Run once; the outputs are copies that outlive the runner."""
        run = self.prepare(feeds)
        outputs = run()
        return {name: array.copy() for name, array in outputs.items()}

    def prepare(self, feeds: Feeds) -> Callable[[], dict[str, NDArray[Any]]]:
        """Bind the feeds' shapes, allocate, and return the call that copies, runs and copies back."""
        check_feeds(self.io.inputs, feeds, "feeds")
        self._free_buffers()
        cuda, context, stream = self._cuda, self._context, self._stream
        sources, targets, outputs = [], [], {}
        for tensor in self.io.inputs:
            array = np.ascontiguousarray(feeds[tensor.name])
            if not context.set_input_shape(tensor.name, array.shape):
                raise DataError(
                    f"feeds: input {tensor.name!r} of shape {format_shape(array.shape)} is outside "
                    "the engine's optimization profile",
                    hint="build with wider --min-shapes and --max-shapes",
                    tensor=tensor.name,
                )
            host = self._pinned(array.shape, array.dtype)
            host[...] = array
            sources.append((self._on_device(tensor.name, host.nbytes), host))
        for tensor in self.io.outputs:
            shape = tuple(context.get_tensor_shape(tensor.name))
            if any(extent < 0 for extent in shape):
                raise ModelError(
                    f"output {tensor.name!r}: its shape depends on data, which this runner cannot hold",
                    tensor=tensor.name,
                )
            host = self._pinned(shape, np.dtype(tensor.dtype))
            outputs[tensor.name] = host
            targets.append((host, self._on_device(tensor.name, host.nbytes)))

        def run() -> dict[str, NDArray[Any]]:
            for device, array in sources:
                cuda.memcpy_htod_async(device, array, stream)
            if not context.execute_async_v3(stream.handle):
                raise ModelError(f"the engine failed: {last_error(self._log, 'no reason given')}")
            for array, device in targets:
                cuda.memcpy_dtoh_async(array, device, stream)
            stream.synchronize()
            return outputs

        return run

    def close(self) -> None:
        """Free buffers, context, engine and runtime, in this order, then leave the CUDA context."""
        if self._cuda_context is None:
            return
        self._free_buffers()
        self._stream = self._context = self._engine = self._runtime = None
        self._cuda_context.pop()
        self._cuda_context.detach()
        self._cuda_context = None

    def _read_io(self, module: Any) -> ModelIO:
        inputs: list[TensorInfo] = []
        outputs: list[TensorInfo] = []
        for index in range(self._engine.num_io_tensors):
            name = self._engine.get_tensor_name(index)
            kind = str(self._engine.get_tensor_dtype(name)).rsplit(".", 1)[-1]
            shape = tuple(
                int(extent) if extent >= 0 else "?" for extent in self._engine.get_tensor_shape(name)
            )
            tensor = TensorInfo(name, _DTYPES.get(kind, kind.lower()), shape)
            is_input = self._engine.get_tensor_mode(name) == module.TensorIOMode.INPUT
            (inputs if is_input else outputs).append(tensor)
        return ModelIO(tuple(inputs), tuple(outputs))

    def _pinned(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        array: NDArray[Any] = self._cuda.pagelocked_empty(shape, dtype)
        return array

    def _on_device(self, name: str, size_bytes: int) -> Any:
        device = self._cuda.mem_alloc(max(size_bytes, 1))
        self._buffers.append(device)
        self._context.set_tensor_address(name, int(device))
        return device

    def _free_buffers(self) -> None:
        for device in self._buffers:
            device.free()
        self._buffers = []
