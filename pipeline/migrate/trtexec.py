"""Translate a command line of trtexec.

What each option does is read from samples/common of TensorRT's repository: sampleOptions.cpp parses it,
sampleEngines.cpp builds with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

from .flags import Fate, dashed, find_flag
from .intent import Intent, Kind, Profile
from .translator import EXTERNAL, OWN, Translator, Typed, unread
from .values import POOLS, dtype_of, trtexec_pairs, trtexec_shapes, trtexec_size, wrong

_MEASURED_PERCENTILES = {"50", "90", "99"}
_SHOWN = ("bench", "bench.max_time_s", "bench.streams", "bench.cuda_graph", "bench.layer_times")
_PLACEHOLDER = "placeholder ranges, 2 for inputs and 4 for outputs of layers (setTensorDynamicRange)"
_RANDOM = (
    "one batch of random numbers from -1 to 1, as its calibration cache does not exist (RndInt8Calibrator)"
)


def translate(words: Sequence[str], target: str) -> Intent:
    """Return what a command line of trtexec asks for.

    Args:
        words: What follows "trtexec".
        target: "tensorrt" or "tensorrt-rtx".

    Raises:
        InvalidOption: If an option is unknown, or its value cannot be read.
    """
    translator = _Trtexec(target)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("-"):
            dash = "a long dash of a web page stands for two; " if word[:1] in "\u2013\u2014" else ""
            raise unread(word, "trtexec", f"{dash}it writes {dashed('NAME')}=VALUE, with no space")
        flag = find_flag("trtexec", name.lstrip("-"))
        translator.take(Typed(flag, word, (value,) if equals else ()))
    return translator.finish()


class _Trtexec(Translator):
    """One command line of trtexec."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.intent.tf32 = True  # trtexec leaves the builder's flag on
        self._numbered: dict[int, Profile] = {}
        self._plain: Profile = {}
        self._filling = self._plain
        self._skips = self._saves = False

    def finish(self) -> Intent:
        """Return the intent, once every option is taken."""
        intent = self.intent
        if self._numbered and self._plain:
            raise wrong(dashed("profile"), "shapes stand outside of a profile too", "give them after it")
        numbered = [self._numbered[index] for index in sorted(self._numbered)]
        intent.profiles = numbered or ([self._plain] if self._plain else [])
        if intent.runs_at and not intent.profiles:  # AllOptions::parse: min, opt and max are all the same
            intent.profiles = [{"opt": intent.runs_at}]
            intent.settle("shapes", "kept", "artifact.opt_shapes", "the engine takes no others")
        measuring = any(one.to in _SHOWN and one.fate == "kept" for one in intent.outcomes)
        intent.measures = not self._skips and (measuring or not self._saves)
        intent.random = _RANDOM if intent.cache else _PLACEHOLDER
        return intent

    def model(self, typed: Typed) -> None:
        self.intent.model = typed.value

    def engine(self, typed: Typed) -> None:
        self.intent.engine, self._saves = typed.value, True

    def best(self, typed: Typed) -> None:
        self.intent.best = True

    def no_tf32(self, typed: Typed) -> None:
        self.intent.tf32 = False

    def strong(self, typed: Typed) -> None:
        self.intent.strong = True

    def cache(self, typed: Typed) -> None:
        self.intent.cache = typed.value

    def layers(self, typed: Typed) -> None:
        pairs = trtexec_pairs(typed.flag.typed, typed.value)
        self.intent.layers += [(name.replace("'", ""), dtype_of(value)) for name, value in pairs]

    def output_types(self, typed: Typed) -> str:
        pairs = trtexec_pairs(typed.flag.typed, typed.value)
        given = {name for name, _ in self.intent.layers}
        for name, value in ((name.replace("'", ""), value) for name, value in pairs):
            if name not in given:
                self.intent.layers.append((name, dtype_of(value.partition("+")[0])))
        return "a node computes in the type that it returns"

    def profile(self, typed: Typed) -> None:
        self._filling = self._numbered.setdefault(typed.number, {})

    def shapes(self, typed: Typed) -> None:
        kinds: dict[str, Kind] = {"minShapes": "min", "optShapes": "opt", "maxShapes": "max"}
        kind = kinds[typed.flag.name]
        self._filling[kind] = trtexec_shapes(typed.flag.typed, typed.value)

    def inference_shapes(self, typed: Typed) -> None:
        self.intent.runs_at = trtexec_shapes(typed.flag.typed, typed.value)

    def formats(self, typed: Typed) -> None:
        side: Literal["inputs", "outputs"] = "inputs" if typed.flag.name.startswith("input") else "outputs"
        self.intent.ranks[side] = [self._format(typed, part) for part in typed.value.split(",")]

    def _format(self, typed: Typed, text: str) -> tuple[str, str]:
        dtype, colon, formats = text.rpartition(":")  # from 11.1 on the type is the file's
        first = formats.split("+")[0].lower()
        return dtype_of(dtype) if colon else "", "linear" if first == "chw" else first

    def workspace(self, typed: Typed) -> None:
        self.intent.tensorrt["workspace"] = trtexec_size(typed.flag.typed, typed.value)

    def pools(self, typed: Typed) -> tuple[Fate, str] | None:
        missing = ""
        for name, size in trtexec_pairs(typed.flag.typed, typed.value):
            if name not in ("workspace", *POOLS):
                raise wrong(typed.flag.typed, f"no pool {name!r}", f"workspace, {', '.join(POOLS)}")
            missing = self.pool(typed, POOLS.get(name, name), trtexec_size(typed.flag.typed, size)) or missing
        return ("missing", missing) if missing else None

    def heuristic(self, typed: Typed) -> str:
        self.intent.tensorrt["optimization_level"] = 2
        return "level 2 superseded it (NvInfer.h of 8.6)"

    def timing_cache(self, typed: Typed) -> None:
        self.intent.tensorrt["timing_cache"] = typed.value

    def no_timing_cache(self, typed: Typed) -> None:
        self.intent.tensorrt["timing_cache"] = "off"

    def tactics(self, typed: Typed) -> tuple[Fate, str] | None:
        used = list(OWN)
        for text in typed.value.split(","):
            sign, name = text[:1], text[1:].lower().replace("_", "-")
            if sign not in ("+", "-") or name not in (*EXTERNAL, *OWN):
                raise wrong(typed.flag.typed, f"{text!r}", "it writes +NAME or -NAME")
            if name in EXTERNAL and sign == "+":
                return "missing", f"TensorRT 11 and TensorRT-RTX have no tactics of {name}; leave it out"
            if name in OWN and sign == "-":
                used.remove(name)
        if len(used) == len(OWN):
            return "unneeded", "TensorRT 10 has the other libraries off by default, and 11 has none"
        self.intent.tensorrt["tactic_sources"] = used or ["none"]
        return None

    def l2_limit(self, typed: Typed) -> None:
        self.intent.tensorrt["tiling_l2_limit"] = str(typed.number)

    def route(self, typed: Typed) -> None:
        self.intent.tensorrt["build_route"] = typed.value

    def strip_all(self, typed: Typed) -> None:
        self.intent.tensorrt |= {"strip_weights": True, "refit": True}

    def sparsity(self, typed: Typed) -> tuple[Fate, str] | None:
        if typed.value not in ("enable", "force"):
            raise wrong(typed.flag.typed, f"{typed.value!r}; disable, enable or force is required")
        self.intent.tensorrt["sparse_weights"] = True
        if typed.value == "enable":
            return None
        return "missing", (
            "force overwrote the weights with a sparse pattern, for timing alone; sparse kernels are "
            "allowed, prune the weights to get them"
        )

    def skip(self, typed: Typed) -> str:
        self._skips = True
        return "the recipe has no [bench]"

    def duration(self, typed: Typed) -> tuple[Fate, str] | None:
        if typed.number <= 0:
            return "unneeded", "`bench` runs until its intervals are narrow"
        self.intent.bench["max_time_s"] = float(typed.number)
        return None

    def percentiles(self, typed: Typed) -> tuple[Fate, str] | None:
        others = set(typed.value.split(",")) - _MEASURED_PERCENTILES
        if others:
            return "missing", f"percentile {', '.join(sorted(others))}: `bench` reports 50, 90 and 99"
        return None

    def transfers(self, typed: Typed) -> str:
        return "`bench` reports both: a call with its copies, and the kernels alone"

    def loading(self, typed: Typed) -> str:
        return "`bench` reports the time to load an artifact"

    def streams(self, typed: Typed) -> None:
        self.intent.bench["streams"] = [typed.number]

    def cuda_graph(self, typed: Typed) -> None:
        self.intent.bench["cuda_graph"] = typed.flag.name == "useCudaGraph"

    def layer_times(self, typed: Typed) -> None:
        self.intent.bench["layer_times"] = True

    def tolerance(self, typed: Typed) -> None:
        self.intent.compares = [*(self.intent.compares or ()), typed.flag.typed, typed.value]

    HANDLERS: ClassVar[Mapping[str, Callable[..., tuple[Fate, str] | str | None]]] = {
        "onnx": model, "saveEngine": engine, "best": best, "noTF32": no_tf32, "stronglyTyped": strong,
        **dict.fromkeys(("fp16", "bf16", "int8", "fp8", "int4"), Translator.permit), "calib": cache,
        "precisionConstraints": Translator.constrain, "layerPrecisions": layers,
        "layerOutputTypes": output_types,
        **dict.fromkeys(("minShapes", "optShapes", "maxShapes"), shapes), "shapes": inference_shapes,
        "profile": profile, "inputIOFormats": formats, "outputIOFormats": formats, "workspace": workspace,
        "memPoolSize": pools, "builderOptimizationLevel": Translator.count, "heuristic": heuristic,
        "timingCacheFile": timing_cache, "noBuilderCache": no_timing_cache, "tacticSources": tactics,
        **dict.fromkeys(
            (
                "refit", "stripWeights", "weightless", "versionCompatible", "vc", "excludeLeanRuntime",
                "allowGPUFallback",
            ),
            Translator.switch,
        ),
        "stripAllWeights": strip_all, "hardwareCompatibilityLevel": Translator.compatible,
        "sparsity": sparsity,
        "allowWeightStreaming": Translator.stream_weights,
        "weightStreamingBudget": Translator.weight_budget, "allocationStrategy": Translator.allocate,
        "tilingOptimizationLevel": Translator.count, "l2LimitForTiling": l2_limit, "setBuildRoute": route,
        "maxAuxStreams": Translator.count, "useDLACore": Translator.count,
        **dict.fromkeys(("plugins", "staticPlugins", "dynamicPlugins"), Translator.plugin),
        "device": Translator.count,
        "buildOnly": skip, "skipInference": skip, "duration": duration, "percentile": percentiles,
        "timeDeserialize": loading,
        "noDataTransfers": transfers, "includeDataTransfers": transfers, "streams": streams,
        "infStreams": streams, "useCudaGraph": cuda_graph, "noCudaGraph": cuda_graph,
        "dumpProfile": layer_times, "exportProfile": layer_times, "atol": tolerance, "rtol": tolerance,
    }  # fmt: skip
