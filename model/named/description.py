"""What models by name share: caches, refusals, descriptions with valid values, torchvision's operators.

torchvision registers `nms` and others from a compiled library. Where that library does not load beside this
PyTorch, `import torchvision` fails, and with it timm and the vision models of transformers. Their networks
need none of these operators. So they are declared first, and `nms` is computed in Python; the export warns.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidOption, ModelError
from ...tensors import AxisExtents, Feeds, TensorInfo
from ..preprocessing import Interpolation, Preprocessing, as_json
from ..pytorch import import_torch
from ..source import Source

if TYPE_CHECKING:
    from ..source import SourceKind


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
    return InvalidOption(
        f"model {source.spec}: {source.kind} has no model {source.name!r}; one of its {len(names)} is "
        "required",
        hint=f"did you mean {' or '.join(near)}?" if near else "",
    )


_PILLOW: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's filters by their number, as configurations write them."""


def interpolation(value: Any) -> Interpolation:
    """Return Pillow's name of an interpolation: of a name, of Pillow's number, or of an enumeration."""
    if isinstance(value, int) and 0 <= value < len(_PILLOW):
        return _PILLOW[value]
    name = str(getattr(value, "value", value)).lower().rpartition(".")[2]
    return next((known for known in _PILLOW if known == name), "bilinear")


BATCH = 2


@dataclass(frozen=True)
class Description:
    """A named model without its weights.

    Attributes:
        kind: Its package.
        name: Its name there; of a folder, the folder's.
        task: What its outputs are, such as "image-classification"; empty where unknown.
        inputs: In the order of `forward`; dynamic axes by name with their extents, and how samples become it.
        outputs: Suggested names; empty for the model's own.
        classes: Names of its classes, where they are known.
        domains: Input to the values that it takes, for the example.
        notes: What the user should know of it.
    """

    kind: SourceKind
    name: str
    task: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    domains: Mapping[str, Domain] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def example(self, seed: int = 0) -> Feeds:
        """Return valid values of the inputs, at the extents that they are traced with."""
        random = np.random.default_rng(seed)
        lengths = {t.name: tuple(extent(t, axis) for axis in range(len(t.shape))) for t in self.inputs}
        return {t.name: self.domains.get(t.name, Domain()).values(t, lengths[t.name], random)
                for t in self.inputs}  # fmt: skip


@dataclass(frozen=True)
class Domain:
    """The values of an input.

    Attributes:
        kind: "normal" floats, "ids" of tokens, a "mask" of ones with a padded tail, or "zeros".
        below: Ids are below it.
        excluded: Ids that are none of a text: padding, end.
    """

    kind: str = "normal"
    below: int = 0
    excluded: tuple[int, ...] = ()

    def values(self, tensor: TensorInfo, shape: tuple[int, ...], random: np.random.Generator) -> Any:
        """Return an array of the tensor's type."""
        if self.kind == "ids":
            allowed = [number for number in range(min(self.below, 50000)) if number not in self.excluded]
            return random.choice(np.asarray(allowed or [0]), shape).astype(tensor.dtype)
        if self.kind == "mask":
            mask = np.ones(shape, tensor.dtype)
            if len(shape) == 2 and shape[0] > 1:
                mask[-1, shape[1] - shape[1] // 4 :] = 0
            return mask
        if self.kind == "zeros":
            return np.zeros(shape, tensor.dtype)
        return random.standard_normal(shape).astype(tensor.dtype)


def extent(tensor: TensorInfo, axis: int) -> int:
    """Return the extent that an axis of an input is traced with."""
    dim = tensor.shape[axis]
    if isinstance(dim, int):
        return dim
    said = next((one for one in tensor.extents if one.axis == axis), AxisExtents(axis))
    traced = said.traced or (BATCH if axis == 0 else 16)
    return traced if said.maximum is None else min(traced, said.maximum)


def image_input(name: str, height: int, width: int, channels: int = 3) -> TensorInfo:
    """Return an input [batch, channels, height, width]."""
    return TensorInfo(name, "float32", ("batch", channels, height, width))


def with_preprocessing(tensor: TensorInfo, preprocessing: Preprocessing | None) -> TensorInfo:
    """Return an input that says how samples become it."""
    return tensor if preprocessing is None else replace(tensor, preprocessing=as_json(preprocessing))


_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_KEPT: list[Any] = []  # a library ends with its object
_reason_declared = ""


def mismatch() -> str:
    """Return why torchvision's operators do not load beside this PyTorch; empty where they do.

    Empty, too, where either package is missing.
    """
    library = _library()
    if library is None:
        return ""
    torch = import_torch()
    try:
        torch.ops.load_library(str(library))
    except OSError:
        versions = f"torchvision {importlib.metadata.version('torchvision')}, torch {torch.__version__}"
        return f"torchvision's operators do not load beside this PyTorch ({versions})"
    return ""


def declare_torchvision_operators() -> str:
    """Make `import torchvision` work where its operators do not load.

    Nothing is done where they load, where torchvision is missing, or where they are declared already.

    Returns:
        A warning that names the mismatch; empty where there is none.
    """
    global _reason_declared
    if not _KEPT and not hasattr(import_torch().ops.torchvision, "nms"):
        reason = mismatch()
        if reason:
            _define()
            _reason_declared = (
                f"{reason}; nms is computed in Python, other operators of torchvision.ops are not there"
            )
    return _reason_declared


def suppress(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Return the indices of the boxes that stay after greedy non-maximum suppression, best score first.

    Args:
        boxes: float32 [n, 4] as x0, y0, x1, y1.
        scores: float32 [n].
        iou_threshold: A box that overlaps a better one by more is dropped.
    """
    torch = import_torch()
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    order, kept = scores.argsort(descending=True, stable=True).tolist(), []
    while order:
        best = order.pop(0)
        kept.append(best)
        low = torch.maximum(boxes[order, :2], boxes[best, :2])
        high = torch.minimum(boxes[order, 2:], boxes[best, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        overlap = shared / (area[order] + area[best] - shared)
        order = [
            index for index, value in zip(order, overlap.tolist(), strict=True) if value <= iou_threshold
        ]
    return torch.tensor(kept, dtype=torch.int64)


def _define() -> None:
    torch = import_torch()
    library = torch.library.Library("torchvision", "DEF")
    _KEPT.append(library)
    for name in ("nms", "qnms"):
        library.define(f"{name}{_SIGNATURE}")
        library.impl(name, suppress, "CPU")
    from torchvision import extension

    extension._has_ops = lambda: True  # it would refuse to call them


def _library() -> Path | None:
    """torchvision's compiled operators; None where torchvision is missing."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    return next((path for pattern in ("_C*.so", "_C*.pyd") for path in folder.glob(pattern)), None)
