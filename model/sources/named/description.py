"""Shared parts of named models: caches, errors, descriptions with valid values, torchvision's operators.

torchvision registers `nms` and other operators from a compiled library. If that library does not load beside
the installed PyTorch, `import torchvision` fails, as do timm and the vision models of transformers. Their
networks use none of these operators. We declare them first and compute `nms` in Python; the export warns.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ....errors import InvalidOption, ModelError
from ....spec.tensors import TensorInfo
from ...sessions.random_input import Domain
from ..preprocessing import Interpolation, Preprocessing, as_json
from ..pytorch import import_torch
from ..source import Source


def torch_cache() -> Path:
    """Return the folder with PyTorch's cached checkpoints."""
    return Path(import_torch().hub.get_dir(), "checkpoints")


def not_cached(spec: str, what: str, folder: Path) -> ModelError:
    """Return the error for weights that are not in the local cache."""
    return ModelError(
        f"{spec}: {what} is not in the local cache {folder}; `download` is required to download it",
        hint="give `download`; or `weights` random, for a model without its training; or `weights` FILE",
        file=folder,
    )


@contextmanager
def network(allowed: bool) -> Iterator[None]:
    """Allow or forbid downloads by Hugging Face's packages inside the block."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = not allowed
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def unknown_name(source: Source, names: Sequence[str]) -> InvalidOption:
    """Return the error for an unknown model name, with the closest names of the package as a hint."""
    near = difflib.get_close_matches(source.name.split(".")[0], names, n=3)
    problem = f"{source.kind} has no model {source.name!r}; one of its {len(names)} is required"
    return source.refusal(problem, f"did you mean {' or '.join(near)}?" if near else "")


_PILLOW: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's filters by number, as configurations store them."""


def interpolation(value: Any) -> Interpolation:
    """Return Pillow's name of an interpolation, from its name, Pillow's number, or an enumeration."""
    if isinstance(value, int) and 0 <= value < len(_PILLOW):
        return _PILLOW[value]
    name = str(getattr(value, "value", value)).lower().rpartition(".")[2]
    return name if name in _PILLOW else "bilinear"


@dataclass(frozen=True)
class Description:
    """A named model; `load` returns its module with weights.

    `task` is the kind of its outputs, empty if unknown. Inputs have the order of `forward`; dynamic axes have
    names. `domains` are valid values of inputs that their names do not reveal; `notes` are for the user.
    `weights` returns the file of the trained weights, for a module that `load` makes with other classes.
    """

    task: str
    inputs: tuple[TensorInfo, ...]
    load: Callable[[], Any]
    outputs: tuple[str, ...] = ()
    domains: Mapping[str, Domain] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    weights: Callable[[], Path | None] = lambda: None


def image_input(
    name: str, height: int, width: int, preprocessing: Preprocessing | None, channels: int = 3
) -> TensorInfo:
    """Return an input [batch, channels, height, width]."""
    tensor = TensorInfo(name, "float32", ("batch", channels, height, width))
    return with_preprocessing(tensor, preprocessing)


def with_preprocessing(tensor: TensorInfo, preprocessing: Preprocessing | None) -> TensorInfo:
    """Return the input with its preprocessing attached."""
    return tensor if preprocessing is None else replace(tensor, preprocessing=as_json(preprocessing))


_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_LIBRARIES: list[Any] = []  # a declaration lasts as long as its `Library` object
_reason_declared = ""


def declare_torchvision_operators() -> str:
    """Make `import torchvision` work if its operators do not load; return a warning with the reason.

    Do nothing if they load, if torchvision is missing, or if they are declared already.
    """
    global _reason_declared
    torch, spec = import_torch(), importlib.util.find_spec("torchvision")
    if _LIBRARIES or hasattr(torch.ops.torchvision, "nms") or spec is None or spec.origin is None:
        return _reason_declared
    folder = Path(spec.origin).parent
    library = next((path for pattern in ("_C*.so", "_C*.pyd") for path in folder.glob(pattern)), None)
    if library is None:
        return ""
    try:
        torch.ops.load_library(str(library))
    except OSError:
        versions = f"torchvision {importlib.metadata.version('torchvision')}, torch {torch.__version__}"
        _reason_declared = (
            f"torchvision's operators do not load beside this PyTorch ({versions}); nms is computed in "
            "Python, other operators of torchvision.ops are unavailable"
        )
        declared = torch.library.Library("torchvision", "DEF")
        _LIBRARIES.append(declared)
        for name in ("nms", "qnms"):
            declared.define(f"{name}{_SIGNATURE}")
            declared.impl(name, suppress, "CPU")
        from torchvision import extension

        extension._has_ops = _has_operators  # otherwise torchvision rejects calls of its operators
    return _reason_declared


def _has_operators() -> bool:
    """Replace torchvision's check for its operators; `torch.jit.script` compiles it, so it is a function."""
    return True


def suppress(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Return the indices of boxes after greedy non-maximum suppression, best score first.

    `boxes` are float32 [n, 4] as x0, y0, x1, y1. A box is dropped if its overlap (intersection over union)
    with a better box exceeds `iou_threshold`.
    """
    torch = import_torch()
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    order, selected = scores.argsort(descending=True, stable=True).tolist(), []
    while order:
        best = order.pop(0)
        selected.append(best)
        low = torch.maximum(boxes[order, :2], boxes[best, :2])
        high = torch.minimum(boxes[order, 2:], boxes[best, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        overlap = shared / (area[order] + area[best] - shared)
        order = [order[place] for place in (overlap <= iou_threshold).nonzero().ravel().tolist()]
    return torch.tensor(selected, dtype=torch.int64)
