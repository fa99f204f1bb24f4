"""The graph that a target needs for an intent: its precision, its types, its opset.

Where types are strong the graph says everything; where they are weak, flags and calibrators say it, and the
graph stays in float. Either way the user's file is left alone: what is made of it lives as long as the build.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from .errors import InvalidOption
from .progress import Progress
from .shapes import Feeds

if TYPE_CHECKING:
    from .engines.base import BuildRequest, Engine, Precision
    from .engines.tensorrt.building.calibrator import Calibration
    from .engines.tensorrt.options import TensorRTOptions

Shapes = Mapping[str, tuple[int, ...]]

CALIBRATORS = ("ours", "native", "entropy", "minmax")
_TENSORRT = ("tensorrt", "tensorrt-rtx")
_QUANTIZED = ("int8", "fp8")
_ROUNDS = 2


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
        allow_loss: Whether INT8 is kept that loses more on the data than `diff` lets pass.
        data: Samples. TensorRT's own calibrators learn from them; otherwise static INT8 is chosen and judged
            on them, and the artifact is checked on them instead of made input.
        options: TensorRT's own options.
        strict: Whether one layer that misses the precision fails the build. The runtime is then not asked
            which layers to leave in float.
    """

    model: str | Path
    target: str
    precision: str = "fp32"
    ranges: str | Path | None = None
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


@contextmanager
def prepared(
    intent: Intent, output: Path, calibration_cache: Path | None, progress: Progress
) -> Iterator[BuildRequest]:
    """Yield the request to an engine, with a graph that it can build from.

    Raises:
        InvalidOption: If the graph has not the precision and cannot be given it, or options contradict.
        EngineUnavailable: If the engine cannot build here.
    """
    from .engines.base import BuildRequest
    from .engines.build import require_builder

    engine = require_builder(intent.target)
    with tempfile.TemporaryDirectory(prefix="qcompile-build-") as folder:
        graph, calibration = str(intent.model), None
        precision, rest = _decided(intent, engine)
        if intent.calibrator:
            _check_calibrator(intent, precision, calibration_cache)
            calibration = _native(intent)
        elif calibration_cache is not None:
            raise InvalidOption("--calibration-cache is for --calibrator native or minmax")
        elif engine.takes == "onnx":
            needed = engine.graph_precision(precision)
            again = needed == "int8" and not intent.strict  # then the data waits for the last plan
            data = None if again else intent.data
            graph = _typed(intent, needed, rest_in_graph(engine, rest), Path(folder), progress, data=data)
        if engine.takes == "onnx":
            graph = _fitted(intent, Path(graph), engine, Path(folder), progress)
        request = BuildRequest(
            graph,
            output,
            precision,
            str(intent.model),
            intent.min_shapes,
            intent.opt_shapes,
            intent.max_shapes,
            list(dict.fromkeys(gpu.lower() for gpu in intent.gpus)),
            intent.inputs,
            intent.threads,
            progress,
            rest,
            calibration,
            tf32=intent.precision == "best",
            layers=_forced(intent, engine, precision),
            options=intent.options,
            sample=_sample(intent) if engine.takes == "onnx" else None,
        )
        if graph != str(intent.model) and precision == "int8" and not (intent.calibrator or intent.strict):
            request = _planned_again(intent, request, engine, Path(folder))
        yield request


def _planned_again(intent: Intent, request: BuildRequest, engine: Engine, folder: Path) -> BuildRequest:
    """Quantize again without what the runtime computes in float, as far as that was planned."""
    from .model.graph import weighted_nodes
    from .model.outline import read_outline

    planned = [node.name for node in weighted_nodes(read_outline(Path(request.model)).model)["int8"]]

    def without(in_float: Mapping[str, str], data: str | None = None) -> str:
        rest = rest_in_graph(engine, intent.rest)
        graph = _typed(intent, "int8", rest, folder, request.progress, left_in_float=in_float, data=data)
        return _fitted(intent, Path(graph), engine, folder, request.progress)

    graph, left = leave_in_float(engine, request, without)
    if intent.data is not None:
        graph = without(left, intent.data)
    return replace(request, model=graph, planned=planned, left_in_float=left)


def leave_in_float(
    engine: Engine, request: BuildRequest, without: Callable[[Mapping[str, str]], str]
) -> tuple[str, dict[str, str]]:
    """Ask the runtime which quantized layers it computes in float, and quantize again without them.

    Their Q/DQ would only cost conversions. Without them others may miss, so it is asked again, at most
    `_ROUNDS` times; what misses then is weighed by the proof. Where all would be left out there is nothing to
    build: the graph stays, and the proof says so.

    Args:
        engine: The runtime.
        request: With the quantized graph.
        without: Quantizes without the nodes it is given, and returns the graph.

    Returns:
        The graph, and name to reason of what it leaves in float.
    """
    from .model.graph import weighted_nodes
    from .model.outline import read_outline

    planned = len(weighted_nodes(read_outline(Path(request.model)).model)["int8"])
    left: dict[str, str] = {}
    for _ in range(_ROUNDS):
        request.progress("ask which layers run in float")
        missed = engine.missed_layers(request)
        if not missed or len(left) + len(missed) >= planned:
            break
        left |= missed
        request = replace(request, model=without(left))
    return request.model, left


def _decided(intent: Intent, engine: Engine) -> tuple[Precision, str]:
    """The precision to build, and that of the rest; "best" is decided by what there is to build from."""
    from .engines.base import PRECISIONS

    if intent.precision == "best":
        if engine.name not in _TENSORRT:
            raise InvalidOption(
                f"--precision best: is for {' and '.join(_TENSORRT)}; target {engine.name} was asked for",
                hint="qcompile tune measures which precision is fastest within an accuracy",
                option="--precision",
            )
        quantized = intent.ranges is not None or bool(intent.calibrator) or _found(intent) == "int8"
        return ("int8", "fp16") if quantized else ("fp16", "fp32")
    if intent.precision not in PRECISIONS:
        raise InvalidOption(
            f"precision {intent.precision!r}: one of {', '.join((*PRECISIONS, 'best'))} is required"
        )
    precision = PRECISIONS[PRECISIONS.index(intent.precision)]
    if intent.layers and precision in ("fp32", "tf32"):
        raise InvalidOption(
            f"--layer: keeps layers in a higher precision than {precision}, which there is none of",
            hint="ask for the lower precision, and name the layers that stay above it",
            option="--layer",
        )
    if precision not in engine.precisions:
        raise InvalidOption(
            f"--precision {precision}: target {engine.name} has {', '.join(engine.precisions)}",
            option="--precision",
        )
    engine.check_precision(precision, intent.rest)
    return precision, intent.rest


def rest_in_graph(engine: Engine, rest: str) -> str:
    """What a graph has beside INT8: float32 where the rest is a flag, or told while the engine loads."""
    from .engines.base import PRECISIONS

    return engine.graph_precision(PRECISIONS[PRECISIONS.index(rest)]) if rest in PRECISIONS else rest


def _found(intent: Intent) -> str:
    from .model.graph import graph_precision
    from .model.outline import read_outline

    return graph_precision(read_outline(Path(intent.model)).model)


def _check_calibrator(intent: Intent, precision: str, calibration_cache: Path | None) -> None:
    from .engines.tensorrt.adapter import load_adapter

    name = intent.calibrator
    if name not in CALIBRATORS:
        raise InvalidOption(f"--calibrator {name!r}: one of {', '.join(CALIBRATORS)} is required")
    if precision != "int8" or intent.target not in _TENSORRT:
        raise InvalidOption(f"--calibrator is for --precision int8 and target {' or '.join(_TENSORRT)}")
    load_adapter(intent.target).require_calibrators()
    if name != "ours" and (intent.data is None or intent.ranges is not None):
        raise InvalidOption(f"--calibrator {name}: TensorRT calibrates; give --data and no --ranges")
    if name == "ours" and (intent.ranges is None or intent.data is not None or calibration_cache is not None):
        raise InvalidOption("--calibrator ours: give --ranges, no --data and no --calibration-cache")


def _native(intent: Intent) -> Calibration:
    """How TensorRT gets the scales of a float graph: from our ranges, or from samples."""
    from .calibration import Data, load_ranges, parse_method
    from .calibration.tensorrt_cache import format_cache
    from .engines.tensorrt.adapter import load_adapter
    from .engines.tensorrt.building.calibrator import Calibration
    from .model.graph import graph_precision
    from .model.outline import read_outline

    model = Path(intent.model)
    outline = read_outline(model)
    found = graph_precision(outline.model)
    if found != "fp32":
        raise InvalidOption(f"{model}: its graph is {found} already; a calibrator takes the float graph")
    if intent.ranges is None:
        assert intent.data is not None  # _check_calibrator
        batches = Data(intent.data, outline.io.inputs, batch_size=1)
        return Calibration("minmax" if intent.calibrator == "minmax" else "entropy", batches)
    loaded = load_ranges(Path(intent.ranges))
    loaded.require_model(model, outline.fingerprint())
    version = load_adapter(intent.target).version
    method = parse_method(intent.method) if intent.method else None
    scales = format_cache(loaded, version=version, method=method)
    return Calibration("entropy", scales=scales.encode())


def _typed(
    intent: Intent,
    needed: Precision,
    rest: str,
    folder: Path,
    progress: Progress,
    *,
    left_in_float: Mapping[str, str] = MappingProxyType({}),
    data: str | None = None,
) -> str:
    """Return an ONNX file of the needed precision: the given one, or one made from it."""
    from .compiler import quantize
    from .compiler.int8.placement import graph_target

    model, found = Path(intent.model), _found(intent)
    if found == needed and not (intent.layers and needed != "fp32"):
        return str(model)
    if found != "fp32":
        raise InvalidOption(
            f"{model}: its graph is {found} already; {_wanted(intent, needed)} was asked for",
            hint=f"give --precision {found}, or build from the float model",
        )
    if needed == "int4":
        raise InvalidOption(
            f"{model}: holds no weights of 4 bits, and int4 was asked for",
            hint="quantize it first: qcompile quantize --mode weights --precision int4",
        )
    static = needed in _QUANTIZED
    if static and intent.ranges is None:
        raise InvalidOption(
            f"{model}: holds no quantized layer, and {needed} was asked for",
            hint="quantize it first, or give --ranges FILE (qcompile calibrate makes it)",
            option="--ranges",
        )
    typed = folder / model.name
    quantize(
        model,
        typed,
        precision=needed,  # type: ignore[arg-type]  # fp32 and tf32 are never needed of a graph
        ranges=intent.ranges if static else None,
        method=intent.method if static else None,
        in_float=left_in_float,
        layers=intent.layers,
        target=graph_target(intent.target),
        rest=rest if static else "fp32",
        data=data,
        allow_loss=intent.allow_loss,
        progress=progress,
    )
    return str(typed)


def _sample(intent: Intent) -> Feeds | None:
    """The first batch of the data, to check the artifact on."""
    from .calibration import Data
    from .model.outline import read_outline

    if intent.data is None or intent.calibrator:
        return None
    return next(iter(Data(intent.data, read_outline(Path(intent.model)).io.inputs))).feeds


def _forced(intent: Intent, engine: Engine, precision: Precision) -> dict[str, str]:
    """Node to precision, where the runtime chooses types; where the graph has them, it has these too."""
    from .compiler.choice import matching
    from .model.outline import read_outline

    weak = bool(intent.calibrator) or engine.graph_precision(precision) != precision
    if not (intent.layers and weak and engine.name in _TENSORRT):
        return {}
    graph = read_outline(Path(intent.model)).model.graph
    return {name: kind for pattern, kind in intent.layers.items() for name in matching(graph, [pattern])}


def _wanted(intent: Intent, needed: str) -> str:
    return f"{needed} with {', '.join(intent.layers)} in another" if intent.layers else needed


def _without_lacking(graph: Path, engine: Engine, folder: Path) -> Path:
    """Write operators that the runtime lacks as products, where they can be."""
    from .compiler.dft import dft_to_products
    from .compiler.scatter_adds import scatter_adds_to_products
    from .model.onnx_file import load_onnx, save_onnx
    from .model.outline import read_outline

    rewrites = {"DFT": dft_to_products, "ScatterND": scatter_adds_to_products}
    held = {node.op_type for node in read_outline(graph).model.graph.node} & engine.lacks
    if not held:
        return graph
    model = load_onnx(graph)
    if not [name for operator in sorted(held) for name in rewrites[operator](model)]:
        return graph
    written = folder / f"products-{graph.name}"
    save_onnx(model, written)
    return written


def _fitted(intent: Intent, graph: Path, engine: Engine, folder: Path, progress: Progress) -> str:
    """Give inputs and outputs the types that were asked for, and the file an opset the engine reads."""
    from .model.onnx_file import load_onnx, opset, save_onnx

    formats = intent.options.tensor_formats if intent.options else {}
    types = {name: dtype for name, (dtype, _) in formats.items() if dtype}
    if types:
        from .compiler.io_types import set_io_types

        retyped = folder / f"retyped-{graph.name}"
        save_onnx(set_io_types(load_onnx(graph), types), retyped)
        graph = retyped
    graph = _without_lacking(graph, engine, folder)
    highest = engine.highest_opset()
    if highest is not None and opset(load_onnx(graph, external_data=False)) > highest:
        from .compiler.opset.fit import fit_opset

        fitted = folder / f"fitted-{graph.name}"
        fit_opset(graph, fitted, highest, progress=progress)
        graph = fitted
    return str(graph)
