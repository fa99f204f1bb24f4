"""What models by name share: caches, refusals of names, descriptions with valid values."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidOption, ModelError
from ...tensors import AxisExtents, Feeds, TensorInfo
from ..preprocessing import Interpolation, Preprocessing, as_json
from ..source import Source

if TYPE_CHECKING:
    from ..source import SourceKind


def torch_cache() -> Path:
    """Return the folder of PyTorch's cache of checkpoints."""
    home = os.environ.get("TORCH_HOME") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch"
    )
    return Path(home).expanduser() / "hub" / "checkpoints"


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
