"""How a model is quantized and built: `quantize`, `build`, `refit`, and `[[artifact]]` of a recipe.

PrecisionOptions ◀── QuantizeOptions ◀─┬─ QuantizeSpec ◀── QuantizeCommand
                                       └─ ArtifactOptions ◀─┬─ BuildSpec ◀── BuildCommand
                                                            └─ ArtifactSection
"""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from .decode import Checked, Refused, non_default_options, read_shapes
from .option import COMMA, SHAPES, argument, fields_of, option
from .tensorrt import TensorRTOptions
from .words import (
    CALIBRATED,
    CLUSTER,
    METHOD,
    TENSORRT_TARGETS,
    BuildPrecision,
    FloatPrecision,
    GraphPrecision,
    GraphTarget,
    InputShapes,
    Isa,
    LayerPrecision,
    MaxTime,
    MethodChoice,
    Mode,
    Natural,
    Patterns,
    PlacedFile,
    PlacedSamples,
    Precision,
    Target,
    Texts,
    WeightType,
)

PLAIN_NAME = r"^[^./\\\0][^/\\\0]*$"
_SHAPE_KINDS = ("min_shapes", "opt_shapes", "max_shapes")

Exclude = Annotated[Patterns, "Layers that stay in floating point: name, glob or operator type."]
Rules = Annotated[
    Texts,
    "Kind of an output: classes, embedding, labels or signal.",
    option("--judge [OUTPUT:]RULE", pairs=":"),
]
"""Shared by `quantize`, `build`, recipes and `diff`."""
Inputs = Annotated[InputShapes, "Input of a PyTorch MODEL."]
"""Shared by `build` and `tune`."""
_Shapes = Annotated[Texts, option("NAME:SHAPE", split=SHAPES, pairs=":", targets=TENSORRT_TARGETS)]


class PrecisionOptions(Checked):
    """Precision of single layers, and the allowed loss of INT8."""

    method: Annotated[
        MethodChoice, f"Method that chooses the thresholds: {METHOD}; default: the method of the ranges."
    ] = ""
    layers: Annotated[
        tuple[LayerPrecision, ...],
        "Precision of layers by name, glob or operator type: fp32, fp16, bf16 or int8.",
        option("--layer PATTERN=PRECISION", split=COMMA, pairs="="),
    ] = ()
    float_precision: Annotated[
        Literal["auto", FloatPrecision],
        "Precision of layers that stay in floating point; auto: fp16 in INT8 of TensorRT, else fp32.",
    ] = "auto"
    rules: Rules = ()
    allow_loss: Annotated[
        bool, "Keep an INT8 model whose outputs on the data differ by more than `diff` allows."
    ] = False

    @property
    def floats(self) -> FloatPrecision:
        """Precision of the floating-point layers; "auto" is resolved by `with_floats`, or else means fp32."""
        return "fp32" if self.float_precision == "auto" else self.float_precision

    @property
    def layer_precisions(self) -> dict[str, str]:
        """`layers` as a mapping from name, glob or operator type to precision."""
        return {name: precision for name, _, precision in (text.rpartition("=") for text in self.layers)}


class QuantizeOptions(PrecisionOptions):
    """How a graph is quantized."""

    mode: Annotated[
        Mode, "Kind of quantization: calibrated scales, scales computed at run time, or weights only."
    ] = "static"
    exclude: Exclude = ()
    only: Annotated[Patterns, "The only layers to quantize: name, glob or operator type."] = ()
    isa: Annotated[
        Isa,
        "Instruction set of the CPU that will run INT8; auto means this machine's. Files for avx2 run on "
        "every x86 CPU.",
    ] = "auto"
    correct_bias: Annotated[
        bool, "Subtract the mean error of static INT8, measured on the data, from the biases."
    ] = True
    search: Annotated[
        bool, "Quantize static INT8 in several ways and keep the graph with the most accurate outputs."
    ] = True
    block_size: Annotated[
        Natural, "Number of weights that share a scale in mode weights; 0 means one scale per output channel."
    ] = 64
    rounding: Annotated[
        Literal["rtn", "gptq"],
        "Rounding of weights: to nearest (rtn), or to the least output error on the data (gptq).",
    ] = "rtn"
    quant_format: Annotated[
        Literal["", "nbits", "qdq"],
        "Operators of mode weights: ONNX Runtime's (nbits) or ONNX's (qdq); default: the target's.",
    ] = ""


class ArtifactOptions(QuantizeOptions):
    """Options of a build and of its verification."""

    target: Annotated[Target, "Runtime that the artifact is for."]
    precision: Annotated[BuildPrecision, "Precision that the layers must reach, or the build fails."] = "fp32"
    gpus: Annotated[
        Texts,
        "Compute capability to build for: sm75, sm80, sm86, sm89, sm120 or sm121 of TensorRT-RTX 1.7; in a "
        "recipe, cluster makes an artifact for each of the cluster's GPUs; default: this machine's GPU.",
        option("--gpu SM", split=COMMA, targets=TENSORRT_TARGETS),
    ] = ()
    min_shapes: Annotated[_Shapes, "Smallest shape of an input."] = ()
    opt_shapes: Annotated[_Shapes, "Shape of an input to optimize for."] = ()
    max_shapes: Annotated[_Shapes, "Largest shape of an input."] = ()
    calibrator: Annotated[
        Literal["", "ranges", "native", "entropy", "minmax"],
        "Source of the INT8 scales of TensorRT 8.5 to 10, in place of Q/DQ: the ranges file (ranges), or "
        "TensorRT's own calibrator on the data.",
        option(targets=TENSORRT_TARGETS),
    ] = ""
    allow_fallback: Annotated[
        bool, "Keep an artifact that does not reach its precision or accuracy, with a warning."
    ] = False
    strict: Annotated[bool, "Fail if a single layer does not reach the precision."] = False
    tensorrt: Annotated[TensorRTOptions, "TensorRT's own options.", option(targets=TENSORRT_TARGETS)] = field(
        default_factory=TensorRTOptions
    )

    def check(self) -> None:
        """Read the shapes, and refuse options that do not apply to the target or the precision."""
        for entry in fields_of(type(self)):
            targets, value = entry.spelling.targets, getattr(self, entry.name)
            if targets and self.target not in targets and value != entry.default:
                inner = f".{next(iter(non_default_options(value)))}" if entry.table is not None else ""
                problem = f"is for {' and '.join(targets)}; the target is {self.target}"
                raise Refused(f"{entry.name}{inner}", problem, hint="leave it out")
        for kind in _SHAPE_KINDS:
            self.shapes(kind)
        if CLUSTER in self.gpus and self.gpus != (CLUSTER,):
            raise Refused("gpus", f"{CLUSTER!r} stands for all of them; give it alone")
        if self.gpus and self.tensorrt.device:
            raise Refused("tensorrt.device", "excludes `gpus`: a build ahead of time uses no GPU here")
        if self.calibrator and self.precision not in ("int8", "best"):
            raise Refused("calibrator", f"is for `precision` int8; the precision is {self.precision}")

    def shapes(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Return input to shape of "min_shapes", "opt_shapes" or "max_shapes"."""
        return read_shapes(self, kind)

    @property
    def one_precision(self) -> Precision:
        """The precision, after "best" is resolved."""
        assert self.precision != "best", "lowering resolves it"
        return self.precision

    @property
    def calibrates_itself(self) -> bool:
        """Whether TensorRT's calibrator computes the INT8 scales, on the data."""
        return self.calibrator not in ("", "ranges")


class ArtifactSection(ArtifactOptions):
    """`[[artifact]]`: one artifact to build."""

    name: Annotated[
        str, "Name of the artifact and of its file.", option("a plain file name", pattern=PLAIN_NAME)
    ]
    fallback: Annotated[
        str,
        "Artifact to use where this one cannot be built or run; the run then does not fail because of it.",
    ] = ""

    def check(self) -> None:
        """Require mode weights for INT4: a recipe begins with the float model. Only INT8 allows it, too."""
        super().check()
        if (self.precision == "int4") != (self.mode == "weights" and self.precision != "int8"):
            raise Refused("mode", "int4 is for weights alone", value=self.mode, hint='mode = "weights"')

    @property
    def needs_ranges(self) -> bool:
        """Whether the artifact needs calibrated ranges of its activations."""
        static = self.precision in (*CALIBRATED, "best") and self.mode == "static"
        return static and not self.calibrates_itself


class QuantizeSpec(QuantizeOptions):
    target: Annotated[GraphTarget, "Runtime that the Q/DQ nodes are placed for."] = "onnxruntime"
    precision: Annotated[
        GraphPrecision, "Precision of the graph to write; for TensorRT alone: fp8 on GPUs from sm89."
    ] = "int8"
    ranges: Annotated[PlacedFile, "Ranges file for static INT8 and FP8."] = None
    weight_type: Annotated[WeightType, "Type of the weights in mode dynamic."] = "int8"
    balance: Annotated[
        bool, "Equalize the channels of static INT8 where that improves the outputs on the data."
    ] = True
    max_damage: Annotated[
        float | None,
        "Leave the most sensitive layers of static INT8 in floating point until the outputs on the data "
        "reach this signal-to-noise ratio.",
        option("DB"),
    ] = None
    data: Annotated[PlacedSamples, "Samples to measure output errors on and to fit corrections to."] = None


class QuantizeCommand(QuantizeSpec):
    """Quantize an ONNX MODEL to INT8, FP8 or INT4 for a target, or convert to FP16 or BF16."""

    model: Annotated[Path, argument("ONNX file.")]
    output: Annotated[Path, "ONNX file to write.", option("-o FILE")]


class QatSpec(Checked):
    target: Annotated[
        GraphTarget, "Runtime whose grids and Q/DQ placement apply; tensorrt also for TensorRT-RTX."
    ] = "onnxruntime"
    isa: Annotated[Isa, "Instruction set of the CPU that will run INT8; auto means this machine's."] = "auto"
    exclude: Annotated[Texts, "Globs of modules (`fc`, `stages.0.*`) to leave in floating point."] = ()


class BuildSpec(ArtifactOptions):
    ranges: Annotated[PlacedFile, "Ranges file to quantize the model with before the build."] = None
    inputs: Inputs = ()
    threads: Annotated[Natural, "Threads of a CPU runtime; 0 means the runtime's default."] = 0
    data: Annotated[
        PlacedSamples, "Samples for the INT8 accuracy check, the artifact check and the calibrator."
    ] = None
    calibration_cache: Annotated[PlacedFile, "File for the scales that TensorRT's calibrator computes."] = (
        None
    )
    trust: Annotated[bool, "Load a .pt2 or TorchScript file, which may run code."] = False

    def check(self) -> None:
        """Refuse files that the calibrator does not use, and require those that it needs."""
        super().check()
        if CLUSTER in self.gpus:
            raise Refused("gpus", f"{CLUSTER!r} is for recipes that `run` carries out on a cluster")
        if self.calibration_cache is not None and not self.calibrates_itself:
            raise Refused("calibration_cache", "is for `calibrator` native, entropy or minmax")
        if self.calibrates_itself and (self.data is None or self.ranges is not None):
            raise Refused(
                "calibrator", "TensorRT calibrates; give `data` and no `ranges`", value=self.calibrator
            )
        if self.calibrator == "ranges" and (self.ranges is None or self.data is not None):
            raise Refused("calibrator", "give `ranges` and no `data`", value=self.calibrator)


class BuildCommand(BuildSpec):
    """Build MODEL for a target and verify the precision of its layers."""

    model: Annotated[str, argument("ONNX file; a PyTorch MODEL for torchscript.")]
    output: Annotated[Path, "Artifact to write.", option("-o FILE")]
    dry_run: Annotated[bool, "Parse, check and print the planned build without building."] = False


class ReproduceSpec(BuildSpec):
    max_time_s: Annotated[MaxTime, "Longest time to spend on making the graph smaller."] = 600.0


class ReproduceCommand(ReproduceSpec):
    """Reduce a fault of TARGET with MODEL to the smallest graph that reproduces it."""

    model: Annotated[str, argument("ONNX file, as passed to `build`.")]
    output: Annotated[Path, "Folder to write.", option("-o FOLDER")]


class RefitCommand(Checked):
    """Replace the weights of ENGINE with those of MODEL, which has the same structure, without a build."""

    engine: Annotated[Path, argument("TensorRT engine.")]
    model: Annotated[Path, argument("ONNX file of the same structure.")]
    output: Annotated[Path, "Engine to write.", option("-o FILE")]


Built = TypeVar("Built", BuildSpec, ArtifactSection)


def with_floats(spec: Built) -> Built:
    """Return the spec with "auto" in `float_precision` resolved for static INT8 of TensorRT: bf16 if `layers`
    has a layer in bf16, else fp16.

    FP32 between INT8 layers can make an engine slower than pure FP16; Model-Optimizer also defaults to fp16
    (onnx/quantization/quantize.py, `high_precision_dtype`). `quantize` leaves these layers in fp32: its graph
    is for no particular version, and TensorRT 8 has a flag for FP16.
    """
    is_tensorrt_int8 = spec.precision == "int8" and spec.mode == "static" and spec.target in TENSORRT_TARGETS
    if spec.float_precision != "auto" or not is_tensorrt_int8:
        return spec
    return replace(spec, float_precision="bf16" if "bf16" in spec.layer_precisions.values() else "fp16")
