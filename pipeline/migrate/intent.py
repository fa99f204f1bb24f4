"""What a command asks for, in the words of neither tool, and what became of each of its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from .flags import Fate

Shape = tuple[int, ...]
Kind = Literal["min", "opt", "max"]
KINDS: tuple[Kind, ...] = ("min", "opt", "max")
Profile = dict[Kind, dict[str, Shape]]
"""Which of the three, to input, to shape. A name may hold one `*`, which stands for any text."""
Constraints = Literal["", "prefer", "obey"]


@dataclass
class Outcome:
    """What became of one option.

    Attributes:
        name: Of the option, without dashes; empty for what is none, as a variable.
        flag: As it was typed.
        fate: Whether its intent is kept, has no equal, or nothing depends on it.
        to: The key of the recipe that it became, or the command.
        note: What to know: why there is no equal, what to do, or what it means here.
    """

    name: str
    flag: str
    fate: Fate
    to: str = ""
    note: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the `--json` form."""
        return {"flag": self.flag, "fate": self.fate, "to": self.to, "note": self.note}


@dataclass
class Intent:
    """What is to be built, from what, and what is done with it.

    Attributes:
        model: ONNX file, as the command names it.
        engine: Engine to write, as the command names it.
        precisions: "fp16", "bf16", "int8", "fp8" and "int4" that are permitted.
        best: Whether every precision is permitted.
        tf32: Whether TF32 is permitted for what stays in FP32.
        strong: Whether the types of the graph decide.
        cache: Calibration cache, as the command names it.
        data: Samples to calibrate on, as the command names them.
        method: Method that chooses the thresholds; empty for the default.
        random: What the tool calibrates on where it is given neither.
        constraints: Whether `layers` bind, and how.
        layers: Name of a layer and its precision; a later one overrides. One `*` stands for any text.
        profiles: Shapes to build for; empty shapes for a model that is static.
        runs_at: Shapes that inference is run with.
        ranks: (dtype, format) of the inputs and of the outputs by their position, each empty or complete.
        formats: Input or output to (dtype, format).
        tensorrt: Option of the build to its value.
        gpus: Compute capabilities to build for.
        measures: Whether inference is measured.
        bench: Option of `[bench]` to its value.
        compares: Whether outputs are compared with ONNX Runtime's, and with which options.
        outcomes: What became of each option, in the order typed.
    """

    model: str = ""
    engine: str = ""
    precisions: set[str] = field(default_factory=set)
    best: bool = False
    tf32: bool = False
    strong: bool = False
    cache: str = ""
    data: str = ""
    method: str = ""
    random: str = ""
    constraints: Constraints = ""
    layers: list[tuple[str, str]] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    runs_at: dict[str, Shape] = field(default_factory=dict)
    ranks: dict[Literal["inputs", "outputs"], list[tuple[str, str]]] = field(default_factory=dict)
    formats: dict[str, tuple[str, str]] = field(default_factory=dict)
    tensorrt: dict[str, object] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    measures: bool = False
    bench: dict[str, object] = field(default_factory=dict)
    compares: list[str] | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    def settle(self, name: str, fate: Fate, to: str = "", note: str = "") -> None:
        """Say what became of an option, once other options are known."""
        for one in self.outcomes:
            if one.name == name:
                one.fate, one.to, one.note = fate, to if fate == "kept" else "", note

    def revise(self, to: str, fate: Fate, note: str, *, key: str = "") -> None:
        """Say the same of all options that were to become a key, or now become another one."""
        for one in self.outcomes:
            if one.to == to and one.fate == "kept":
                self.settle(one.name, fate, key or to, note)

    def flags_of(self, key: str) -> str:
        """Return the options that became a key, as they were typed."""
        return " ".join(one.flag for one in self.outcomes if one.fate == "kept" and one.to == key)

    @property
    def missing(self) -> Sequence[Outcome]:
        """The options that have no equal."""
        return [one for one in self.outcomes if one.fate == "missing"]
