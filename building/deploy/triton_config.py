"""The configuration of one model, as Triton's `ModelConfig` (common, protobuf/model_config.proto).

`format_config` writes the text with the protobuf definitions of package tritonclient.

Batching requires the batch as the first axis of every input and output; otherwise `max_batch_size` is 0 and
`dims` are whole shapes (Triton, "Model Configuration", "Maximum Batch Size"). The backends require a dynamic
batch axis (tensorrt_backend and onnxruntime_backend, `CompareDimsSupported`), so an engine of a fixed batch
serves whole batches of that size, one request each.

Triton sends warm-up requests before a model counts as ready. They are zeros here: Triton's random data is
random bytes (core, `GenerateWarmupData`), with NaN, infinity, and indices outside of any table.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.installation import install_hint
from ...engines.tensorrt.words import TRITON as TENSORRT
from ...engines.words import TRITON_TYPES as TYPES
from ...errors import ArtifactError, EngineUnavailable, InvalidOption, first_line
from ...spec.decode import Refused
from ...spec.looking import TritonOptions
from ...spec.tensors import TensorInfo, format_shape
from .triton_model import TritonModel

NO_AUTO_COMPLETE = "--disable-auto-complete-config"


@dataclass(frozen=True)
class Config:
    """The fields of a `ModelConfig` in the order written, with the server options and notes they require."""

    fields: Message
    max_batch_size: int
    notes: tuple[str, ...]
    server_options: tuple[str, ...]


def make_config(model: TritonModel, name: str, options: TritonOptions) -> Config:
    """Return the configuration of a model; raise InvalidOption if an option does not fit it."""
    backend = model.backend
    size, notes = max_batch_size(model, options)
    samples, sample_notes = warm_up(model, options, size)
    server = [*model.server_options]
    if backend is TENSORRT and size > 1 and not options.dynamic_batching:
        server.append(NO_AUTO_COMPLETE)
        notes.append("--disable-auto-complete-config stops Triton's default dynamic batching")
    if options.response_cache:
        server.append("--cache-config=local,size=104857600")
        notes.append("response_cache needs a cache in the server, here of 100 MiB")
    if options.cuda_graph and backend is not TENSORRT:
        problem = f"only Triton's tensorrt backend runs CUDA graphs; the backend is {backend.name}"
        raise Refused("cuda_graph", problem, hint="leave it out")
    build_options = model.manifest.options if model.manifest else {}
    strategy = {"string_value": "ON_PROFILE_CHANGE"}  # Triton's alternative is STATIC, the default
    allocation = {"execution_context_allocation_strategy": strategy}
    fields = _set_fields(
        name=name,
        backend=backend.name,
        platform=backend.platform or None,
        default_model_filename=backend.file if backend.default_file else None,
        max_batch_size=size,
        input=[_tensor(model, tensor, size) for tensor in model.io.inputs],
        output=[_tensor(model, tensor, size) for tensor in model.io.outputs],
        instance_group=[_instances(model, options)],
        version_policy=_version_policy(options) if options.version_policy else None,
        dynamic_batching=_dynamic_batching(options, size),
        optimization={"cuda": {"graphs": True}} if options.cuda_graph else None,
        response_cache={"enable": True} if options.response_cache else None,
        model_warmup=samples or None,
        parameters=allocation if build_options.get("allocation_strategy") in ("profile", "runtime") else None,
    )
    return Config(fields, size, (*model.notes, *notes, *sample_notes), tuple(server))


def tensor_fields(model: TritonModel, *, batched: bool) -> list[Message]:
    """Return the inputs and outputs of a model as configuration fields."""
    return [_tensor(model, tensor, int(batched)) for tensor in (*model.io.inputs, *model.io.outputs)]


def _tensor(model: TritonModel, tensor: TensorInfo, size: int) -> Message:
    """Return one input or output, without the batch axis if `size` > 0; `dims` must not be empty."""
    shape = tensor.shape[1:] if size else tensor.shape
    subject = f"{model.path}: {tensor.name!r} is"
    if 0 in shape:
        raise InvalidOption(f"{subject} {format_shape(tensor.shape)}; Triton takes no extent of 0")
    if not tensor.shape and model.backend.name != "onnxruntime":
        problem = f"{subject} a scalar; only Triton's onnxruntime backend takes scalars"
        raise InvalidOption(problem, hint="export the model with an axis of extent 1 there")
    dims = [extent if isinstance(extent, int) else -1 for extent in shape]
    return _set_fields(
        name=tensor.name,
        data_type=TYPES[tensor.dtype],
        dims=dims or [1],
        reshape={} if size and not shape else None,  # the batch is its only axis ("Reshape")
        is_shape_tensor=True if tensor.name in model.shape_tensors else None,
        is_non_linear_format_io=True if tensor.name in model.non_linear else None,
    )


def _set_fields(**fields: Any) -> Message:
    return {name: value for name, value in fields.items() if value is not None}


def _version_policy(options: TritonOptions) -> Message:
    kind, _, number = options.version_policy.partition(":")
    if kind == "latest":
        return {"latest": {"num_versions": int(number or 1)}}
    return {"all": {}} if kind == "all" else {"specific": {"versions": list(options.specific_versions)}}


def _instances(model: TritonModel, options: TritonOptions) -> Message:
    kind = options.kind or ("gpu" if options.gpus else model.kind)
    if kind and kind not in model.backend.kinds:
        subject = "`gpus`" if options.gpus else f"`kind` {kind}"
        problem = f"Triton's {model.backend.name} backend runs only on {' or '.join(model.backend.kinds)}"
        raise InvalidOption(f"{subject}: {problem}", hint="leave it out", option="kind")
    profiles = [str(index) for index in range(len(model.profiles))]
    return _set_fields(
        count=options.instances,
        kind=f"KIND_{kind.upper()}" if kind else None,  # default: GPUs, if any, else the CPU
        gpus=list(options.gpus) or None,
        profile=profiles if len(profiles) > 1 else None,  # default: only the first profile
    )


def _dynamic_batching(options: TritonOptions, size: int) -> Message | None:
    preferred = sorted(set(options.preferred_batch))
    batching_options = {"`preferred_batch`": preferred, "`max_queue_delay_us`": options.max_queue_delay_us}
    used_options = [option for option, value in batching_options.items() if value]
    if size <= 1 and used_options:
        problem = f"{', '.join(used_options)}: max_batch_size is {size}; there are no batches to form"
        raise InvalidOption(problem, hint="leave it out, or give `max_batch_size`", option=used_options[0])
    if size <= 1 or not options.dynamic_batching:
        return None
    if preferred and preferred[-1] > size:
        raise Refused("preferred_batch", f"max_batch_size is {size}", value=preferred[-1])
    return _set_fields(
        preferred_batch_size=preferred or None,
        max_queue_delay_microseconds=options.max_queue_delay_us or None,
    )


def format_tensors(tensors: Iterable[Message]) -> str:
    """Format tensors for a message: `x TYPE_FP32 [3, 8, 8]`."""
    return ", ".join(f"{item['name']} {item['data_type']} {list(item['dims'])}" for item in tensors)


Message = Mapping[str, Any]
"""Fields of a protobuf message by name: enumerations as their names, messages as mappings."""


def format_config(fields: Message) -> str:
    """Return the text form of a `ModelConfig` (common, protobuf/model_config.proto)."""
    try:
        definition: Any = importlib.import_module("tritonclient.grpc.model_config_pb2")
    except (ImportError, RuntimeError, TypeError) as error:  # RuntimeError: incomplete installation
        problem = f"config.pbtxt: Triton's definitions are missing ({first_line(error)})"
        raise EngineUnavailable(problem, hint=install_hint("triton"), engine="triton") from error
    from google.protobuf import json_format, text_format

    try:
        message = json_format.ParseDict(fields, definition.ModelConfig())
    except json_format.ParseError as error:
        from importlib.metadata import version

        raise ArtifactError(
            f"config.pbtxt: tritonclient {version('tritonclient')} refuses it: {first_line(error)}",
            hint="install a newer tritonclient",
        ) from error
    text: str = text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True)
    return text


DEFAULT_MAX_BATCH = 4
"""Triton's default if neither model nor user limits it (onnxruntime_backend, "Default Max Batch Size")."""

_MAX_NAMES = 4


def max_batch_size(model: TritonModel, options: TritonOptions) -> tuple[int, list[str]]:
    """Return `max_batch_size` (0 disables batching) and notes for the user."""
    limit = options.max_batch_size
    if limit == 0:
        return 0, []
    reason = _no_batching_reason(model)
    if reason and limit:
        hint = "leave it out: every request is then a whole batch"
        raise Refused("max_batch_size", f"{model.path}: {reason}", value=limit, hint=hint)
    if reason:
        return 0, [f"no batching: {reason}"]
    axes = list(dict.fromkeys(str(tensor.shape[0]) for tensor in (*model.io.inputs, *model.io.outputs)))
    unsure = len(axes) > 1 or "?" in axes
    if unsure and limit is None:
        reason = f"the first axes are {_brief(axes)}, which may not be one batch"
        return 0, [f"no batching: {reason}; set `max_batch_size` if they are"]
    assumed = f"the first axes {_brief(axes)} are taken for one batch, as `max_batch_size` says"
    notes = [assumed] if unsure else []
    batches = profile_batches(model)
    largest = max((last for _, last in batches), default=None)
    if largest is not None and limit is not None and limit > largest:
        problem = f"the profiles of {model.path} end at {largest}"
        hint = f"give {largest} or less, or build with larger `max_shapes`"
        raise Refused("max_batch_size", problem, value=limit, hint=hint)
    size = limit or largest or DEFAULT_MAX_BATCH
    if limit is None and largest is None:
        notes.append(f"max_batch_size is {size}, Triton's default; `max_batch_size` sets it")
    gaps = _uncovered_batches(batches, size) if batches else []
    if gaps:
        notes.append(f"no profile takes a batch of {_brief(gaps)}: Triton fails such requests")
    return size, notes


def profile_batches(model: TritonModel) -> list[tuple[int, int]]:
    """Return the least and largest batch of every profile that all its inputs allow."""
    return [
        (max(item.min[0] for item in ranges.values()), min(item.max[0] for item in ranges.values()))
        for ranges in model.profiles
        if ranges
    ]


def _no_batching_reason(model: TritonModel) -> str:
    if not model.backend.batches:
        return f"Triton's {model.backend.name} backend would take only requests of exactly max_batch_size"
    if model.shape_tensors:
        return f"{_brief(sorted(model.shape_tensors))} holds a shape, whose first value need not be the batch"
    for tensor in (*model.io.inputs, *model.io.outputs):
        if not tensor.shape or isinstance(tensor.shape[0], int):
            return f"the first axis of {tensor.name!r} ({format_shape(tensor.shape)}) is not dynamic"
    return ""


def _uncovered_batches(batches: Iterable[tuple[int, int]], size: int) -> list[str]:
    """Return the spans of batches up to `size` that no profile supports: `["1", "5-7"]`."""
    gaps, covered = [], 0
    for first, last in [*sorted(batches), (size + 1, size + 1)]:
        if first > covered + 1:
            gaps.append(str(first - 1) if first == covered + 2 else f"{covered + 1}-{first - 1}")
        covered = max(covered, last)
        if covered >= size:
            break
    return gaps


def _brief(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


Shapes = Mapping[str, tuple[int, ...]]


def warm_up(model: TritonModel, options: TritonOptions, size: int) -> tuple[list[Message], list[str]]:
    """Return the warm-up samples, and notes for the user.

    Warm-up covers the optimum of each profile of an engine, and the largest batch of other models.
    """
    if options.warm_up is False:
        return [], []
    _check_shapes(model, options, size)
    reason = _no_warm_up_reason(model, options, size)
    hint = "" if model.shape_tensors else "`warm_up_shapes` gives them"
    if reason and options.warm_up:
        raise Refused("warm_up", f"{model.path}: {reason}", hint=hint)
    if reason:
        return [], ["; ".join(filter(None, (f"no warm-up: {reason}", hint)))]
    if not model.profiles:
        return [_sample(model, "largest batch" if size else "one request", options.shapes, size)], []
    return [
        _sample(model, f"profile {index}", {name: item.opt for name, item in ranges.items()}, size)
        for index, ranges in enumerate(model.profiles)
        if not size or all(item.min[0] <= size for item in ranges.values())
    ], []


def _sample(model: TritonModel, name: str, shapes: Shapes, size: int) -> Message:
    """Return one warm-up request; Triton repeats its sample `batch_size` times."""
    inputs: dict[str, Message] = {}
    batch = min([size, *(shape[0] for shape in shapes.values())]) if size else 1
    for tensor in model.io.inputs:
        smallest = tuple(extent if isinstance(extent, int) else 1 for extent in tensor.shape)
        shape = shapes.get(tensor.name) or smallest
        dims = list(shape[1:] if size else shape) or [1]
        inputs[tensor.name] = {"data_type": TYPES[tensor.dtype], "dims": dims, "zero_data": True}
    return {"name": name, "batch_size": batch, "inputs": inputs}


def _no_warm_up_reason(model: TritonModel, options: TritonOptions, size: int) -> str:
    if model.shape_tensors:
        return f"{', '.join(sorted(model.shape_tensors))} holds a shape, which zeros are not"
    if model.profiles:
        return ""
    for tensor in model.io.inputs:
        # With batching Triton sets the first axis; without it the extent is unknown.
        open_axes = [axis for axis in tensor.dynamic_axes if not (size and axis == 0)]
        if open_axes and tensor.name not in options.shapes:
            return f"the extents of {tensor.name} {format_shape(tensor.shape)} are unknown"
    return ""


def _check_shapes(model: TritonModel, options: TritonOptions, size: int) -> None:
    problem, hint = "", ""
    if options.warm_up_shapes and model.profiles:
        problem, hint = "an engine is warmed up at the optimum of its profiles", "leave it out"
    tensors = {tensor.name: tensor for tensor in model.io.inputs}
    for name, shape in options.shapes.items():
        if name not in tensors:
            problem = problem or f"no input {name!r}; the inputs are {', '.join(tensors)}"
        elif not tensors[name].accepts(shape) or 0 in shape:
            required = format_shape(tensors[name].shape)
            problem = problem or f"{format_shape(shape)} does not fit {name}:{required}"
    batches = {shape[0] for shape in options.shapes.values()} if size else set()
    if len(batches) > 1 or any(batch > size for batch in batches):
        sizes = ", ".join(map(str, sorted(batches)))
        problem = problem or f"batches {sizes}; one up to {size} is required"
    if problem:
        raise Refused("warm_up_shapes", problem, hint=hint)
