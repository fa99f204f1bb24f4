"""What the coverage benchmark knows of an architecture: how it is made and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Generator = np.random.Generator
Values = Callable[[Generator, tuple[int, ...]], NDArray[Any]]
Range = tuple[int, int, int]

AXES: dict[str, Range] = {
    "batch": (1, 2, 8),
    "length": (8, 16, 32),
    "target": (4, 8, 16),
    "height": (64, 64, 128),
    "width": (64, 96, 128),
    "time": (24, 32, 64),
    "points": (32, 64, 128),
    "nodes": (12, 16, 32),
    "edges": (24, 40, 80),
}
"""Name of a dynamic axis to its least, usual and largest extent; an architecture may have its own."""

BATCHES = 4
"""Batches of samples that calibration and comparison see."""


@dataclass(frozen=True)
class Input:
    """One input.

    Attributes:
        name: As `forward` calls it; a dot leads into a dict.
        shape: Extents; a string is a dynamic axis.
        values: Makes valid values of a shape.
    """

    name: str
    shape: tuple[int | str, ...]
    values: Values


@dataclass(frozen=True)
class Architecture:
    """One architecture by name.

    Attributes:
        name: Unique, a Python identifier without its library.
        library: "transformers", "timm", "torchvision" or "hand".
        task: "classifier" where the first output is class logits [batch, classes]; else what it does.
        module: Makes the module with the random weights that it comes with.
        inputs: In any order; `forward` takes them by name.
        axes: Extents of its dynamic axes that are not those of `AXES`.
        wrap: Makes of named arrays what `forward` takes, where that is not a dict of them.
    """

    name: str
    library: str
    task: str
    module: Callable[[], Any]
    inputs: tuple[Input, ...]
    axes: Mapping[str, Range] = field(default_factory=dict)
    wrap: Callable[[dict[str, Any]], Any] | None = None

    @property
    def key(self) -> str:
        """The name with its library, unique in the catalogue."""
        return f"{self.library}_{self.name}"

    @property
    def kind(self) -> str:
        """ "classifier" or "other"."""
        return "classifier" if self.task == "classifier" else "other"

    def build(self) -> tuple[Any, Any]:
        """Return (module, example), as a function of MODEL does."""
        import torch

        torch.manual_seed(0)
        module = self.module().eval()
        if "batch" in self.dynamic_axes:
            settle(module, [self._call(self.feeds(seed, batch=8)) for seed in (1, 2)])
        return module, self._call(self.feeds(0))

    def feeds(self, seed: int, **extents: int) -> dict[str, NDArray[Any]]:
        """Return one batch of valid input; dynamic axes have their usual extents unless said."""
        generator = np.random.default_rng(seed)
        return {
            one.name: one.values(
                generator,
                tuple(d if isinstance(d, int) else extents.get(d, self.range(d)[1]) for d in one.shape),
            )
            for one in self.inputs
        }

    def samples(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield batches; every second one has its dynamic axes, but the batch, at their largest."""
        free = self.dynamic_axes - {"batch"}
        for seed in range(BATCHES):
            larger = {axis: self.range(axis)[2] for axis in free} if seed % 2 else {}
            yield self.feeds(100 + seed, **larger)

    @property
    def dynamic_axes(self) -> set[str]:
        """Names of its dynamic axes."""
        return {axis for one in self.inputs for axis in one.shape if isinstance(axis, str)}

    def range(self, axis: str) -> Range:
        """Return the least, usual and largest extent of a dynamic axis."""
        return self.axes.get(axis) or AXES[axis]

    def dynamic(self) -> list[str]:
        """Return the dynamic axes as `export` takes them: `INPUT:AXIS=NAME`."""
        return [
            f"{one.name}:{index}={axis}"
            for one in self.inputs
            for index, axis in enumerate(one.shape)
            if isinstance(axis, str)
        ]

    def profile(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return the least, usual and largest shapes as `build` takes them; empty where none is dynamic."""
        if not self.dynamic_axes:
            return {}
        kinds = ("min_shapes", "opt_shapes", "max_shapes")
        return {
            kind: {
                one.name: tuple(d if isinstance(d, int) else self.range(d)[index] for d in one.shape)
                for one in self.inputs
            }
            for index, kind in enumerate(kinds)
        }

    def _call(self, feeds: dict[str, NDArray[Any]]) -> Any:
        import torch

        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}
        return self.wrap(tensors) if self.wrap else tensors


def settle(module: Any, batches: Sequence[Any]) -> None:
    """Give BatchNorm the statistics of samples, as training does: random weights let signals fade."""
    import torch

    norms = [part for part in module.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]
    norms = [part for part in norms if part.track_running_stats]
    if not norms:
        return
    for part in norms:
        torch.nn.init.normal_(part.bias, 0.0, 0.2) if part.affine else None
        part.momentum = None
        part.train()
    with torch.no_grad():
        for batch in batches:
            module(**batch) if isinstance(batch, dict) else module(*batch)
    module.eval()


def normal(generator: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Standard normal float32."""
    return generator.standard_normal(shape, dtype=np.float32)


def smooth(generator: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Images of coarse structure and fine noise, float32, roughly standard normal: neighbours are alike."""
    *lead, height, width = shape
    coarse = generator.standard_normal((*lead, -(-height // 8), -(-width // 8)))
    image = coarse.repeat(8, -2).repeat(8, -1)[..., :height, :width]
    return (0.9 * image + 0.4 * generator.standard_normal(shape)).astype(np.float32)


def unit(generator: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Uniform float32 from 0 to 1."""
    return generator.random(shape, dtype=np.float32)


def waveform(generator: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Sounds: three sines and noise along the last axis, float32."""
    time = np.arange(shape[-1]) / 16000
    pitch = generator.uniform(100, 2000, (*shape[:-1], 3, 1))
    tones = np.sin(2 * np.pi * pitch * time).sum(-2) / 3
    return (tones + 0.1 * generator.standard_normal(shape)).astype(np.float32)


def integers(count: int, dtype: str = "int64", least: int = 0) -> Values:
    """Integers from `least` up to `count`, which is none of them."""
    return lambda generator, shape: generator.integers(least, count, shape).astype(dtype)


def padded_mask(generator: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """int64 ones [batch, length] with a tail of zeros, of another length in each row but the first."""
    batch, length = shape
    lengths = generator.integers(length // 2 + 1, length + 1, batch)
    lengths[0] = length
    return (np.arange(length) < lengths[:, None]).astype(np.int64)


def ones(_: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """int64 ones."""
    return np.ones(shape, np.int64)


def boxes(generator: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """int64 boxes [..., 4] as x0, y0, x1, y1 from 0 to 1000, ordered."""
    low, size = generator.integers(0, 500, (*shape[:-1], 2)), generator.integers(1, 500, (*shape[:-1], 2))
    return np.concatenate([low, low + size], -1).astype(np.int64)


def image(name: str, size: int, channels: int = 3, height: int = 0) -> tuple[Input, ...]:
    """An image [batch, channels, size, size] of fixed extents."""
    return (Input(name, ("batch", channels, height or size, size), smooth),)


def free_image(name: str, channels: int = 3) -> tuple[Input, ...]:
    """An image [batch, channels, height, width], all dynamic."""
    return (Input(name, ("batch", channels, "height", "width"), smooth),)


def text(vocabulary: int = 200, *, axis: int | str = "length") -> tuple[Input, ...]:
    """Tokens [batch, length] and their mask with a padded tail. Token 0 to 3 are special."""
    return (
        Input("input_ids", ("batch", axis), integers(vocabulary, least=4)),
        Input("attention_mask", ("batch", axis), padded_mask),
    )
