"""What a command asks for, in the words of neither tool, and what became of each of its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .flags import Fate

Shape = tuple[int, ...]
Kind = Literal["min", "opt", "max"]
KINDS: tuple[Kind, ...] = ("min", "opt", "max")
Profile = dict[Kind, dict[str, Shape]]
"""Which of the three, to input, to shape. A name may hold one `*`, which stands for any text."""


@dataclass
class Outcome:
    """What became of an option, or of a variable, which has no name; `to` is a key or a command."""

    name: str
    flag: str
    fate: Fate
    to: str = ""
    note: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the `--json` form."""
        return {key: value for key, value in asdict(self).items() if key != "name"}


@dataclass
class Intent:
    """What is to be built, from what, and what is done with it.

    Attributes:
        model, engine, cache, data: Files, as the command names them; `function` is that of `data`.
        strong: Whether the types of the graph decide.
        random: What the tool calibrates on where it has neither data nor a cache.
        constraints: Whether `layers` bind, and how.
        layers: Name of a layer and its precision; a later one overrides. One `*` stands for any text.
        profiles: Shapes to build for; empty shapes for a model that is static.
        runs_at: Shapes that inference is run with.
        ranks: (dtype, format) of the inputs and of the outputs by their position, each empty or complete.
        formats: Input or output to (dtype, format).
        compares: Options of the comparison with ONNX Runtime's outputs; None without one.
        outcomes: What became of each option, in the order typed.
    """

    model: str = ""
    engine: str = ""
    cache: str = ""
    data: str = ""
    function: str = ""
    precisions: set[str] = field(default_factory=set)
    best: bool = False
    tf32: bool = False
    strong: bool = False
    method: str = ""
    random: str = ""
    constraints: Literal["", "prefer", "obey"] = ""
    layers: list[tuple[str, str]] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    runs_at: dict[str, Shape] = field(default_factory=dict)
    ranks: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    formats: dict[str, tuple[str, str]] = field(default_factory=dict)
    tensorrt: dict[str, Any] = field(default_factory=dict)
    bench: dict[str, Any] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    runs_tensorrt: bool = False
    runs_onnx: bool = False
    skips: bool = False
    measures: bool = False
    compares: list[str] | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    def settle(self, name: str, fate: Fate, to: str = "", note: str = "") -> None:
        """Say what became of an option, once other options are known."""
        for outcome in self.outcomes:
            if outcome.name == name:
                outcome.fate, outcome.to, outcome.note = fate, to if fate == "kept" else "", note

    def revise(self, to: str, fate: Fate, note: str, *, key: str = "") -> None:
        """Say the same of all options that were to become a key, or now become another one."""
        for outcome in self.outcomes:
            if outcome.to == to and outcome.fate == "kept":
                self.settle(outcome.name, fate, key or to, note)

    def flags_of(self, key: str) -> str:
        """Return the options that became a key, as they were typed."""
        return " ".join(item.flag for item in self.outcomes if item.fate == "kept" and item.to == key)

    @property
    def missing(self) -> Sequence[Outcome]:
        """The options that have no equal."""
        return [outcome for outcome in self.outcomes if outcome.fate == "missing"]
