"""What an artifact is to be, in the words of the one who asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .calibration import Ranges
    from .compiler.quantize.request import WeightOptions
    from .engines.tensorrt.options import TensorRTOptions

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Intent:
    """What an artifact is to be.

    Attributes:
        model: ONNX file; for "torchscript" a MODEL spelling.
        target: Name of the engine.
        precision: "fp32", "tf32" (float32 whose products round to 10 bits of mantissa), "fp16", "bf16",
            "int8", "fp8", "int4" (weights alone), or "best": for TensorRT, INT8 with the rest in FP16 where
            there are ranges or a quantized graph, else FP16; TF32 for what is left.
        ranges: Ranges file: a float ONNX file is then quantized to INT8 or FP8 for the target first.
        method: Another method than the ranges file's own.
        gpus: Compute capabilities to build for ("sm86"), where the target can choose.
        min_shapes, opt_shapes, max_shapes: Input name to shape, for dynamic inputs.
        inputs: Inputs of a MODEL that does not declare them.
        threads: Threads of a CPU runtime; 0 lets it choose.
        rest: What INT8 and FP8 leave in float is computed in: "fp32", "fp16" or "bf16".
        layers: Name, glob or operator type to the precision of those layers: "fp32", "fp16", "bf16", "int8".
        calibrator: How INT8 gets its scales where TensorRT has weak types (8.5 to 10). Empty: as Q/DQ in
            the graph. "ours": TensorRT reads ours, from `ranges`. "entropy", "minmax": TensorRT's own
            calibrators run the float graph on `data`; "native" is "entropy".
        data: Samples. TensorRT's own calibrators learn from them; otherwise static INT8 is corrected, chosen
            and judged on them, FP16 looks in them for values that overflow, and the artifact is checked on
            them instead of random input.
        options: TensorRT's own options.
        strict: Whether one layer that misses the precision fails the build. The runtime is then not asked
            which layers to leave in float.
        allow_loss: Whether INT8 is kept that loses more on the data than `diff` lets pass.
        mode: How a float graph gets its integers: "static", "dynamic", or "weights" for weights alone.
        processor: What static INT8 for ONNX Runtime will run on: "vnni", "avx2" or "arm".
        exclude, only: Names, globs or operator types of nodes that stay in float, and of those that may not.
        correct_bias: Whether static INT8 takes its mean error off the biases, where there is data.
        search: Whether static INT8 is quantized in several ways where there is data, and the best one kept.
        weights: Block size, rounding and form, for mode "weights"; static INT8 takes the rounding.
    """

    model: str | Path
    target: str
    precision: str = "fp32"
    ranges: str | Path | Ranges | None = None
    method: str | None = None
    gpus: Sequence[str] = ()
    min_shapes: Shapes = field(default_factory=dict)
    opt_shapes: Shapes = field(default_factory=dict)
    max_shapes: Shapes = field(default_factory=dict)
    inputs: Sequence[str] = ()
    threads: int = 0
    rest: str = "fp32"
    layers: Mapping[str, str] = field(default_factory=dict)
    calibrator: str = ""
    data: str | None = None
    options: TensorRTOptions | None = None
    strict: bool = False
    allow_loss: bool = False
    mode: str = "static"
    processor: str = "vnni"
    exclude: Sequence[str] = ()
    only: Sequence[str] = ()
    correct_bias: bool = True
    search: bool = True
    weights: WeightOptions | None = None
