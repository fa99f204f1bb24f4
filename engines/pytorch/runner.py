"""Run a PyTorch module, eagerly or in another mode, on the processor or on a GPU, and count its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal

from numpy.typing import NDArray

from ...core.progress import quiet
from ...errors import DataError, InvalidOption, ModelError, first_line
from ...model.graph.graph import WeightStats
from ...model.outputs.judgement import output_error
from ...model.sources.example import Example, flat_outputs, in_order, name_outputs, takes_keywords
from ...model.sources.pytorch import WITHOUT_CACHE, ForeignOutput, caching, import_torch, without_cache
from ...spec.tensors import Feeds, ModelIO, TensorInfo, check_feeds
from ...spec.words import TORCH_MODES, TorchMode
from ..base import InFlight, Runner
from ..gpu import GpuTimes, time_runs

Mode = Literal["eager", TorchMode]
MODES: tuple[Mode, ...] = ("eager", *TORCH_MODES)
"""Modes of execution: eager, three kinds of TorchScript, `torch.compile`, and two modes in 16 bits."""

_MODE_TEXT = {
    "trace": "traced",
    "script": "scripted",
    "freeze": "traced and frozen",
    "compile": "torch.compile",
    "half": "float16, with the casts of inputs and outputs",
    "autocast": "torch.autocast",
}


class PyTorchRunner(Runner):
    """A module that runs without gradients; inputs are passed by name if `forward` has a parameter for each.

    Every mode but eager converts the module once for each set of input shapes. The converted module must
    compute the same as eager; the modes in 16 bits are not compared, because they round. The module must be
    in evaluation mode and, with `device`, already on that GPU.
    """

    contains = "host to host: one forward()"

    def __init__(
        self, module: Any, io: ModelIO | None, *, mode: Mode = "eager", device: int | None = None
    ) -> None:
        self._torch = import_torch()
        self._module, self._mode = module, mode
        self._device = None if device is None else self._torch.device("cuda", device)
        self._converted: dict[Any, Any] = {}
        if mode == "half":
            module.half()  # in place: a second copy would add to the peak memory
        self.weights = weights_of_module(self._torch, module)
        if self._device is not None:
            self.contains = (
                "host to host, in page-locked memory: copies to the GPU, forward(), copies back, synchronize"
            )
            self.notes = _rounding(self._torch, self._device)
        if mode != "eager":
            self.contains += f", {_MODE_TEXT[mode]}"
        self.io = io or ModelIO((), ())
        self._names = [tensor.name for tensor in self.io.outputs]
        self._may_cache = bool(caching(module))

    def infer(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        try:
            result = self.prepare(feeds)()
        except (DataError, ModelError):
            raise
        except Exception as error:
            raise ModelError(f"PyTorch fails on the feeds: {first_line(error)}") from error
        arrays = flat_outputs(result)[1]
        names_fit = len(self._names) == len(arrays)
        return dict(zip(self._names if names_fit else name_outputs([], result, feeds), arrays, strict=True))

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        """Return a call of the module. On a GPU it also copies, and its next run overwrites the outputs."""
        if self._device is not None:
            return self._gpu_call(feeds).run
        module, arguments, keywords = self._prepare_module(feeds)
        inference_mode = self._torch.inference_mode

        def run() -> Any:
            with inference_mode():
                return module(*arguments, **keywords)

        return run

    def gpu_times(self, feeds: Feeds, iterations: int) -> GpuTimes:
        return self._gpu_call(feeds).times(iterations)

    @contextmanager
    def in_flight(self, feeds: Feeds, count: int) -> Iterator[Sequence[InFlight]]:
        calls = [self._gpu_call(feeds) for _ in range(count)]
        yield [InFlight(call.start, call.wait) for call in calls]
        for call in calls:
            call.wait()

    def _gpu_call(self, feeds: Feeds) -> GpuCall:
        if self._device is None:
            raise InvalidOption("PyTorch runs on the processor here", hint="give `devices` cuda")
        return GpuCall(self._torch, self._device, *self._prepare_module(feeds))

    def _prepare_module(self, feeds: Feeds) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        """Return the module in its mode, and its positional and keyword arguments on the host."""
        if self.io.inputs:
            check_feeds(self.io.inputs, feeds, "feeds")
        torch, module = self._torch, self._module
        tensors = tuple(TensorInfo(n, str(a.dtype), tuple(a.shape)) for n, a in feeds.items())
        tensors = in_order(module, tensors)
        example = Example(tensors, feeds, takes_keywords(module, tensors))
        arguments, keywords = example.arguments(feeds)
        key = tuple((tensor.name, tensor.shape) for tensor in tensors)
        if self._may_cache or (self._mode != "eager" and key not in self._converted):
            positional, named = arguments, keywords
            if self._device is not None:
                # Same device and mode as in `GpuCall`, because PyTorch would compile again for others.
                with torch.inference_mode():
                    positional = tuple(tensor.to(self._device) for tensor in arguments)
                    named = {name: tensor.to(self._device) for name, tensor in keywords.items()}
            if self._may_cache:
                self._may_cache = False
                self._turn_off_cache(positional, named)
        if self._mode != "eager":
            if key not in self._converted:
                self._converted[key] = (
                    in_sixteen_bits(torch, module, self._mode, self._device)
                    if self._mode in ("half", "autocast")
                    else _convert(torch, module, self._mode, positional, named)
                )
            module = self._converted[key]
        return module, arguments, keywords

    def _turn_off_cache(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Run the module once; if it returns a key-value cache, turn `use_cache` off, as an export does."""
        torch, module = self._torch, self._module
        if self._mode in ("half", "autocast"):
            module = in_sixteen_bits(torch, module, self._mode, self._device)

        def run() -> Any:
            with quiet(), torch.inference_mode():
                return module(*arguments, **keywords)

        with suppress(ForeignOutput):  # raised when the outputs are read
            if without_cache(self._module, run(), run)[1]:
                self.notes = (*self.notes, WITHOUT_CACHE.format("run"))

    def close(self) -> None:
        self._module = None
        self._converted.clear()
        if self._device is not None:
            self._torch.cuda.empty_cache()


def _convert(torch: Any, module: Any, mode: Mode, arguments: Any, keywords: Any) -> Any:
    """Return the module in another mode; raise ModelError if that fails or changes the outputs."""
    try:
        with quiet(), torch.inference_mode():
            expected = flat_outputs(module(*arguments, **keywords))[1]
        # TorchScript records the gradient mode: gradients must be off, without inference mode.
        with quiet(), torch.no_grad():
            if mode == "compile":
                converted = torch.compile(module, dynamic=False)
            elif mode == "script":
                converted = torch.jit.script(module)
            else:
                converted = trace(torch, module, arguments, keywords)
                converted = torch.jit.freeze(converted) if mode == "freeze" else converted
        with quiet(), torch.inference_mode():
            # The first calls of TorchScript profile and optimize; its result may change with the second.
            actual = [converted(*arguments, **keywords) for _ in range(2)][-1]
    except Exception as error:  # tracing and compiling run the user's code, which may raise anything
        hint = "leave `torch_modes` out, or choose another mode"
        raise ModelError(f"PyTorch mode {mode}: fails: {first_line(error)}", hint=hint) from error
    pairs = zip(expected, flat_outputs(actual)[1], strict=True)
    if not all(a.shape == b.shape and output_error(a, b).close for a, b in pairs):
        raise ModelError(f"PyTorch mode {mode}: computes something else than eager does on the same input")
    return converted


def trace(torch: Any, module: Any, arguments: Any, keywords: Any) -> Any:
    positional = None if keywords else arguments
    return torch.jit.trace(module, positional, example_kwarg_inputs=keywords or None, strict=False)


def _rounding(torch: Any, device: Any) -> tuple[str, ...]:
    """Return a note on the float32 products that PyTorch's settings run in TF32, on Ampere or newer."""
    if torch.cuda.get_device_capability(device) < (8, 0):
        return ()
    backends = {"convolutions": torch.backends.cudnn, "matrix products": torch.backends.cuda.matmul}
    try:
        rounded = [products for products, backend in backends.items() if backend.allow_tf32]
    except RuntimeError:
        return ()  # after a model uses PyTorch's newer TF32 settings, reading the older ones raises
    return (f"PyTorch computes float32 {' and '.join(rounded)} in TF32 here",) if rounded else ()


def in_sixteen_bits(torch: Any, module: Any, mode: str, device: Any) -> Callable[..., Any]:
    """Return a function with float32 inputs and outputs that computes in 16 bits. In mode "half" the weights
    are float16 already; "autocast" uses PyTorch's default: bfloat16 on a processor, float16 on a GPU."""
    if mode == "half":

        def run(*arguments: Any, **keywords: Any) -> Any:
            cast, named = _cast(torch, (arguments, keywords), torch.float16)
            return _cast(torch, module(*cast, **named), torch.float32)

        return run
    kind = "cpu" if device is None else "cuda"
    dtype = torch.bfloat16 if device is None else torch.float16

    def run_with_autocast(*arguments: Any, **keywords: Any) -> Any:
        with torch.autocast(kind, dtype=dtype):
            return _cast(torch, module(*arguments, **keywords), torch.float32)

    return run_with_autocast


def _cast(torch: Any, value: Any, dtype: Any) -> Any:
    return _map(torch, value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def _map(torch: Any, value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a nested value with a function applied to each tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {name: _map(torch, item, function) for name, item in value.items()}
    return [_map(torch, item, function) for item in value] if isinstance(value, tuple | list) else value


class GpuCall:
    """A module with its feeds, on a separate stream and with page-locked memory. TensorRT's runner does the
    same, because only latencies that include the same copies are comparable.

    After `wait`, `outputs` has the outputs of `forward` as host tensors; the next run overwrites them.
    """

    def __init__(
        self, torch: Any, device: Any, module: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        self._torch, self._device, self._module = torch, device, module
        self._arguments = [tensor.pin_memory() for tensor in arguments]
        self._keywords = {name: tensor.pin_memory() for name, tensor in keywords.items()}
        self._on_gpu: tuple[list[Any], dict[str, Any]] = ([], {})
        self._result: Any = None
        self._pinned: list[Any] = []
        self._count = 0
        self.outputs: Any = None
        torch.cuda.synchronize(device)  # another stream may still be writing the module's weights
        self._stream = torch.cuda.Stream(device)

    def start(self) -> None:
        with self._on_stream():
            self._upload()
            self._forward()
            self._download()

    def wait(self) -> None:
        self._stream.synchronize()

    def run(self) -> Any:
        self.start()
        self.wait()
        return self.outputs

    def times(self, iterations: int) -> GpuTimes:
        make_event = partial(self._torch.cuda.Event, enable_timing=True)
        phases = self._upload, self._forward, self._download
        with self._on_stream():
            return time_runs(iterations, make_event, self._stream, *phases)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        with self._torch.inference_mode(), self._torch.cuda.stream(self._stream):
            yield

    def _upload(self) -> None:
        self._on_gpu = (
            [tensor.to(self._device, non_blocking=True) for tensor in self._arguments],
            {name: tensor.to(self._device, non_blocking=True) for name, tensor in self._keywords.items()},
        )

    def _forward(self) -> None:
        arguments, keywords = self._on_gpu
        self._result = None
        self._result = self._module(*arguments, **keywords)

    def _download(self) -> None:
        self._count = 0
        self.outputs = _map(self._torch, self._result, self._on_host)
        # PyTorch's allocator may give this memory to later work on the same stream.
        self._result, self._on_gpu = None, ([], {})

    def _on_host(self, tensor: Any) -> Any:
        """Enqueue a copy of the next output to page-locked memory; reuse the last run's buffer if it fits."""
        index, self._count = self._count, self._count + 1
        if index == len(self._pinned):
            self._pinned.append(None)
        memory = self._pinned[index]
        if memory is None or (memory.shape, memory.dtype) != (tensor.shape, tensor.dtype):
            memory = self._torch.empty_like(tensor, device="cpu").pin_memory()
            self._pinned[index] = memory
        memory.copy_(tensor, non_blocking=True)
        return memory


_INTEGER_TYPES = ("torch.qint8", "torch.quint8", "torch.qint32", "torch.int8", "torch.uint8")
_HALF_TYPES = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}


def weights_of_module(torch: Any, module: Any) -> WeightStats:
    """Return the weights of a module.

    `parameters()` is not enough, because quantized modules of torch.ao hold packed weights outside of it. The
    count includes parameters, integer tensors, packed weights (state that is neither parameter nor buffer),
    and the constants of a TorchScript graph. Scales, zero points (scalars or buffers) and running means add
    to the bytes, not to the count.
    """
    module = getattr(module, "_orig_mod", module)  # the module inside torch.compile's wrapper
    if isinstance(module, torch.jit.ScriptModule):
        return _count_script_weights(torch, module)
    parameters = dict(module.named_parameters())
    buffers = {name for name, _ in module.named_buffers()}
    read_names = _read_names(torch, module)
    count, size, types = 0, 0, set()
    seen: dict[int, Any] = {}  # with a reference to each tensor, so that no id is reused
    for name, value in {**module.state_dict(), **parameters}.items():
        for tensor in _tensors(torch, value):
            if id(tensor) in seen or not (read_names is None or name.startswith(read_names)):
                continue
            seen[id(tensor)] = tensor
            size += sum(part.numel() * part.element_size() for part in _parts(tensor))
            integer = any(str(part.dtype) in _INTEGER_TYPES and part.ndim > 1 for part in _parts(tensor))
            packed = name not in parameters and name not in buffers
            if name in parameters or integer or (packed and tensor.numel() > 1):
                count += tensor.numel()
                types |= {"int8"} if integer else {_HALF_TYPES.get(str(tensor.dtype), "fp32")}
    return WeightStats(count, size, _precision(module, types))


def _precision(module: Any, types: set[str]) -> str:
    simulated = any(type(part).__name__.endswith("FakeQuantize") for part in module.modules())
    if "int8" in types or simulated:
        return "int8"
    return next(iter(types)) if len(types) == 1 and types != {"fp32"} else ""


def _read_names(torch: Any, module: Any) -> tuple[str, ...] | None:
    """Return the names or prefixes that an FX graph reads; None for all. torchao leaves unread originals."""
    if not isinstance(module, torch.fx.GraphModule):
        return None
    nodes = [node for node in module.graph.nodes if node.op in ("get_attr", "call_module")]
    return tuple(node.target if node.op == "get_attr" else f"{node.target}." for node in nodes)


def _count_script_weights(torch: Any, module: Any) -> WeightStats:
    """Return the weights of a TorchScript module: its parameters, or the constants of its graph if frozen."""
    stored = [*module.state_dict().values()]
    count = sum(tensor.numel() for tensor in module.parameters())
    try:
        graph = module.inlined_graph  # a reference: the nodes are valid only while the graph lives
        nodes = graph.findAllNodes("prim::Constant")
    except RuntimeError:  # the module defines no `forward`
        nodes = []
    for node in nodes:
        kind = node.output().type().kind()
        constant = node.output().toIValue() if kind == "TensorType" else None
        if isinstance(constant, torch.Tensor):
            stored.append(constant)
            count += constant.numel() if constant.ndim and constant.is_floating_point() else 0
    return WeightStats(count, sum(tensor.numel() * tensor.element_size() for tensor in stored))


def _tensors(torch: Any, value: object) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(torch, item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(torch, item)
    elif isinstance(value, torch.ScriptObject):  # the packed weights of a dynamic LSTM or GRU
        with suppress(RuntimeError):  # an object without readable state
            yield from _tensors(torch, value.__getstate__())


def _parts(tensor: Any) -> list[Any]:
    """Return the tensors inside a tensor of a subclass such as torchao's; else the tensor, in a list."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    names, _ = flatten()
    return [part for name in names for part in _parts(getattr(tensor, name))]
