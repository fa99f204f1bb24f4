"""How a model is quantized and built: `quantize`, `build`, `refit`, and `[[artifact]]` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from ..errors import UsageError
from ..tensors import parse_shapes
from .decode import Checked, Refused
from .option import COMMA, SHAPES, argument, option
from .tensorrt import TensorRTOptions
from .words import METHOD, METHOD_PATTERN, BuildPrecision, FloatPrecision, GraphTarget, LayerPrecision, Target

PLAIN_NAME = r"^[^./\\\0][^/\\\0]*$"
_SHAPE_KINDS = ("min_shapes", "opt_shapes", "max_shapes")


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(Checked):
    """The precision of single layers, and what INT8 may cost."""

    method: Annotated[
        str,
        option(
            f"Method that chooses the thresholds: {METHOD}; default: the method of the ranges.",
            metavar=METHOD,
            pattern=f"^$|{METHOD_PATTERN}",
        ),
    ] = ""
    layers: Annotated[
        tuple[LayerPrecision, ...],
        option(
            "Precision of layers by name, glob or operator type: fp32, fp16, bf16 or int8.",
            flag="--layer",
            metavar="PATTERN=PRECISION",
            split=COMMA,
        ),
    ] = ()
    rest: Annotated[FloatPrecision, option("Precision of the layers that stay in floating point.")] = "fp32"
    allow_loss: Annotated[
        bool, option("Keep an INT8 model whose outputs on the data differ by more than `diff` allows.")
    ] = False

    @property
    def layer_precisions(self) -> dict[str, str]:
        """`layers` as name, glob or operator type to precision."""
        return {name: precision for name, _, precision in (text.rpartition("=") for text in self.layers)}


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions(PrecisionOptions):
    """How a graph is quantized."""

    mode: Annotated[
        Literal["static", "dynamic", "weights"],
        option("Kind of quantization: calibrated scales, scales computed at run time, or weights only."),
    ] = "static"
    exclude: Annotated[
        tuple[str, ...],
        option(
            "Layers that stay in floating point: name, glob or operator type.", metavar="PATTERN", split=COMMA
        ),
    ] = ()
    only: Annotated[
        tuple[str, ...],
        option(
            "The only layers to quantize: name, glob or operator type.",
            metavar="PATTERN",
            split=COMMA,
        ),
    ] = ()
    processor: Annotated[
        Literal["vnni", "avx2", "arm"],
        option("Instruction set of the CPU that runs static INT8 on onnxruntime."),
    ] = "vnni"
    correct_bias: Annotated[
        bool, option("Subtract the mean error of static INT8, measured on the data, from the biases.")
    ] = True
    block_size: Annotated[
        int,
        option(
            "Number of weights that share a scale in mode weights; 0 means one scale per output channel.",
            ge=0,
        ),
    ] = 64
    rounding: Annotated[
        Literal["rtn", "gptq"],
        option("Rounding of weights: to nearest (rtn), or to the least output error on the data (gptq)."),
    ] = "rtn"
    form: Annotated[
        Literal["", "nbits", "qdq"],
        option("Operators of mode weights: ONNX Runtime's (nbits) or ONNX's (qdq); default: the target's."),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class BuildOptions(PrecisionOptions):
    """What is built, and what the build must prove."""

    target: Annotated[Target, option("Runtime that the artifact is for.")]
    precision: Annotated[
        BuildPrecision, option("Precision that the layers must reach, or the build fails.")
    ] = "fp32"
    gpus: Annotated[
        tuple[str, ...],
        option(
            "Compute capability to build for, such as sm86; default: this machine's GPU.",
            flag="--gpu",
            metavar="SM",
            split=COMMA,
        ),
    ] = ()
    min_shapes: Annotated[
        tuple[str, ...], option("Smallest shape of an input.", metavar="NAME:SHAPE", split=SHAPES)
    ] = ()
    opt_shapes: Annotated[
        tuple[str, ...], option("Shape of an input to optimize for.", metavar="NAME:SHAPE", split=SHAPES)
    ] = ()
    max_shapes: Annotated[
        tuple[str, ...], option("Largest shape of an input.", metavar="NAME:SHAPE", split=SHAPES)
    ] = ()
    calibrator: Annotated[
        Literal["", "ours", "native", "entropy", "minmax"],
        option(
            "Source of the INT8 scales of TensorRT 8.5 to 10, in place of Q/DQ: the ranges file (ours), or "
            "TensorRT's own calibrator on the data."
        ),
    ] = ""
    allow_fallback: Annotated[
        bool, option("Keep an artifact that does not reach its precision, with a warning.")
    ] = False
    strict: Annotated[bool, option("Fail if a single layer does not reach the precision.")] = False
    tensorrt: TensorRTOptions = field(default_factory=TensorRTOptions)

    def check(self) -> None:
        """Read the shapes."""
        for kind in _SHAPE_KINDS:
            self.shapes(kind)

    def shapes(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Return input to shape of "min_shapes", "opt_shapes" or "max_shapes"."""
        try:
            return parse_shapes(getattr(self, kind), option=kind)
        except UsageError as error:
            raise Refused(kind, error.message.removeprefix(f"{kind}: "), hint=error.hint) from error


@dataclass(frozen=True, kw_only=True)
class ArtifactSection(QuantizeOptions, BuildOptions):
    """`[[artifact]]`: one thing to build."""

    name: Annotated[
        str, option("Name of the artifact and of its file.", metavar="a plain file name", pattern=PLAIN_NAME)
    ]

    search: Annotated[
        bool,
        option("Quantize static INT8 in several ways and keep the graph with the most accurate outputs."),
    ] = True

    def check(self) -> None:
        """Refuse options that the precision or the target has no use for."""
        BuildOptions.check(self)
        if (self.precision == "int4") != (self.mode == "weights" and self.precision != "int8"):
            raise Refused("mode", "int4 is for weights alone", found=self.mode, hint='mode = "weights"')
        if not self.target.startswith("tensorrt"):
            for name, unset in (("tensorrt", TensorRTOptions()), ("calibrator", "")):
                if getattr(self, name) != unset:
                    raise Refused(name, f"is for TensorRT; the target is {self.target!r}")
        if self.calibrator and self.precision != "int8":
            raise Refused("calibrator", f"is for int8; the precision is {self.precision!r}")

    @property
    def needs_ranges(self) -> bool:
        """Whether its activations need calibrated ranges."""
        static = self.precision in ("int8", "fp8", "best") and self.mode == "static"
        return static and self.calibrator in ("", "ours")


@dataclass(frozen=True, kw_only=True)
class QuantizeCommand(QuantizeOptions):
    """Quantize an ONNX MODEL to INT8, FP8 or INT4 for a target, or convert it to FP16 or BF16."""

    model: Annotated[Path, argument("ONNX file.")]
    output: Annotated[Path, option("ONNX file to write.", short="-o", metavar="FILE")]
    target: Annotated[GraphTarget, option("Runtime that the Q/DQ nodes are placed for.")] = "onnxruntime"
    precision: Annotated[
        Literal["int8", "fp8", "int4", "fp16", "bf16"],
        option("Precision of the graph to write; fp8 is E4M3, for TensorRT from compute capability 8.9."),
    ] = "int8"
    ranges: Annotated[Path | None, option("Ranges file for static INT8 and FP8.", metavar="FILE")] = None
    weight_type: Annotated[Literal["int8", "uint8"], option("Type of the weights in mode dynamic.")] = "int8"
    balance: Annotated[
        bool, option("Equalize the channels of static INT8 where that improves the outputs on the data.")
    ] = True
    max_damage: Annotated[
        float | None,
        option(
            "Leave the most sensitive layers of static INT8 in floating point until the outputs on the data "
            "reach this signal-to-noise ratio.",
            metavar="DB",
        ),
    ] = None
    data: Annotated[
        str | None, option("Samples to measure output errors on and to fit corrections to.", metavar="DATA")
    ] = None


@dataclass(frozen=True, kw_only=True)
class BuildSpec(BuildOptions):
    """All that `build` is told beside the model and the output."""

    ranges: Annotated[
        Path | None, option("Ranges file to quantize the model with before the build.", metavar="FILE")
    ] = None
    inputs: Annotated[
        tuple[str, ...],
        option("Input of a PyTorch MODEL.", flag="--input", short="-i", metavar="NAME:SHAPE[:DTYPE]"),
    ] = ()
    threads: Annotated[int, option("Threads of a CPU runtime; 0 means the runtime's default.", ge=0)] = 0
    data: Annotated[
        str | None,
        option("Samples for the INT8 accuracy check, the artifact check and the calibrator.", metavar="DATA"),
    ] = None
    calibration_cache: Annotated[
        Path | None, option("File for the scales that TensorRT's calibrator computes.", metavar="FILE")
    ] = None
    trust: Annotated[bool, option("Load a .pt2 file that runs code when it is loaded.")] = False


@dataclass(frozen=True, kw_only=True)
class BuildCommand(BuildSpec):
    """Build MODEL for a target and verify the precision of its layers."""

    model: Annotated[str, argument("ONNX file; a PyTorch MODEL for torchscript.")]
    output: Annotated[Path, option("Artifact to write.", short="-o", metavar="FILE")]
    dry_run: Annotated[bool, option("Parse, check and print the planned build without building.")] = False


@dataclass(frozen=True, kw_only=True)
class RefitCommand(Checked):
    """Replace the weights of ENGINE with those of MODEL, which has the same structure, without a build."""

    engine: Annotated[Path, argument("TensorRT engine.")]
    model: Annotated[Path, argument("ONNX file of the same structure.")]
    output: Annotated[Path, option("Engine to write.", short="-o", metavar="FILE")]
