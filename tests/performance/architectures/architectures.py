"""The architectures of the coverage benchmark: rows of three files, each a function that MODEL can name.

qcompile export tests/performance/architectures/architectures.py:timm_resnet10t -o m.onnx --dynamic x:0=batch
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from itertools import chain, zip_longest
from operator import attrgetter
from pathlib import Path
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
"""Name of a dynamic axis to its least, usual and largest extent; an architecture may have its own.

Its other extents lie in the steps that these three share: 64, 96, 128 is any multiple of 32 between.
"""

KINDS, STEPS, RIGHT, BATCH, LEARNING_RATE = 10, 200, 5, 16, 1e-3
"""Kinds of images that classifiers of images learn, and how: steps of AdamW, images each."""

BATCHES, UNSEEN = 8, 4
"""Batches of samples that the stages see, of the largest size, and of those that the last diff sees."""


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
    """One row of a list: newcomers are of libraries that nobody here had looked at.

    Attributes:
        name: Unique in its library, a Python identifier.
        library: As pip names it.
        task: "classifier" where the first output is class logits [batch, classes]; else what it does.
        inputs: In any order; `forward` takes them by name.
        factory, options: What makes it, as package.module:Class, and the arguments by name, see `_made`.
        file: "models" or "newcomers".
        axes: Extents of its dynamic axes that are not those of `AXES`.
    """

    name: str
    library: str
    task: str
    inputs: tuple[Input, ...]
    factory: str
    options: Mapping[str, Any]
    file: str
    axes: Mapping[str, Range]

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Architecture:
        inputs = tuple(
            Input(name, tuple(shape), values_named(values)) for name, shape, values in row["inputs"]
        )
        axes = {axis: tuple(extents) for axis, extents in row.get("axes", {}).items()}
        return cls(**{**row, "inputs": inputs, "axes": axes})

    @property
    def key(self) -> str:
        """The name with its library, unique in the catalogue."""
        return f"{self.library.replace('-', '_')}_{self.name}"

    @property
    def kind(self) -> str:
        return "classifier" if self.task == "classifier" else "other"

    def module(self) -> Any:
        """Return the module with the random weights that it comes with."""
        from qcompile.model.sources.named.description import declare_torchvision_operators

        declare_torchvision_operators()  # many libraries import torchvision where it is installed
        return _made({"factory": self.factory, **self.options})

    def build(self) -> tuple[Any, Any]:
        """Return (module, example), as a function of MODEL does."""
        import torch

        torch.manual_seed(0)
        module = self.module().eval()
        if any(one.values is waves for one in self.inputs):
            train(module, self)
        elif "batch" in self.dynamic_axes:
            settle(module, [self.call(self.feeds(seed, batch=8)) for seed in (1, 2)])
        return module, self.call(self.feeds(0))

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
        """Yield batches of the largest size; every second one has its other dynamic axes at their largest."""
        axes = {axis: self.range(axis)[2] for axis in self.dynamic_axes}
        for seed in range(BATCHES):
            usual = {} if seed % 2 else {axis: self.range(axis)[1] for axis in axes if axis != "batch"}
            yield self.feeds(100 + seed, **axes | usual)

    def unseen(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield batches that no stage saw; behind the first every dynamic axis has any of its extents."""
        generator = np.random.default_rng(0)
        for seed in range(UNSEEN):
            drawn = {}
            for axis in sorted(self.dynamic_axes) if seed else ():
                least, usual, largest = self.range(axis)
                step = math.gcd(usual - least, largest - least) or 1
                drawn[axis] = int(generator.choice(np.arange(least, largest + 1, step)))
            yield self.feeds(200 + seed, **drawn)

    @property
    def dynamic_axes(self) -> set[str]:
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

    def call(self, feeds: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """Return the arguments of `forward`."""
        import torch

        arguments: dict[str, Any] = {}
        for name, array in feeds.items():
            *path, leaf = name.split(".")
            place = reduce(lambda inner, part: inner.setdefault(part, {}), path, arguments)
            place[leaf] = torch.from_numpy(np.ascontiguousarray(array))
        return arguments


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
            module(**batch)
    module.eval()


def train(module: Any, architecture: Architecture) -> None:
    """Teach a classifier of images, or of each of their points, the kinds of `waves`.

    INT8 of a network of random weights tells nothing: its classes are ties, and a search for layers that hurt
    finds all of them. It ends behind `STEPS` steps of AdamW, or `RIGHT` batches told without a fault.
    One thread makes it repeatable.
    """
    import torch

    [image] = architecture.inputs
    generator = np.random.default_rng(7)
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)

    def step(learn: bool) -> bool:
        extents = [d if isinstance(d, int) else architecture.range(d)[1] for d in image.shape[1:]]
        images, kinds = waves_of(generator, (BATCH, *extents))
        logits = first(module(**architecture.call({image.name: images})))
        target = torch.from_numpy(kinds % logits.shape[1])
        target = target.reshape(-1, *[1] * (logits.ndim - 2)).expand(-1, *logits.shape[2:])
        if learn:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, target).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
        return bool((logits.argmax(1) == target).all())

    module.train()
    right = 0
    for number in range(STEPS):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, 2 * (1 - number / STEPS))
        right = right + 1 if step(learn=True) else 0
        if right == RIGHT:
            break
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
            part.reset_running_stats()
            part.momentum = None  # the mean over what comes now: weights moved while it ran
    with torch.no_grad():
        for _ in range(8):
            step(learn=False)
    module.eval()


def first(output: Any) -> Any:
    """Return the first tensor of what a module returns."""
    while not hasattr(output, "shape"):
        output = next(iter(output.values())) if hasattr(output, "values") else output[0]
    return output


def normal(generator: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Standard normal float32."""
    return generator.standard_normal(shape, dtype=np.float32)


def smooth(generator: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Images of coarse structure and fine noise, float32, roughly standard normal: neighbours are alike."""
    *lead, height, width = shape
    coarse = generator.standard_normal((*lead, -(-height // 8), -(-width // 8)))
    image = coarse.repeat(8, -2).repeat(8, -1)[..., :height, :width]
    return (0.9 * image + 0.4 * generator.standard_normal(shape)).astype(np.float32)


def waves(generator: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Images [batch, channels, height, width] of one of `KINDS` kinds each, float32."""
    return waves_of(generator, shape)[0]


def waves_of(generator: Generator, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return images of waves, a kind has its direction, length and colour, under noise, and their kinds."""
    batch, channels, height, width = shape
    kinds = generator.integers(KINDS, size=batch)
    angle, length = np.pi * kinds / KINDS, 6.0 + 3.0 * (kinds % 3)
    across = (
        np.cos(angle)[:, None, None] * np.arange(width)
        + np.sin(angle)[:, None, None] * np.arange(height)[:, None]
    )
    phase = generator.uniform(0, 2 * np.pi, (batch, 1, 1))
    wave = np.cos(2 * np.pi * across / length[:, None, None] + phase)[:, None]
    colour = 1.0 + 0.5 * np.cos(kinds[:, None] + np.arange(channels))[..., None, None]
    return (wave * colour + 0.3 * generator.standard_normal(shape)).astype(np.float32), kinds


def uniform(generator: Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """From 0 to 1, float32."""
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


VALUES: dict[str, Values] = {
    function.__name__: function
    for function in (normal, smooth, waves, uniform, waveform, padded_mask, ones, boxes)
}


def values_named(name: str | dict[str, Any]) -> Values:
    """Return the function of a row: its name, or {"integers": its arguments}."""
    return integers(**name["integers"]) if isinstance(name, dict) else VALUES[name]


def _made(value: Any) -> Any:
    """Return a value of options; {"object": "package.module:Class"} stands for the class.

    {"factory": "package.module:Class"} stands for what it makes of the other keys, "args" by position.
    """
    if isinstance(value, list):
        return [_made(one) for one in value]
    if not isinstance(value, dict):
        return value
    options = {key: _made(one) for key, one in value.items() if key not in ("object", "factory")}
    package, _, path = (value.get("object") or value.get("factory") or "").partition(":")
    if not package:
        return options
    named = attrgetter(path)(import_module(package))
    return named if "object" in value else named(*options.pop("args", ()), **options)


def _read() -> dict[str, Architecture]:
    """Return the rows by key, the libraries in turn, so that the first results speak for all."""
    rows = [
        Architecture.from_row({**json.loads(line), "file": file})
        for file in ("models", "newcomers")
        for line in Path(__file__).with_name(f"{file}.jsonl").read_text().splitlines()
    ]
    libraries = [
        [row for row in rows if row.library == name] for name in dict.fromkeys(r.library for r in rows)
    ]
    return {row.key: row for row in chain.from_iterable(zip_longest(*libraries)) if row is not None}


ARCHITECTURES = _read()


def __getattr__(name: str) -> object:
    """The key of a row builds its module; `samples_` or `unseen_` and the key yield its data, for --data."""
    method, _, key = name.partition("_")
    method, key = (method, key) if method in ("samples", "unseen") else ("build", name)
    if key not in ARCHITECTURES:
        raise AttributeError(name)
    return getattr(ARCHITECTURES[key], method)
