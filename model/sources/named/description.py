"""What models by name share: caches, refusals, descriptions with valid values, torchvision's operators.

torchvision registers `nms` and others from a compiled library. Where that library does not load beside this
PyTorch, `import torchvision` fails, and with it timm and the vision models of transformers. Their networks
need none of these operators. So they are declared first, and `nms` is computed in Python; the export warns.
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
    """Return the folder of PyTorch's cache of checkpoints."""
    return Path(import_torch().hub.get_dir(), "checkpoints")


def not_cached(spec: str, what: str, folder: Path) -> ModelError:
    """Return the error for weights that are not in the local cache."""
    return ModelError(
        f"{spec}: {what} is not in the local cache {folder}; only with `download` it is downloaded",
        hint="give `download`; or `weights` random, for a model without its training; or `weights` FILE",
        file=folder,
    )


@contextmanager
def network(allowed: bool) -> Iterator[None]:
    """Let Hugging Face's packages download in the block, or keep them from it."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = not allowed
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def unknown_name(source: Source, names: Sequence[str]) -> InvalidOption:
    """Return the error for a name that a package does not know, with the nearest of its names."""
    near = difflib.get_close_matches(source.name.split(".")[0], names, n=3)
    problem = f"{source.kind} has no model {source.name!r}; one of its {len(names)} is required"
    return source.refusal(problem, f"did you mean {' or '.join(near)}?" if near else "")


_PILLOW: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's filters by their number, as configurations write them."""


def interpolation(value: Any) -> Interpolation:
    """Return Pillow's name of an interpolation: of a name, of Pillow's number, or of an enumeration."""
    if isinstance(value, int) and 0 <= value < len(_PILLOW):
        return _PILLOW[value]
    name = str(getattr(value, "value", value)).lower().rpartition(".")[2]
    return name if name in _PILLOW else "bilinear"


@dataclass(frozen=True)
class Description:
    """A named model; `load` makes its module, with its weights.

    `task` is what its outputs are, empty where unknown. Inputs are in the order of `forward`, dynamic axes
    by name. `domains` are the values of inputs whose names do not tell; `notes` are for the user. `weights`
    is the file of the model's own weights, where `load` makes it with another number of classes.
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
    """Return an input that says how samples become it."""
    return tensor if preprocessing is None else replace(tensor, preprocessing=as_json(preprocessing))


_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_KEPT: list[Any] = []  # a library ends with its object
_reason_declared = ""


def declare_torchvision_operators() -> str:
    """Make `import torchvision` work where its operators do not load; return a warning that names why.

    Nothing is done where they load, where torchvision is missing, or where they are declared already.
    """
    global _reason_declared
    torch, spec = import_torch(), importlib.util.find_spec("torchvision")
    if _KEPT or hasattr(torch.ops.torchvision, "nms") or spec is None or spec.origin is None:
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
            "Python, other operators of torchvision.ops are not there"
        )
        declared = torch.library.Library("torchvision", "DEF")
        _KEPT.append(declared)
        for name in ("nms", "qnms"):
            declared.define(f"{name}{_SIGNATURE}")
            declared.impl(name, suppress, "CPU")
        from torchvision import extension

        extension._has_ops = _has_operators  # it would refuse to call them
    return _reason_declared


def _has_operators() -> bool:
    """What torchvision asks of itself; a function that `torch.jit.script` reads."""
    return True


def suppress(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Return the indices of the boxes that stay after greedy non-maximum suppression, best score first.

    `boxes` are float32 [n, 4] as x0, y0, x1, y1; one that overlaps a better one by more than
    `iou_threshold` is dropped.
    """
    torch = import_torch()
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    order, staying = scores.argsort(descending=True, stable=True).tolist(), []
    while order:
        best = order.pop(0)
        staying.append(best)
        low = torch.maximum(boxes[order, :2], boxes[best, :2])
        high = torch.minimum(boxes[order, 2:], boxes[best, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        overlap = shared / (area[order] + area[best] - shared)
        order = [order[place] for place in (overlap <= iou_threshold).nonzero().ravel().tolist()]
    return torch.tensor(staying, dtype=torch.int64)
