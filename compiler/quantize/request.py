"""The request of `quantize`, and the checks of its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...calibration import Ranges
from ...data.batches import Data
from ...errors import InvalidOption
from ...progress import Progress, silent
from .int8.placement import TARGETS, Target
from .int8.static import PROCESSORS, Processor

if TYPE_CHECKING:
    import onnx

Precision = Literal["int8", "fp8", "int4", "fp16", "bf16"]
Mode = Literal["static", "dynamic", "weights"]
Half = Literal["fp16", "bf16"]
MODES: tuple[Mode, ...] = ("static", "dynamic", "weights")
PRECISIONS: tuple[Precision, ...] = ("int8", "fp8", "int4", "fp16", "bf16")
HALVES: Mapping[str, Literal["float16", "bfloat16"]] = {"fp16": "float16", "bf16": "bfloat16"}
LAYER_PRECISIONS = ("fp32", "fp16", "bf16", "int8")


@dataclass(frozen=True)
class WeightOptions:
    """How weights alone are quantized.

    Attributes:
        block_size: Weights of one input range that share a scale; 0 for one scale per output channel.
        rounding: "rtn" (to nearest) or "gptq" (against the samples).
        form: "nbits", operators of ONNX Runtime; "qdq", ONNX's own; "", what the target takes.
    """

    block_size: int = 64
    rounding: str = "rtn"
    form: str = ""


@dataclass(frozen=True)
class QuantizeRequest:
    """One quantization.

    Attributes:
        path: The float ONNX file.
        model: Its content.
        digest: Its digest.
        target, precision, mode: As in `quantize`.
        processor: What an artifact for ONNX Runtime will run on.
        ranges: Observed ranges, for static INT8, and for values beyond float16.
        method: Another method than the ranges file's own.
        weight_type: Of dynamic INT8: "int8" or "uint8".
        in_float: Names of nodes that the runtime was found to compute in float, each with the reason: they
            are not quantized.
        balance: Whether static INT8 is tried on the balanced model too, where there is data.
        allow_loss: Whether a result is kept that loses more on the data than `diff` lets pass.
        search: Whether static INT8 is quantized in several ways where there is data, and the best one kept.
        max_damage: Static INT8 takes layers back to float until the outputs' signal-to-noise ratio on the
            data is at least this, in dB.
        exclude, only: Names, globs or operator types of nodes.
        layers: Name, glob or operator type to "fp32", "fp16", "bf16" or "int8"; the last that names a node
            decides.
        rest: What is not quantized becomes: "fp32", "fp16" or "bf16".
        weights: For mode "weights".
        correct_bias: Whether static INT8 takes its mean error off the biases, where there is data.
        data: Spelling of samples.
        progress: Told of every step.
    """

    path: Path
    model: onnx.ModelProto
    digest: str
    target: Target = "onnxruntime"
    precision: Precision = "int8"
    mode: Mode = "static"
    processor: Processor = "vnni"
    ranges: Ranges | None = None
    method: str | None = None
    exclude: Sequence[str] = ()
    only: Sequence[str] = ()
    layers: Mapping[str, str] = field(default_factory=dict)
    rest: str = "fp32"
    weights: WeightOptions = field(default_factory=WeightOptions)
    correct_bias: bool = True
    data: str | None = None
    progress: Progress = silent
    weight_type: Literal["int8", "uint8"] = "int8"
    in_float: Mapping[str, str] = field(default_factory=dict)
    balance: bool = True
    max_damage: float | None = None
    allow_loss: bool = False
    search: bool = True

    def samples(self, limit: int) -> Data:
        """The first samples of the data.

        Raises:
            InvalidOption: If no data was given.
        """
        from ...model.onnx_file import model_io

        if self.data is None:
            raise InvalidOption("this needs samples", hint="give `data`", option="data")
        return Data(self.data, model_io(self.model).inputs, batch_size=1, limit=limit)


@dataclass(frozen=True)
class Outcome:
    """What a mode made: `write` puts the file at a path."""

    write: Callable[[Path], object]
    proof: Mapping[str, object]
    warnings: Sequence[str] = ()


def check_options(
    *, precision: str, mode: str, target: str, processor: str, rest: str, layers: Mapping[str, str]
) -> None:
    """Refuse what is misspelled or contradicts itself.

    Raises:
        InvalidOption: With what is possible.
    """
    _require(precision, PRECISIONS, "precision")
    _require(mode, MODES, "mode")
    _require(target, TARGETS, "target")
    _require(processor, PROCESSORS, "processor")
    _require(rest, ("fp32", *HALVES), "rest")
    for name, kind in layers.items():
        _require(kind, LAYER_PRECISIONS, f"layer {name!r}")
    if mode == "dynamic" and precision == "int8" and target != "onnxruntime":
        raise InvalidOption(
            f"dynamic INT8 for {target}: only ONNX Runtime has such a mode; static is required",
            hint="calibrate, then quantize with `mode` static and `ranges`",
        )
    if precision == "int4" and mode != "weights":
        raise InvalidOption(
            "int4 is for weights alone: no runtime here multiplies activations of 4 bits",
            hint="give `mode` weights",
            option="mode",
        )
    if precision == "fp8" and (mode != "static" or target != "tensorrt"):
        given = f"`target` {target}" if target != "tensorrt" else f"`mode` {mode}"
        raise InvalidOption(
            f"fp8 with {given}: only TensorRT multiplies FP8, with static scales",
            hint="give `target` tensorrt, `mode` static and `ranges`, or `precision` int8",
            option="precision",
        )
    if mode != "static" and (rest != "fp32" or layers):
        raise InvalidOption(
            f"`{'rest' if rest != 'fp32' else 'layers'}` mixes precisions in `mode` static; `mode` is {mode}"
        )
    asked = {rest, *layers.values()}
    if precision != "int8" and "int8" in asked:
        raise InvalidOption(f"`layers` int8 is for static INT8; `precision` is {precision}", option="layers")
    halves = asked & set(HALVES)
    if len(halves) > 1 or (precision in HALVES and halves - {precision}):
        raise InvalidOption("fp16 and bf16 in one graph: one of them is required")
    static = mode == "static" and precision not in HALVES
    if static and target == "onnxruntime" and (rest in HALVES or "bf16" in asked):
        what = "`rest`" if rest in HALVES else "`layers`"
        kind = rest if rest in HALVES else "bf16"
        raise InvalidOption(
            f"{what} {kind} for onnxruntime: its integer kernels read and write float32, and its CPU kernels "
            "do not support bfloat16",
            hint="leave it out, or choose `target` openvino or tensorrt",
            option=what,
        )


def check_ranges(request: QuantizeRequest) -> None:
    """Refuse ranges that are missing, of another model, or of no use for what is asked.

    Raises:
        InvalidOption, CalibrationError: With the way out.
    """
    ranges = request.ranges
    if ranges is None:
        if request.precision in ("int8", "fp8") and request.mode == "static":
            raise InvalidOption(
                f"static {request.precision.upper()} needs the ranges of the activations",
                hint="run `qcompile calibrate` first and give `ranges`",
                option="ranges",
            )
        return
    if ranges.fixed and request.precision in HALVES:
        raise InvalidOption(
            "TensorRT's calibration cache holds scales, not the largest values, which FP16 asks for",
            hint="give a ranges file, or `data`",
            option="ranges",
        )
    if ranges.fixed and request.target != "tensorrt":
        raise InvalidOption(
            f"TensorRT's calibration cache holds symmetric scales: half of the range is lost to "
            f"{request.target}",
            hint="calibrate with `qcompile calibrate`, or quantize with `target` tensorrt",
            option="ranges",
        )
    ranges.require_model(request.path, request.digest)


def _require(value: str, allowed: Sequence[str], what: str) -> None:
    if value not in allowed:
        raise InvalidOption(f"{what} {value!r} is unknown; known are {', '.join(allowed)}")
