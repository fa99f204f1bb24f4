"""Translate a command line of `polygraphy run` or `polygraphy convert`.

What each option does is read from tools/Polygraphy/polygraphy of TensorRT's repository: tools/args declares
it, backend/trt/config.py obeys it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from ...errors import InvalidOption
from .flags import RTX, Fate, Flag, dashed, find_flag
from .intent import Intent, Kind
from .translator import EXTERNAL, OWN, Translator, Typed, unread
from .values import dtype_of, polygraphy_pairs, polygraphy_shapes, polygraphy_size, wrong

_TOOLS = ("run", "convert")
_INSTEAD = {
    "inspect": "`qcompile inspect` looks at files",
    "check": "`qcompile export` checks an ONNX file",
    "surgeon": "`qcompile simplify` folds and fuses nodes",
    "debug": "`qcompile diff` with `layers` finds the first tensor that diverges",
}
_TILING = ("none", "fast", "moderate", "full")
"""Levels of `tiling_level`, by the names of TensorRT's TilingOptimizationLevel."""
_METHODS = {"IInt8EntropyCalibrator2": "entropy", "IInt8EntropyCalibrator": "entropy",
            "IInt8MinMaxCalibrator": "minmax"}  # fmt: skip
_SCRIPT = "load_data"
_RANDOM = "random numbers from 0 to 1 (DataLoader)"


def translate(words: Sequence[str], target: str) -> Intent:
    """Return what a command line of Polygraphy asks for.

    Args:
        words: What follows "polygraphy".
        target: "tensorrt" or "tensorrt-rtx".

    Raises:
        InvalidOption: If it is another tool of Polygraphy, an option is unknown, or a value cannot be read.
    """
    tool = next((word for word in words if not word.startswith("-")), "")
    if tool not in _TOOLS:
        hint = _INSTEAD.get(tool, f"{' and '.join(_TOOLS)} are migrated")
        raise InvalidOption(f"polygraphy {tool or 'alone'}: builds no engine to migrate", hint=hint)
    rest = list(words)
    rest.remove(tool)
    translator = _Polygraphy(target, tool)
    for typed in _read(rest):
        if isinstance(typed, str):
            translator.positional(typed)
        else:
            translator.take(typed)
    return translator.finish()


def _read(words: Sequence[str]) -> Iterator[Typed | str]:
    """Options with their values, and other words, as argparse reads them."""
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _is_option(word):
            yield word
            continue
        flag, inline = _flag(word)
        values = [inline] if inline is not None else []
        many = {"1": 1, "?": 1, "+": len(words), "*": len(words)}.get(flag.takes, 0)
        while inline is None and len(values) < many and index < len(words) and not _is_option(words[index]):
            values.append(words[index])
            index += 1
        if flag.takes in ("1", "+") and not values:
            raise wrong(word, "a value is required")
        yield Typed(flag, " ".join([word, *values] if inline is None else [word]), tuple(values))


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?([eE][-+]?\d+)?", word) and word != "-"


def _flag(word: str) -> tuple[Flag, str | None]:
    if re.fullmatch(r"-(v+|q+)", word):
        return find_flag("polygraphy", word[1]), None
    name, equals, value = word.partition("=")
    flag = find_flag("polygraphy", name.lstrip("-"), prefixes=name.startswith("--"))
    return flag, value if equals else None


class _Polygraphy(Translator):
    """One command line of Polygraphy."""

    def __init__(self, target: str, tool: str) -> None:
        super().__init__(target)
        self._converts = tool == "convert"
        self._runs_tensorrt = self._converts
        self._runs_onnx = False
        self._function = ""
        self._turns: dict[Kind, int] = {"min": 0, "opt": 0, "max": 0}
        self._comparison: list[str] = []
        self.intent.random = _RANDOM

    def positional(self, word: str) -> None:
        """The model is the one word that belongs to no option."""
        if self.intent.model:
            raise unread(word, "polygraphy", f"the model is {self.intent.model}")
        self.intent.model = word

    def finish(self) -> Intent:
        """Return the intent, once every option is taken."""
        intent = self.intent
        if not self._runs_tensorrt:
            raise InvalidOption("polygraphy run: runs no TensorRT", hint="there is no engine to migrate")
        if intent.data and self._function:
            intent.data = f"{intent.data.rpartition(':')[0]}:{self._function}"
        if intent.runs_at and not intent.profiles:  # as parse_profile_shapes does
            intent.profiles = [{"opt": intent.runs_at}]
            intent.settle("input-shapes", "kept", "artifact.opt_shapes", "the engine takes no others")
        elif intent.runs_at:
            intent.settle("input-shapes", "unneeded", note="the comparison runs at shapes of the profile")
        if self._runs_onnx:
            intent.compares = self._comparison
        elif self._comparison:
            intent.revise("qcompile diff", "unneeded", "one runtime alone is run: nothing is compared")
        return intent

    def tensorrt(self, typed: Typed) -> None:
        self._runs_tensorrt = True

    def onnxruntime(self, typed: Typed) -> None:
        self._runs_onnx = True

    def model_type(self, typed: Typed) -> tuple[Fate, str] | None:
        if typed.value != "onnx":
            return "missing", f"{typed.value}: a recipe starts from the ONNX file; export the model"
        return None

    def converts_to(self, typed: Typed) -> tuple[Fate, str] | None:
        if typed.value != "trt":
            return "missing", f"{typed.value}: an engine is built; `qcompile export` writes ONNX files"
        return None

    def engine(self, typed: Typed) -> None:
        self.intent.engine = typed.value

    def shapes(self, typed: Typed) -> None:
        kinds: dict[str, Kind] = {"trt-min-shapes": "min", "trt-opt-shapes": "opt", "trt-max-shapes": "max"}
        kind = kinds[typed.flag.name]
        turn = self._turns[kind]
        self._turns[kind] += 1
        while len(self.intent.profiles) <= turn:
            self.intent.profiles.append({})
        self.intent.profiles[turn][kind] = polygraphy_shapes(typed.flag.typed, typed.values)

    def inference_shapes(self, typed: Typed) -> None:
        self.intent.runs_at = polygraphy_shapes(typed.flag.typed, typed.values)

    def tf32(self, typed: Typed) -> None:
        self.intent.tf32 = True

    def strong(self, typed: Typed) -> None:
        self.intent.strong = True

    def to_fp16(self, typed: Typed) -> None:
        self.intent.precisions.add("fp16")

    def cache(self, typed: Typed) -> None:
        self.intent.cache = typed.value

    def calibrator(self, typed: Typed) -> tuple[Fate, str] | None:
        method = _METHODS.get(typed.value)
        if method is None:
            return (
                "missing",
                f"{typed.value}: `calibrate.method` has {', '.join({*_METHODS.values()})}",
            )
        self.intent.method = method
        return None

    def strict(self, typed: Typed) -> None:
        self.intent.constraints = "obey"

    def layers(self, typed: Typed) -> None:
        pairs = polygraphy_pairs(typed.flag.typed, typed.values)
        self.intent.layers += [(name, dtype_of(value)) for name, value in pairs]

    def dtypes(self, typed: Typed) -> None:
        for name, value in polygraphy_pairs(typed.flag.typed, typed.values):
            self._format(name or "*", dtype=dtype_of(value))

    def formats(self, typed: Typed) -> None:
        for name, value in polygraphy_pairs(typed.flag.typed, typed.values):
            self._format(name or "*", memory=value.strip("[]").split(",")[0].lower())

    def _format(self, name: str, *, dtype: str = "", memory: str = "") -> None:
        before = self.intent.formats.get(name, ("", ""))
        self.intent.formats[name] = dtype or before[0], memory or before[1]

    def workspace(self, typed: Typed) -> None:
        self.intent.tensorrt["workspace"] = polygraphy_size(typed.flag.typed, typed.value)

    def pools(self, typed: Typed) -> tuple[Fate, str] | None:
        missing = ""
        for name, size in polygraphy_pairs(typed.flag.typed, typed.values):
            size = polygraphy_size(typed.flag.typed, size)
            missing = self.pool(typed, name.lower().replace("_", "-"), size) or missing
        return ("missing", missing) if missing else None

    def timing_cache(self, typed: Typed) -> None:
        self.intent.tensorrt["timing_cache"] = typed.value

    def tactics(self, typed: Typed) -> tuple[Fate, str] | None:
        names = [value.lower().replace("_", "-") for value in typed.values]
        unknown = [name for name in names if name not in (*OWN, *EXTERNAL)]
        if unknown:
            raise wrong(typed.flag.typed, f"{unknown[0]!r}", f"it has {', '.join((*OWN, *EXTERNAL))}")
        self.intent.tensorrt["tactic_sources"] = [name for name in names if name in OWN] or ["none"]
        external = [name for name in names if name in EXTERNAL]
        if external:
            return "missing", f"TensorRT 11 and TensorRT-RTX have no tactics of {', '.join(external)}"
        return None

    def tiling(self, typed: Typed) -> None:
        if typed.value.lower() not in _TILING:
            raise wrong(typed.flag.typed, f"{typed.value!r}; {', '.join(_TILING)} is required")
        self.intent.tensorrt["tiling_level"] = _TILING.index(typed.value.lower())

    def dla(self, typed: Typed) -> None:
        self.intent.tensorrt["dla_core"] = 0

    def gpus(self, typed: Typed) -> tuple[Fate, str] | None:
        if self.target != RTX:
            return "missing", "TensorRT builds for the GPU in the machine; `target` tensorrt-rtx for others"
        self.intent.gpus = [f"sm{value.replace('.', '')}" for value in typed.values]
        return None

    def data(self, typed: Typed) -> None:
        script, _, function = typed.value.rpartition(":")
        named = bool(script) and function.isidentifier()
        self.intent.data = typed.value if named else f"{typed.value}:{_SCRIPT}"

    def function(self, typed: Typed) -> None:
        self._function = typed.value

    def iterations(self, typed: Typed) -> None:
        self._comparison += [dashed("samples"), str(typed.number)]

    def tolerance(self, typed: Typed) -> None:
        name = dashed("snr") if typed.flag.name.startswith("snr") else typed.flag.typed
        for value in typed.values:
            self._comparison += [name, value.lstrip(":")]

    def comparison(self, typed: Typed) -> tuple[Fate, str] | None:
        others = [value for value in typed.values if value != "simple"]
        if others:
            return (
                "missing",
                f"{', '.join(others)}: `qcompile diff` judges by tolerance, `snr` and `rules`",
            )
        return None

    def outputs(self, typed: Typed) -> tuple[Fate, str] | str:
        if list(typed.values) not in (["mark", "all"], ["*"]):
            return "missing", "single tensors are not marked; `qcompile diff` with `layers` compares all"
        if dashed("layers") not in self._comparison:
            self._comparison.append(dashed("layers"))
        return "tensor by tensor, few at a time"

    def providers(self, typed: Typed) -> tuple[Fate, str] | None:
        if [value.lower().removesuffix("executionprovider") for value in typed.values] == ["cpu"]:
            return None
        return "missing", "`qcompile diff` runs ONNX Runtime on the CPU; leave it out"

    HANDLERS: ClassVar[Mapping[str, Callable[..., tuple[Fate, str] | str | None]]] = {
        "trt": tensorrt, "onnxrt": onnxruntime, "model-type": model_type, "convert-to": converts_to,
        "output": engine, "save-engine": engine, "input-shapes": inference_shapes,
        **dict.fromkeys(("trt-min-shapes", "trt-opt-shapes", "trt-max-shapes"), shapes), "tf32": tf32,
        **dict.fromkeys(("fp16", "bf16", "fp8", "int8"), Translator.permit), "strongly-typed": strong,
        "fp-to-fp16": to_fp16, "calibration-cache": cache, "calib-base-cls": calibrator,
        "precision-constraints": Translator.constrain, "strict-types": strict, "layer-precisions": layers,
        **dict.fromkeys(("tensor-dtypes", "all-tensor-dtypes"), dtypes),
        **dict.fromkeys(("tensor-formats", "all-tensor-formats"), formats), "workspace": workspace,
        "pool-limit": pools, "builder-optimization-level": Translator.count,
        **dict.fromkeys(("timing-cache", "load-timing-cache", "save-timing-cache"), timing_cache),
        "tactic-sources": tactics,
        **dict.fromkeys(
            (
                "refittable", "strip-plan", "version-compatible", "exclude-lean-runtime", "sparse-weights",
                "allow-gpu-fallback",
            ),
            Translator.switch,
        ),
        "hardware-compatibility-level": Translator.compatible, "compute-capabilities": gpus,
        "weight-streaming": Translator.stream_weights, "weight-streaming-budget": Translator.weight_budget,
        "allocation-strategy": Translator.allocate, "tiling-optimization-level": tiling,
        "max-aux-streams": Translator.count, "plugins": Translator.plugin, "use-dla": dla,
        "data-loader-script": data, "data-loader-func-name": function, "iterations": iterations,
        **dict.fromkeys(("atol", "rtol", "snr-threshold"), tolerance), "compare": comparison,
        **dict.fromkeys(("trt-outputs", "onnx-outputs"), outputs), "providers": providers,
    }  # fmt: skip
