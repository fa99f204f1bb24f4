"""What the translators of both tools share: each option goes to the function that knows what it becomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...errors import InvalidOption
from .flags import RTX, Fate, Flag
from .intent import Constraints, Intent, Outcome
from .values import polygraphy_size, wrong

_LEVELS = {
    "none": "", "ampere+": "ampere+", "ampere_plus": "ampere+",
    "samecomputecapability": "same-sm", "same_compute_capability": "same-sm",
}  # fmt: skip
EXTERNAL = ("cublas", "cublas-lt", "cublaslt", "cudnn")
"""Tactic sources that are other libraries: off by default in TensorRT 10 (NvInferRuntime.h), gone from 11."""
OWN = ("edge-mask-convolutions", "jit-convolutions")
"""Tactic sources of TensorRT 10, 11 and RTX themselves, on by default."""


@dataclass(frozen=True)
class Typed:
    """One option as it was typed.

    Attributes:
        flag: What is known of it.
        text: The words.
        values: Its values.
    """

    flag: Flag
    text: str
    values: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        """The one value.

        Raises:
            InvalidOption: If there is none.
        """
        if not self.values or not self.values[0]:
            raise wrong(self.flag.typed, "a value is required")
        return self.values[0]

    @property
    def number(self) -> int:
        """The value as a whole number.

        Raises:
            InvalidOption: If it is none.
        """
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", self.value):
            raise wrong(self.flag.typed, f"{self.value!r} is no whole number")
        return int(self.value)


class Translator:
    """Options into an intent. A subclass has a function for each option that has an equal: `HANDLERS`.

    A function changes the intent. It returns None where the option became what its row says, a note to that,
    or another fate with a note.
    """

    HANDLERS: ClassVar[Mapping[str, Callable[..., tuple[Fate, str] | str | None]]] = {}

    def __init__(self, target: str) -> None:
        self.target = target
        self.intent = Intent()

    def take(self, typed: Typed) -> None:
        """Translate one option."""
        flag = typed.flag
        fate, note = flag.for_target(self.target)
        to = flag.to
        if flag.default and typed.values == (flag.default,):
            fate, note = "unneeded", f"{flag.default} is the default"
        elif fate == "kept":
            said = self.HANDLERS[flag.name](self, typed)
            fate, note = said if isinstance(said, tuple) else ("kept", said or "")
        self.intent.outcomes.append(Outcome(flag.name, typed.text, fate, to if fate == "kept" else "", note))

    def permit(self, typed: Typed) -> None:
        """A precision that may be used."""
        self.intent.precisions.add(typed.flag.name)

    def switch(self, typed: Typed) -> None:
        """An option of the build that is on or off."""
        self.intent.tensorrt[typed.flag.to.rpartition(".")[2]] = True

    def count(self, typed: Typed) -> None:
        """An option of the build that is a number."""
        self.intent.tensorrt[typed.flag.to.rpartition(".")[2]] = typed.number

    def constrain(self, typed: Typed) -> None:
        """Whether the precisions of layers bind."""
        known: dict[str, Constraints] = {"obey": "obey", "prefer": "prefer"}
        if typed.value not in known:
            raise wrong(typed.flag.typed, f"{typed.value!r}; obey, prefer or none is required")
        self.intent.constraints = known[typed.value]

    def compatible(self, typed: Typed) -> tuple[Fate, str] | None:
        """GPUs beside the one that builds."""
        level = _LEVELS.get(typed.value.lower())
        if level is None:
            raise wrong(typed.flag.typed, f"{typed.value!r} is no level", "ampere+ or sameComputeCapability")
        if not level:
            return "unneeded", "none is the default"
        self.intent.tensorrt["hardware_compatible"] = level
        return None

    def pool(self, typed: Typed, name: str, size: str) -> str:
        """Limit a memory pool; a text says why it cannot be."""
        if name.startswith("dla-") and self.target == RTX:
            return f"TensorRT-RTX has no DLA, and no pool {name}"
        if name == "workspace":
            self.intent.tensorrt["workspace"] = size
        else:
            pools = self.intent.tensorrt.setdefault("memory_pools", [])
            assert isinstance(pools, list)
            pools.append(f"{name}={size}")
        return ""

    def stream_weights(self, typed: Typed) -> None:
        """Weights that may stream: all stay on the GPU without a budget."""
        self.intent.tensorrt.setdefault("weight_streaming", "all")

    def weight_budget(self, typed: Typed) -> tuple[Fate, str] | None:
        """How many weights stay on the GPU: a share, bytes, -2 for all, -1 for TensorRT's choice."""
        flag, text = typed.flag.typed, typed.value
        if text == "-1":
            return "missing", (
                "TensorRT's Python binding has 32 bits for its own choice (pyCore.cpp of 10.16:1602); "
                "give a share such as 50% as `weight_streaming`"
            )
        if not text.endswith("%"):
            size = "all" if text == "-2" else polygraphy_size(flag, text.removesuffix("B"))
            text = "0%" if size == "0" else size
        self.intent.tensorrt["weight_streaming"] = text
        return None

    def allocate(self, typed: Typed) -> None:
        """What an execution context has memory for."""
        if typed.value not in ("static", "profile", "runtime"):
            raise wrong(typed.flag.typed, f"{typed.value!r}; static, profile or runtime is required")
        self.intent.tensorrt["allocation_strategy"] = typed.value

    def plugin(self, typed: Typed) -> None:
        """Libraries to load."""
        plugins = self.intent.tensorrt.setdefault("plugins", [])
        assert isinstance(plugins, list)
        plugins += [value for value in typed.values if value]


def unread(word: str, tool: str, form: str) -> InvalidOption:
    """Return the error for a word that belongs to no option."""
    return InvalidOption(f"{word!r} belongs to no option of {tool}", hint=form, flag=word)
