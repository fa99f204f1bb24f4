"""The configuration of one model, as Triton's `ModelConfig` (common, protobuf/model_config.proto)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidOption
from ..spec.looking import TritonOptions
from ..tensors import TensorInfo, format_shape
from .triton_backends import TENSORRT, TYPES
from .triton_batching import max_batch_size
from .triton_model import TritonModel
from .triton_text import Message
from .triton_warm_up import warm_up

NO_AUTO_COMPLETE = "--disable-auto-complete-config"


@dataclass(frozen=True)
class Config:
    """A configuration, and what it asks of the server and the user.

    Attributes:
        fields: Of `ModelConfig`, in the order they are written.
        max_batch_size: 0 for none.
        notes: What the user should know.
        server_options: What `tritonserver` must be started with.
    """

    fields: Message
    max_batch_size: int
    notes: tuple[str, ...]
    server_options: tuple[str, ...]


def make_config(model: TritonModel, name: str, options: TritonOptions) -> Config:
    """Return the configuration of an artifact.

    Raises:
        InvalidOption: If an option asks for what the artifact or its backend cannot do.
    """
    backend = model.backend
    size, notes = max_batch_size(model, options)
    warm, warm_up_notes = warm_up(model, options, size)
    server = [*model.server_options]
    if backend is TENSORRT and size > 1 and not options.dynamic_batching:
        server.append(NO_AUTO_COMPLETE)
        notes.append("without it Triton's tensorrt backend turns dynamic batching on by itself")
    if options.response_cache:
        server.append("--cache-config=local,size=104857600")
        notes.append("response_cache needs a cache in the server, here of 100 MiB")
    if options.cuda_graph and backend is not TENSORRT:
        raise InvalidOption(
            f"`cuda_graph`: only Triton's tensorrt backend runs CUDA graphs; the backend is {backend.name}",
            hint="leave it out",
            option="cuda_graph",
        )
    fields: dict[str, Any] = {"name": name, "backend": backend.name}
    if backend.platform:
        fields["platform"] = backend.platform
    if backend.file != backend.default_file:
        fields["default_model_filename"] = backend.file
    fields["max_batch_size"] = size
    fields["input"] = [_tensor(model, tensor, size) for tensor in model.io.inputs]
    fields["output"] = [_tensor(model, tensor, size) for tensor in model.io.outputs]
    fields["instance_group"] = [_instances(model, options)]
    if options.version_policy:
        fields["version_policy"] = _version_policy(options)
    batching = _dynamic_batching(options, size)
    if batching is not None:
        fields["dynamic_batching"] = batching
    if options.cuda_graph:
        fields["optimization"] = {"cuda": {"graphs": True}}
    if options.response_cache:
        fields["response_cache"] = {"enable": True}
    if warm:
        fields["model_warmup"] = warm
    if model.manifest and model.manifest.options.get("allocation_strategy") in ("profile", "runtime"):
        strategy = {"string_value": "ON_PROFILE_CHANGE"}  # Triton's other one is STATIC, the default
        fields["parameters"] = {"execution_context_allocation_strategy": strategy}
    return Config(fields, size, (*model.notes, *notes, *warm_up_notes), tuple(server))


def tensor_fields(model: TritonModel, *, batched: bool) -> list[Message]:
    """Return inputs and outputs as the configuration spells them."""
    return [_tensor(model, tensor, int(batched)) for tensor in (*model.io.inputs, *model.io.outputs)]


def _tensor(model: TritonModel, tensor: TensorInfo, size: int) -> Message:
    """One input or output: without its batch axis where there is one; rank 0 is not allowed in `dims`."""
    shape = tensor.shape[1:] if size else tensor.shape
    if any(extent == 0 for extent in shape):
        raise InvalidOption(
            f"{model.path}: {tensor.name!r} is {format_shape(tensor.shape)}; Triton takes no extent of 0"
        )
    if not tensor.shape and model.backend.name != "onnxruntime":
        raise InvalidOption(
            f"{model.path}: {tensor.name!r} is a scalar; only Triton's onnxruntime backend takes scalars",
            hint="export the model with an axis of extent 1 there",
        )
    dims = [extent if isinstance(extent, int) else -1 for extent in shape]
    fields: dict[str, Any] = {
        "name": tensor.name,
        "data_type": TYPES[tensor.dtype],
        "dims": dims or [1],
    }
    if size and not shape:
        fields["reshape"] = {}  # an empty shape: the batch is its only axis ("Reshape")
    if tensor.name in model.shape_tensors:
        fields["is_shape_tensor"] = True
    if tensor.name in model.non_linear:
        fields["is_non_linear_format_io"] = True
    return fields


def _version_policy(options: TritonOptions) -> Message:
    kind, _, number = options.version_policy.partition(":")
    if kind == "latest":
        return {"latest": {"num_versions": int(number or 1)}}
    return {"all": {}} if kind == "all" else {"specific": {"versions": list(options.specific_versions)}}


def _instances(model: TritonModel, options: TritonOptions) -> Message:
    kind = options.kind or ("gpu" if options.gpus else model.kind)
    if kind and kind not in model.backend.kinds:
        raise InvalidOption(
            f"{'`gpus`' if options.gpus else f'`kind` {kind}'}: Triton's {model.backend.name} backend "
            f"runs only on {' or '.join(model.backend.kinds)}",
            hint="leave it out",
            option="kind",
        )
    fields: dict[str, Any] = {"count": options.instances}
    if kind:  # else Triton takes the GPUs, and the CPU where there is none
        fields["kind"] = f"KIND_{kind.upper()}"
    if options.gpus:
        fields["gpus"] = list(options.gpus)
    if len(model.profiles) > 1:  # by itself it takes the first alone
        fields["profile"] = [str(index) for index in range(len(model.profiles))]
    return fields


def _dynamic_batching(options: TritonOptions, size: int) -> Message | None:
    preferred = sorted(set(options.preferred_batch))
    given = [
        option
        for option, value in (
            ("`preferred_batch`", preferred),
            ("`max_queue_delay_us`", options.max_queue_delay_us),
        )
        if value
    ]
    if size <= 1:
        if given:
            raise InvalidOption(
                f"{', '.join(given)}: max_batch_size is {size}; there are no batches to form",
                hint="leave it out, or give `max_batch_size`",
                option=given[0],
            )
        return None
    if not options.dynamic_batching:
        return None
    if preferred and preferred[-1] > size:
        raise InvalidOption(
            f"`preferred_batch` {preferred[-1]}: max_batch_size is {size}", option="preferred_batch"
        )
    fields: dict[str, Any] = {}
    if preferred:
        fields["preferred_batch_size"] = preferred
    if options.max_queue_delay_us:
        fields["max_queue_delay_microseconds"] = options.max_queue_delay_us
    return fields


def spelled(tensors: Iterable[Message]) -> str:
    """Return tensors for a message: `x TYPE_FP32 [3, 8, 8]`."""
    said = []
    for fields in tensors:
        said.append(f"{fields['name']} {fields['data_type']} {list(fields['dims'])}")
    return ", ".join(said)
