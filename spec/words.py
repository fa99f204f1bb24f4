"""Values that options share: precisions, targets, methods and metrics, with all lists of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

from msgspec import Meta

from .engines import rows
from .option import COMMA, option

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4", "nvfp4", "mxfp8"]
"""Precision of an artifact."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

TensorCorePrecision = Literal["tf32", "fp16", "bf16", "int8", "fp8", "mxfp8", "int4", "nvfp4"]
"""Precisions that Tensor Cores multiply."""

BuildPrecision = Literal[Precision, "best"]

GraphPrecision = Literal["int8", "fp8", "int4", "fp16", "bf16"]
"""Precisions to quantize or convert a float graph to."""

BlockFormat = Literal["nvfp4", "mxfp8"]
"""Formats with a scale per block of values; scales of activations are computed at run time."""
BLOCK_FORMATS: tuple[BlockFormat, ...] = get_args(BlockFormat)

_FOR_TENSORRT = "only TensorRT supports it, from {}: choose `target` tensorrt-rtx, or `precision` int8"
WAY_OUT = {"fp8": _FOR_TENSORRT.format("sm89 on")} | dict.fromkeys(
    BLOCK_FORMATS, _FOR_TENSORRT.format("sm100 on (TensorRT-RTX: sm120)")
)
"""Precision to the hint for targets without it."""

CALIBRATED = ("int8", "fp8")
"""Precisions that need the ranges of activations in mode static."""

HALVES: Mapping[str, Literal["float16", "bfloat16"]] = {"fp16": "float16", "bf16": "bfloat16"}
"""Precision to the name of its type."""

FloatPrecision = Literal["fp32", "fp16", "bf16"]
FLOAT_PRECISIONS: tuple[FloatPrecision, ...] = get_args(FloatPrecision)

LAYER_PRECISIONS = (*FLOAT_PRECISIONS, "int8")
LayerPrecision = Annotated[str, Meta(pattern=rf"^.+=({'|'.join(LAYER_PRECISIONS)})$")]

TARGETS = tuple(row.name for row in rows().values() if row.is_target)
"""Targets to build artifacts for."""
GRAPH_TARGETS = tuple(row.name for row in rows().values() if row.placed_for == row.name)
"""Targets of the Q/DQ placement; "tensorrt" includes TensorRT-RTX."""
CPU_TARGETS = tuple(name for name in GRAPH_TARGETS if rows()[name].on_processor)
TENSORRT_TARGETS = tuple(sorted(row.name for row in rows().values() if row.family == "tensorrt"))
if TYPE_CHECKING:
    Target: TypeAlias = str
    GraphTarget: TypeAlias = str
else:  # the values that a spec and its schema accept
    Target, GraphTarget = Literal[TARGETS], Literal[GRAPH_TARGETS]

Mode = Literal["static", "dynamic", "weights"]

Isa = Literal["auto", "avx2", "avx-vnni", "avx512-vnni", "amx", "neon", "neon-dotprod", "i8mm"]
"""Instruction set for the multiplication of 8-bit integers; "auto" is this processor's."""
ISAS: tuple[Isa, ...] = get_args(Isa)
ARM_ISAS: tuple[Isa, ...] = ("neon", "neon-dotprod", "i8mm")

WeightType = Literal["int8", "uint8"]

METRICS = (
    "top1", "top5", "f1", "miou", "map", "wer", "cer", "ndcg", "neighbours", "spearman", "perplexity", "kl",
    "cosine", "mse",
)  # fmt: skip
AUTO = "auto"
"""The metric that follows from the model's task, the labels and the outputs."""
F1_KINDS = ("macro", "micro", "weighted", "binary", "entities")
MAP_KINDS = ("50", "75", "small", "medium", "large")
PERPLEXITY_KINDS = ("causal", "masked")
METRIC_PARAMETERS: Mapping[str, tuple[str, str]] = {
    "f1": ("AVERAGE", "|".join(F1_KINDS)),
    "map": ("50", "|".join(MAP_KINDS)),
    "ndcg": ("K", r"[1-9]\d*"),
    "neighbours": ("K", r"[1-9]\d*"),
    "perplexity": ("masked", "|".join(PERPLEXITY_KINDS)),
}
"""Metric to its parameter after the colon: as shown in help, and as a pattern."""


def is_user_metric(text: str) -> bool:
    """Return whether the spelling of a metric names a user's function."""
    name, colon, _ = text.partition(":")
    return bool(colon) and name not in METRIC_PARAMETERS


MethodName = Literal["minmax", "percentile", "entropy", "mse", "auto"]
METHODS: tuple[MethodName, ...] = get_args(MethodName)
_SPELLED = [f"{name}[:NUMBER]" if name == "percentile" else name for name in METHODS]
METHOD = f"{', '.join(_SPELLED[:-1])} or {_SPELLED[-1]}"
METHOD_PATTERN = rf"^({'|'.join(METHODS)}|percentile:\d*\.?\d+)$"

TorchMode = Literal["trace", "script", "freeze", "compile", "half", "autocast"]
TORCH_MODES: tuple[TorchMode, ...] = get_args(TorchMode)
"""PyTorch's preparation of a module before it runs: TorchScript of three kinds, code of `torch.compile`,
float16 weights (`.half()`), or `torch.autocast`: bfloat16 on a processor, float16 on a GPU."""
NamedModel = Annotated[str, Meta(pattern=r"^[^=]+=.+$")]
CUDA_GRAPH = "cuda-graph"
"""Mode of a TensorRT engine with captured and replayed inferences."""
_METRICS_SPELLED = [
    f"{name}[:{METRIC_PARAMETERS[name][0]}]" if name in METRIC_PARAMETERS else name for name in METRICS
]
METRIC = f"{AUTO}, {', '.join(_METRICS_SPELLED)} or file.py:function"
_PARAMETERS = "|".join(f"{name}:({pattern})" for name, (_, pattern) in METRIC_PARAMETERS.items())
METRIC_PATTERN = (
    rf"^({AUTO}|{'|'.join(METRICS)}|{_PARAMETERS}|(?!({'|'.join(METRIC_PARAMETERS)}):).+:[^\W\d]\w*)$"
)

Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
Metric = Annotated[str, Meta(pattern=METRIC_PATTERN)]

Texts = tuple[str, ...]
Counts = Annotated[tuple[Count, ...], option("N,N,...", split=COMMA)]
File = Annotated[Path | None, option("FILE")]
Gpus = Annotated[Texts, option("--gpu SM", split=COMMA)]
InputShapes = Annotated[Texts, option("--input -i NAME:SHAPE[:DTYPE]")]
MaxTime = Annotated[float, option("--max-time SECONDS", gt=0)]
MethodChoice = Annotated[str, option(METHOD, pattern=f"^$|{METHOD_PATTERN}")]
Patterns = Annotated[Texts, option("PATTERN", split=COMMA)]
PlacedFile = Annotated[Path | None, option("FILE", place=True)]
PlacedSamples = Annotated[str | None, option("DATA", place=True)]
Points = Annotated[Annotated[float, Meta(ge=0)] | None, option("POINTS")]
Samples = Annotated[str | None, option("DATA")]
TargetNames = Annotated[Texts, option("--target TARGET", split=COMMA)]
"""Types that several options share, with their spelling; each option adds a sentence."""

CLUSTER = "cluster"
"""Value of `gpus` for every kind of GPU in the cluster."""
BASELINE, ORIGINAL = "pytorch", "original"
"""Names of the model's row in results: run by PyTorch, or by another engine."""
