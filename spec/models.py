"""From a model to a graph and its ranges: `export`, `simplify`, `calibrate`, `ranges`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ..errors import UsageError
from .decode import Checked, Refused
from .opsets import DEFAULT, NEWEST_EXPORTED, OLDEST
from .option import COMMA, argument, option
from .tensors import parse_dynamic_axis, parse_input
from .words import (
    METHOD,
    METHOD_PATTERN,
    Count,
    File,
    GraphTarget,
    InputShapes,
    MethodChoice,
    Natural,
    Samples,
    Texts,
)

WEIGHTS = Annotated[
    str,
    "Weights of a model by name or of a function: random, or a .safetensors or state dict; default: "
    "the model's own, from the local cache.",
    option("random|FILE", names="weights"),
]
DOWNLOAD = Annotated[bool, "Let the package of a model by name download what its cache lacks."]
TRUST = Annotated[
    bool, "Load a .pt2 or TorchScript file, which may run code, or a SavedModel that touches files."
]


class ExportOptions(Checked):
    """How a model is exported."""

    inputs: Annotated[
        InputShapes,
        "An input, in forward()'s order; a named axis is dynamic: height, height=64 (traced with 64), "
        "height=32..512.",
    ] = ()
    outputs: Annotated[
        Texts, "Name of an output, in the order of the outputs.", option("--output-name NAME")
    ] = ()
    dynamic: Annotated[Texts, "Dynamic axis, such as x:0=batch.", option("NAME:AXIS=LABEL")] = ()
    opset: Annotated[int, f"ONNX opset to export, {OLDEST} to {NEWEST_EXPORTED}."] = DEFAULT
    freeze_branches: Annotated[
        bool, "Export the branches that the example takes, if a model branches on values."
    ] = False
    dtype: Annotated[
        Literal["", "float32"],
        "Convert a PyTorch model of another floating-point type, its inputs and DATA to this type.",
    ] = ""
    trust: TRUST = False
    weights: WEIGHTS = ""
    download: DOWNLOAD = False
    preprocessing: Annotated[
        str,
        "Preprocessing of the samples: imagenet, cifar10, a model by name (timm:NAME, hf:FOLDER), or a "
        "JSON file; default: the model's.",
        option("NAME|FILE.json", names="preprocessing"),
    ] = ""
    python: Annotated[
        Texts,
        "Python interpreter that has TensorFlow, for a TensorFlow MODEL.",
        option("tensorflow=INTERPRETER", names="interpreter"),
    ] = ()

    def check(self) -> None:
        """Read the inputs and the dynamic axes."""
        for name, read in (("inputs", parse_input), ("dynamic", parse_dynamic_axis)):
            for text in getattr(self, name):
                try:
                    read(text, option=name)
                except UsageError as error:
                    raise Refused(name, error.message.removeprefix(f"{name}: "), hint=error.hint) from error


class ModelSection(ExportOptions):
    """`[model]`: the source and how it is exported."""

    source: Annotated[
        str,
        "MODEL: torchvision:NAME, timm:NAME, hf:NAME_OR_FOLDER, file.py:function, "
        "package.module:function, .pt2, TorchScript, .onnx, a SavedModel folder, .keras, .h5 or .tflite; "
        "required without `sweep.models`.",
        option(names="model"),
    ] = ""
    depends: Annotated[
        Texts,
        "Files elsewhere that the model reads; a change triggers a new export.",
        option(names="file"),
    ] = ()
    simplify: Annotated[bool, "Simplify the exported graph."] = True


class ExportSpec(ExportOptions):
    target: Annotated[
        GraphTarget | None, "Runtime of the Q/DQ nodes of a model trained with fake quantization."
    ] = None
    data: Annotated[
        Samples,
        "Samples to trace with and to compare outputs on, instead of random input. Functions and "
        "arrays also define undeclared inputs; axes that vary are dynamic.",
    ] = None


class ExportCommand(ExportSpec):
    """Export MODEL to ONNX, check it, and compare its outputs with PyTorch's.

    MODEL is torchvision:NAME, timm:NAME, hf:NAME_OR_FOLDER, file.py:function, package.module:function, a
    .pt2, a TorchScript archive, an .onnx file, a SavedModel folder, or a .keras, .h5 or .tflite
    file. Options follow a `?`: timm:resnet18?weights=random&classes=10.
    """

    model: Annotated[str, argument("Model to export.")]
    output: Annotated[Path, "ONNX file to write.", option("-o FILE")]


class SimplifySpec(Checked):
    data: Annotated[Samples, "Samples to check the outputs on, instead of random input."] = None


class SimplifyCommand(SimplifySpec):
    """Remove and fuse redundant nodes of an ONNX MODEL, with the same outputs and dynamic axes."""

    model: Annotated[Path, argument("ONNX file.")]
    output: Annotated[Path, "ONNX file to write.", option("-o FILE")]


class CalibrateOptions(Checked):
    """How activations are observed."""

    method: Annotated[
        str,
        f"Method that chooses the thresholds: {METHOD}; `quantize` can choose another.",
        option(METHOD, pattern=METHOD_PATTERN),
    ] = "auto"
    samples: Annotated[Natural, "Largest number of samples; 0 means all."] = 0


class CalibrateSection(CalibrateOptions):
    """`[calibrate]`: how activations are observed."""

    ranges: Annotated[
        str,
        "Ranges file or TensorRT's calibration cache of the model, instead of a calibration.",
        option("FILE", names="ranges"),
    ] = ""


class CalibrateSpec(CalibrateOptions):
    targets: Annotated[
        tuple[GraphTarget, ...],
        "Runtime to calibrate for; default: all; fewer are faster.",
        option("--target", split=COMMA),
    ] = ()
    shard: Annotated[
        str,
        "Part of the samples to observe: every PARTS-th; `ranges merge` joins the parts.",
        option("PART/PARTS"),
    ] = "1/1"
    threads: Annotated[Natural, "Number of threads; 0 means one per core."] = 0
    resume: Annotated[
        bool, "Start over instead of resuming an interrupted calibration.", option("--fresh", off=True)
    ] = True


class CalibrateCommand(CalibrateSpec):
    """Observe the activations of an ONNX MODEL over samples, in one pass and bounded memory. An
    interrupted calibration continues when it is run again."""

    model: Annotated[Path, argument("ONNX file.")]
    data: Annotated[
        str,
        "Samples: a folder of images or recordings, a file of texts or arrays, file.py:function.",
        option("DATA"),
    ]
    output: Annotated[Path, "Ranges file to write.", option("-o FILE")]


_FileMethod = Annotated[MethodChoice, f"Method that chooses the thresholds: {METHOD}; default: the file's."]


class ShowRangesCommand(Checked):
    """Show every observed tensor of a ranges FILE: extremes, thresholds by method, the share of the values
    clipped and the signal-to-noise ratio of eight bits, estimated from the histogram."""

    file: Annotated[Path, argument("Ranges file.")]
    method: _FileMethod = ""
    target: Annotated[
        GraphTarget, "Runtime whose quantization error is estimated: asymmetric uint8 or symmetric int8."
    ] = "onnxruntime"
    top: Annotated[Count | None, "Largest number of tensors to show; the default for --plot is 12."] = None
    tensors: Annotated[Texts, "Tensor to show; default: all.", option("--tensor NAME")] = ()
    plot: Annotated[File, "File for a plot of the histograms, .svg."] = None


class MergeRangesCommand(Checked):
    """Merge ranges FILES of one model: shards of the same data, or different data. The merge is exact: all
    shards together give, bit by bit, the file of one whole run."""

    files: Annotated[tuple[Path, ...], argument("Ranges files.")]
    output: Annotated[Path, "Ranges file to write.", option("-o FILE")]


class RangesCacheCommand(Checked):
    """Write the scales of a ranges FILE as a calibration cache, which TensorRT 8 and 10 read instead of
    calibrating. `qcompile quantize --ranges CACHE` reads it back."""

    file: Annotated[Path, argument("Ranges file.")]
    output: Annotated[Path, "Cache to write.", option("-o FILE")]
    version: Annotated[
        str, "Version of TensorRT that reads the cache, such as 8.5.3.", option("--tensorrt VERSION")
    ]
    calibrator: Annotated[str, "Name of the calibrator in the cache.", option("NAME")] = "EntropyCalibration2"
    method: _FileMethod = ""
