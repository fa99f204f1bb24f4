"""Translate the options of trtexec and Polygraphy into an intent: one parser, one function a kind of value.

What an option does is read from TensorRT's repository: samples/common/sampleOptions.cpp parses trtexec's and
sampleEngines.cpp builds with them; tools/Polygraphy/polygraphy/tools/args declares Polygraphy's and
backend/trt/config.py obeys them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...errors import InvalidOption
from .intent import (
    RTX,
    Fate,
    Flag,
    Intent,
    Kind,
    Outcome,
    Profile,
    Shape,
    Tool,
    dashed,
    dtype_of,
    find_flag,
    polygraphy_shapes,
    read_size,
    trtexec_pairs,
    trtexec_shapes,
    wrong,
)

Said = tuple[Fate, str] | str | None
"""What a function says of an option: another fate and why, or a note to what its row says."""

_POOLS = {
    "dlaSRAM": "dla-managed-sram", "dlaLocalDRAM": "dla-local-dram", "dlaGlobalDRAM": "dla-global-dram",
    "tacticSharedMem": "tactic-shared-memory", "workspace": "workspace",
}  # fmt: skip
"""trtexec's names of memory pools, to those of `memory_pools`."""
_EXTERNAL = ("cublas", "cublas-lt", "cublaslt", "cudnn")
"""Tactic sources that are other libraries: off by default in TensorRT 10 (NvInferRuntime.h), gone from 11."""
_OWN = ("edge-mask-convolutions", "jit-convolutions")
"""Tactic sources of TensorRT 10, 11 and RTX themselves, on by default."""
_METHODS = {"IInt8EntropyCalibrator2": "entropy", "IInt8EntropyCalibrator": "entropy",
            "IInt8MinMaxCalibrator": "minmax"}  # fmt: skip
_INSTEAD = {
    "inspect": "`qcompile inspect` looks at files",
    "check": "`qcompile export` checks an ONNX file",
    "surgeon": "`qcompile simplify` folds and fuses nodes",
    "debug": "`qcompile diff` with `layers` finds the first tensor that diverges",
}
_SHOWN = ("bench", "bench.max_time_s", "bench.streams", "bench.cuda_graph", "bench.layer_times")
_PLACEHOLDER = "placeholder ranges, 2 for inputs and 4 for outputs of layers (setTensorDynamicRange)"
_ONE_BATCH = (
    "one batch of random numbers from -1 to 1, as its calibration cache does not exist (RndInt8Calibrator)"
)
_DATA_LOADER = "random numbers from 0 to 1 (DataLoader)"


@dataclass(frozen=True)
class Typed:
    """One option as it was typed: what is known of it, its words, and its values."""

    flag: Flag
    text: str
    values: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        """The one value; without any, an error."""
        if not self.values or not self.values[0]:
            raise self.wrong("a value is required")
        return self.values[0]

    @property
    def number(self) -> int:
        """The value as a whole number; an error if it is none."""
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", self.value):
            raise self.wrong(f"{self.value!r} is no whole number")
        return int(self.value)

    def wrong(self, problem: str, hint: str = "") -> InvalidOption:
        return wrong(dashed(self.flag.name), problem, hint)


_READ: dict[str, Callable[[Typed], object]] = {
    "text": lambda typed: typed.value,
    "number": lambda typed: typed.number,
    "numbers": lambda typed: [typed.number],
    "number_text": lambda typed: str(typed.number),
}
"""What `by` names, and reads the value of a key."""


def translate(tool: Tool, words: Sequence[str], target: str) -> Intent:
    """Return what the words behind the name of a tool ask for, of target "tensorrt" or "tensorrt-rtx"."""
    words, verb = list(words), ""
    if tool == "polygraphy":
        verb = next((word for word in words if not word.startswith("-")), "")
        if verb not in ("run", "convert"):
            hint = _INSTEAD.get(verb, "run and convert are migrated")
            raise InvalidOption(f"polygraphy {verb or 'alone'}: builds no engine to migrate", hint=hint)
        words.remove(verb)
    translator = _Translator(tool, target, builds=verb != "run")
    for typed in _read(tool, words):
        if isinstance(typed, str):
            translator.positional(typed)
        else:
            translator.take(typed)
    return translator.finish()


def _read(tool: Tool, words: Sequence[str]) -> Iterator[Typed | str]:
    """Options with their values, and other words, as argparse reads them; trtexec's stand behind `=`."""
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _is_option(word):
            yield word
            continue
        name, equals, value = word.partition("=")
        if tool == "polygraphy" and re.fullmatch(r"-(v+|q+)", word):
            name = word[1]
        prefixes = tool == "polygraphy" and name.startswith("--")
        flag = find_flag(tool, name.lstrip("-"), prefixes=prefixes)
        values = [value] if equals else []
        many = {"1": 1, "?": 1, "+": len(words), "*": len(words)}.get(flag.takes, 0)
        while not equals and len(values) < many and index < len(words) and not _is_option(words[index]):
            values.append(words[index])
            index += 1
        if flag.takes in ("1", "+") and not values:
            raise wrong(word, "a value is required")
        yield Typed(flag, word if equals else " ".join([word, *values]), tuple(values))


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?([eE][-+]?\d+)?", word) and word != "-"


class _Translator:
    """The options of one command line, each by the function, field or value that its row names."""

    def __init__(self, tool: Tool, target: str, *, builds: bool) -> None:
        self.is_trtexec, self.target = tool == "trtexec", target
        # trtexec leaves the builder's flag of TF32 on
        self.intent = Intent(runs_tensorrt=builds, tf32=self.is_trtexec)
        self._numbered: dict[int, Profile] = {}
        self._plain: Profile = {}
        self._filling = self._plain
        self._comparison: list[str] = []

    def positional(self, word: str) -> None:
        """The model of Polygraphy is the one word that belongs to no option."""
        if not self.is_trtexec and not self.intent.model:
            self.intent.model = word
            return
        tool, hint = "polygraphy", f"the model is {self.intent.model}"
        if self.is_trtexec:
            dash = "a long dash of a web page stands for two; " if word[:1] in "\u2013\u2014" else ""
            tool, hint = "trtexec", f"{dash}it writes {dashed('NAME')}=VALUE, with no space"
        raise InvalidOption(f"{word!r} belongs to no option of {tool}", hint=hint, flag=word)

    def take(self, typed: Typed) -> None:
        flag = typed.flag
        fate, note = flag.fate, flag.note
        if self.target == RTX and flag.rtx_fate is not None:
            fate, note = flag.rtx_fate, flag.rtx_note
        if flag.default and typed.values == (flag.default,):
            fate, note = "unneeded", f"{flag.default} is the default"
        elif fate == "kept":
            outcome = self._apply(typed)
            fate, note = outcome if isinstance(outcome, tuple) else ("kept", outcome or note)
        to = flag.to if fate == "kept" else ""
        self.intent.outcomes.append(Outcome(flag.name, typed.text, fate, to, note))

    def _apply(self, typed: Typed) -> Said:
        flag, value = typed.flag, typed.flag.sets
        if flag.choices:
            value = flag.choices.get(typed.value.lower())
            if value is None:
                *names, last = flag.choices
                raise typed.wrong(f"{typed.value!r}; {', '.join(names)} or {last} is required")
            if value == "":
                return "unneeded", f"{typed.value} is the default"
        if flag.by.startswith("."):
            setattr(self.intent, flag.by[1:], typed.value if value is None else value)
        elif flag.by in _READ:
            self._set(typed, _READ[flag.by](typed))
        elif flag.by:
            function: Callable[[Typed], Said] = getattr(self, f"_{flag.by}")
            return function(typed)
        elif value is not None:
            self._set(typed, value)
        return None

    def _set(self, typed: Typed, value: object) -> None:
        table, _, key = typed.flag.to.rpartition(".")
        (self.intent.bench if table == "bench" else self.intent.tensorrt)[key] = value

    def finish(self) -> Intent:
        intent = self.intent
        if not intent.runs_tensorrt:
            raise InvalidOption("polygraphy run: runs no TensorRT", hint="there is no engine to migrate")
        if self._numbered and self._plain:
            raise wrong(dashed("profile"), "shapes stand outside of a profile too", "give them after it")
        intent.profiles += [self._numbered[index] for index in sorted(self._numbered)]
        intent.profiles += [self._plain] if self._plain else []
        # Shapes of inference alone are those of the engine (AllOptions::parse, parse_profile_shapes).
        name = "shapes" if self.is_trtexec else "input-shapes"
        if intent.runs_at and not intent.profiles:
            intent.profiles = [{"opt": intent.runs_at}]
            intent.settle(name, "kept", "artifact.opt_shapes", "the engine takes no others")
        elif intent.runs_at and not self.is_trtexec:
            intent.settle(name, "unneeded", note="the comparison runs at shapes of the profile")
        if self.is_trtexec:
            measuring = any(item.to in _SHOWN and item.fate == "kept" for item in intent.outcomes)
            intent.measures = not intent.skips and (measuring or not intent.engine)
            intent.random = _ONE_BATCH if intent.cache else _PLACEHOLDER
        else:
            intent.random = _DATA_LOADER
            if intent.data and intent.function:
                intent.data = f"{intent.data.rpartition(':')[0]}:{intent.function}"
        if intent.runs_onnx or (self.is_trtexec and self._comparison):
            intent.compares = self._comparison
        elif self._comparison:
            intent.revise("qcompile diff", "unneeded", "one runtime alone is run: nothing is compared")
        return intent

    def _pairs(self, typed: Typed) -> list[tuple[str, str]]:
        if self.is_trtexec:
            return trtexec_pairs(dashed(typed.flag.name), typed.value)
        if not typed.values:
            raise typed.wrong("a value is required")
        return [(name, value) for name, _, value in (text.rpartition(":") for text in typed.values)]

    def _shapes_of(self, typed: Typed) -> dict[str, Shape]:
        if self.is_trtexec:
            return trtexec_shapes(dashed(typed.flag.name), typed.value)
        return polygraphy_shapes(dashed(typed.flag.name), self._pairs(typed))

    def _bytes(self, typed: Typed, text: str) -> str:
        return read_size(dashed(typed.flag.name), text, unit="M" if self.is_trtexec else "")

    def _only(self, typed: Typed) -> Said:
        values = [value for text in typed.values for value in text.split(",")]
        missing = [value for value in values if value.lower() not in typed.flag.only]
        return ("missing", f"{', '.join(missing)}: {typed.flag.otherwise}") if missing else None

    def _size(self, typed: Typed) -> None:
        self._set(typed, self._bytes(typed, typed.value))

    def _permit(self, typed: Typed) -> None:
        self.intent.precisions.add(typed.flag.sets or typed.flag.name)

    def _layers(self, typed: Typed) -> None:
        types_of_outputs = typed.flag.name == "layerOutputTypes"
        named = {name for name, _ in self.intent.layers} if types_of_outputs else set()
        self.intent.layers += [
            (name, dtype_of(value.partition("+")[0]))
            for name, value in self._pairs(typed)
            if name not in named
        ]

    def _calibrator(self, typed: Typed) -> Said:
        if typed.value not in _METHODS:
            return "missing", f"{typed.value}: `calibrate.method` has {', '.join({*_METHODS.values()})}"
        self.intent.method = _METHODS[typed.value]
        return None

    def _profile(self, typed: Typed) -> None:
        self._filling = self._numbered.setdefault(typed.number, {})

    def _shapes(self, typed: Typed) -> None:
        kinds: dict[str, Kind] = {f"artifact.{kind}_shapes": kind for kind in ("min", "opt", "max")}
        kind, shapes = kinds[typed.flag.to], self._shapes_of(typed)
        if self.is_trtexec:
            self._filling[kind] = shapes
            return
        profiles = self.intent.profiles  # shapes that are typed again are of another profile
        if all(kind in profile for profile in profiles):
            profiles.append({})
        next(profile for profile in profiles if kind not in profile)[kind] = shapes

    def _runs_at(self, typed: Typed) -> None:
        self.intent.runs_at = self._shapes_of(typed)

    def _ranked_formats(self, typed: Typed) -> None:
        formats = []
        for text in typed.value.split(","):
            dtype, colon, layouts = text.rpartition(":")  # from 11.1 on the type is the file's
            first = layouts.split("+")[0].lower()
            formats.append((dtype_of(dtype) if colon else "", "linear" if first == "chw" else first))
        self.intent.ranks["inputs" if typed.flag.name.startswith("input") else "outputs"] = formats

    def _formats(self, typed: Typed) -> None:
        for name, value in self._pairs(typed):
            dtype, layout = self.intent.formats.get(name or "*", ("", ""))
            if "dtypes" in typed.flag.name:
                dtype = dtype_of(value)
            else:
                layout = value.strip("[]").split(",")[0].lower()
            self.intent.formats[name or "*"] = dtype, layout

    def _pools(self, typed: Typed) -> Said:
        missing = ""
        for name, size in self._pairs(typed):
            if self.is_trtexec and name not in _POOLS:
                raise typed.wrong(f"no pool {name!r}", ", ".join(_POOLS))
            pool, size = _POOLS.get(name, name.lower().replace("_", "-")), self._bytes(typed, size)
            if pool.startswith("dla-") and self.target == RTX:
                missing = f"TensorRT-RTX has no DLA, and no pool {pool}"
            elif pool == "workspace":
                self.intent.tensorrt["workspace"] = size
            else:
                self.intent.tensorrt.setdefault("memory_pools", []).append(f"{pool}={size}")
        return ("missing", missing) if missing else None

    def _tactics(self, typed: Typed) -> Said:
        """Names to use; of trtexec names to add and to leave out, each with its sign."""
        texts = typed.value.split(",") if self.is_trtexec else [f"+{text}" for text in typed.values]
        used = list(_OWN) if self.is_trtexec else []
        external = []
        for text in texts:
            sign, name = text[:1], text[1:].lower().replace("_", "-")
            if sign not in ("+", "-") or name not in (*_EXTERNAL, *_OWN):
                if self.is_trtexec:
                    raise typed.wrong(f"{text!r}", "it writes +NAME or -NAME")
                raise typed.wrong(f"{text[1:]!r}", f"it has {', '.join((*_OWN, *_EXTERNAL))}")
            if name in _EXTERNAL:
                external += [name] if sign == "+" else []
            else:
                used = [tactic for tactic in used if tactic != name] + ([name] if sign == "+" else [])
        unchanged = self.is_trtexec and len(used) == len(_OWN)
        if not unchanged:
            self._set(typed, used or ["none"])
        if external:
            listed = ", ".join(external)
            return "missing", f"TensorRT 11 and TensorRT-RTX have no tactics of {listed}; leave it out"
        if unchanged:
            return "unneeded", "TensorRT 10 has the other libraries off by default, and 11 has none"
        return None

    def _strip_all(self, typed: Typed) -> None:
        self.intent.tensorrt |= {"strip_weights": True, "refit": True}

    def _sparsity(self, typed: Typed) -> Said:
        if typed.value not in ("enable", "force"):
            raise typed.wrong(f"{typed.value!r}; disable, enable or force is required")
        self._set(typed, True)
        if typed.value == "enable":
            return None
        return "missing", (
            "force overwrote the weights with a sparse pattern, for timing alone; sparse kernels are "
            "allowed, prune the weights to get them"
        )

    def _stream_weights(self, typed: Typed) -> None:
        self.intent.tensorrt.setdefault("weight_streaming", "all")  # all stay on the GPU without a budget

    def _weight_budget(self, typed: Typed) -> Said:
        """A share, bytes, -2 for all weights, or -1 for TensorRT's choice."""
        text = typed.value
        if text == "-1":
            return "missing", (
                "TensorRT's Python binding has 32 bits for its own choice (pyCore.cpp of 10.16:1602); "
                "give a share such as 50% as `weight_streaming`"
            )
        if not text.endswith("%"):
            size = "all" if text == "-2" else read_size(dashed(typed.flag.name), text.removesuffix("B"))
            text = "0%" if size == "0" else size
        self._set(typed, text)
        return None

    def _plugin(self, typed: Typed) -> None:
        self.intent.tensorrt.setdefault("plugins", []).extend(filter(None, typed.values))

    def _gpus(self, typed: Typed) -> Said:
        if self.target != RTX:
            return "missing", "TensorRT builds for the GPU in the machine; `target` tensorrt-rtx for others"
        self.intent.gpus = [f"sm{value.replace('.', '')}" for value in typed.values]
        return None

    def _script(self, typed: Typed) -> None:
        script, _, function = typed.value.rpartition(":")
        named = bool(script) and function.isidentifier()
        self.intent.data = typed.value if named else f"{typed.value}:load_data"

    def _duration(self, typed: Typed) -> Said:
        if typed.number <= 0:
            return "unneeded", "`bench` runs until its intervals are narrow"
        self._set(typed, float(typed.number))
        return None

    def _iterations(self, typed: Typed) -> None:
        self._comparison += [dashed("samples"), str(typed.number)]

    def _tolerance(self, typed: Typed) -> None:
        name = dashed("snr") if typed.flag.name.startswith("snr") else dashed(typed.flag.name)
        for value in typed.values or (typed.value,):
            self._comparison += [name, value.lstrip(":")]

    def _outputs(self, typed: Typed) -> Said:
        if list(typed.values) not in (["mark", "all"], ["*"]):
            return "missing", "single tensors are not marked; `qcompile diff` with `layers` compares all"
        if dashed("layers") not in self._comparison:
            self._comparison.append(dashed("layers"))
        return "tensor by tensor, few at a time"
