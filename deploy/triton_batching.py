"""Batch sizes that Triton may form for an artifact.

Triton, "Model Configuration", "Maximum Batch Size": batching needs the batch as the first axis of every input
and output; else `max_batch_size` is 0 and `dims` are whole shapes. The backends want that axis to be dynamic
(tensorrt_backend and onnxruntime_backend, `CompareDimsSupported`), so an engine of a fixed batch serves whole
batches of that size, one request each.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import InvalidOption
from ..spec.looking import TritonOptions
from ..tensors import format_shape
from .triton_model import TritonModel

DEFAULT_MAX_BATCH = 4
"""Where nothing limits it: what Triton itself takes (onnxruntime_backend, "Default Max Batch Size")."""

_UNNAMED = "?"
_SHOWN = 4


def max_batch_size(model: TritonModel, options: TritonOptions) -> tuple[int, list[str]]:
    """Return `max_batch_size`, 0 for none, and what the user should know.

    Raises:
        InvalidOption: If more was asked for than the artifact takes.
    """
    asked = options.max_batch_size
    if asked == 0:
        return 0, []
    reason = _why_not(model)
    if reason and asked:
        raise InvalidOption(
            f"`max_batch_size` {asked}: {model.path}: {reason}",
            hint="leave it out: every request is then a whole batch",
            option="max_batch_size",
        )
    if reason:
        return 0, [f"no batching: {reason}"]
    axes = list(dict.fromkeys(str(tensor.shape[0]) for tensor in (*model.io.inputs, *model.io.outputs)))
    unsure = len(axes) > 1 or _UNNAMED in axes
    if unsure and asked is None:
        return 0, [
            f"no batching: the first axes are {_shown(axes)}, which may not be one batch; "
            "`max_batch_size` says that they are"
        ]
    notes = (
        [f"the first axes {_shown(axes)} are taken for one batch, as `max_batch_size` says"] if unsure else []
    )
    batches = profile_batches(model)
    most = max((last for _, last in batches), default=None)
    if most is not None and asked is not None and asked > most:
        raise InvalidOption(
            f"`max_batch_size` {asked}: the profiles of {model.path} end at {most}",
            hint=f"give {most} or less, or build with larger `max_shapes`",
            option="max_batch_size",
        )
    size = asked or most or DEFAULT_MAX_BATCH
    if asked is None and most is None:
        notes.append(
            f"max_batch_size is {size}, Triton's own where nothing limits it; `max_batch_size` sets it"
        )
    gaps = _gaps(batches, size) if batches else []
    if gaps:
        notes.append(f"no profile takes a batch of {_shown(gaps)}: Triton fails such requests")
    return size, notes


def profile_batches(model: TritonModel) -> list[tuple[int, int]]:
    """Return the least and largest batch of every profile, over all inputs in it."""
    return [
        (max(item.min[0] for item in ranges.values()), min(item.max[0] for item in ranges.values()))
        for ranges in model.profiles
        if ranges
    ]


def _why_not(model: TritonModel) -> str:
    if not model.backend.batches:
        return f"Triton's {model.backend.name} backend would take only requests of exactly max_batch_size"
    if model.shape_tensors:
        return f"{_shown(sorted(model.shape_tensors))} holds a shape, whose first value need not be the batch"
    for tensor in (*model.io.inputs, *model.io.outputs):
        if not tensor.shape or isinstance(tensor.shape[0], int):
            return f"the first axis of {tensor.name!r} ({format_shape(tensor.shape)}) is not dynamic"
    return ""


def _gaps(batches: Iterable[tuple[int, int]], size: int) -> list[str]:
    """Spans of batches up to `size` that no profile takes: `["1", "5-7"]`."""
    gaps, covered = [], 0
    for first, last in [*sorted(batches), (size + 1, size + 1)]:
        if first > covered + 1:
            gaps.append(str(first - 1) if first == covered + 2 else f"{covered + 1}-{first - 1}")
        covered = max(covered, last)
        if covered >= size:
            break
    return gaps


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
