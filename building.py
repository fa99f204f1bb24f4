"""From an intent to a built artifact: the graph is lowered, the builder is asked, the proof is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InvalidOption
from .lowering import LoweredGraph, first_sample, lower
from .progress import Progress

if TYPE_CHECKING:
    from .engines.base import BuildRequest
    from .engines.tensorrt.builder.calibrator import Calibration
    from .preparation import Intent

CALIBRATORS = ("ours", "native", "entropy", "minmax")


@contextmanager
def prepared(
    intent: Intent, output: Path, calibration_cache: Path | None, progress: Progress
) -> Iterator[BuildRequest]:
    """Yield the request to an engine, with a graph that it can build from, which lives as long as this.

    Raises:
        InvalidOption: If the graph has not the precision and cannot be given it, or options contradict.
        EngineUnavailable: If the engine cannot build here.
    """
    from .engines.build import require_builder
    from .engines.capabilities import capabilities

    engine = require_builder(intent.target)
    if intent.calibrator:
        _check_calibrator(intent, calibration_cache)
    elif calibration_cache is not None:
        raise InvalidOption("`calibration_cache` is for `calibrator` native or minmax")
    with tempfile.TemporaryDirectory(prefix="qcompile-build-") as folder:
        graph = Path(folder) / Path(intent.model).name
        lowered = lower(intent, capabilities(engine), graph, progress=progress)
        yield request_for(intent, lowered, output, progress)


def request_for(intent: Intent, lowered: LoweredGraph, output: Path, progress: Progress) -> BuildRequest:
    """Return what a builder is asked for: a graph that is lowered, and all that an intent says beside it."""
    from .engines.base import BuildRequest
    from .engines.registry import engine

    named = {"layers": dict(intent.layers), "exclude": list(intent.exclude), "only": list(intent.only)}
    takes_onnx = engine(intent.target).takes == "onnx"
    return BuildRequest(
        lowered.path,
        output,
        lowered.precision,
        source=str(intent.model),
        min_shapes=intent.min_shapes,
        opt_shapes=intent.opt_shapes,
        max_shapes=intent.max_shapes,
        gpus=list(dict.fromkeys(gpu.lower() for gpu in intent.gpus)),
        inputs=intent.inputs,
        threads=intent.threads,
        progress=progress,
        rest=lowered.rest,
        calibration=_native(intent) if intent.calibrator else None,
        tf32=intent.precision == "best",
        layers=lowered.layers,
        options=intent.options,
        planned=lowered.planned,
        left_in_float=lowered.left_in_float,
        sample=first_sample(intent) if takes_onnx else None,
        graph_options={name: value for name, value in named.items() if value},
        warnings=lowered.warnings,
    )


def _check_calibrator(intent: Intent, calibration_cache: Path | None) -> None:
    from .engines.tensorrt.adapter import MODULES, load_adapter

    name = intent.calibrator
    if name not in CALIBRATORS:
        raise InvalidOption(f"`calibrator` {name!r}: one of {', '.join(CALIBRATORS)} is required")
    if intent.precision not in ("int8", "best") or intent.target not in MODULES:
        raise InvalidOption(f"`calibrator` is for `precision` int8 and `target` {' or '.join(MODULES)}")
    load_adapter(intent.target).require_calibrators()
    if name != "ours" and (intent.data is None or intent.ranges is not None):
        raise InvalidOption(f"`calibrator` {name}: TensorRT calibrates; give `data` and no `ranges`")
    if name == "ours" and (intent.ranges is None or intent.data is not None or calibration_cache is not None):
        raise InvalidOption("`calibrator` ours: give `ranges`, no `data` and no `calibration_cache`")


def _native(intent: Intent) -> Calibration:
    """How TensorRT gets the scales of a float graph: from our ranges, or from samples."""
    from .calibration import Ranges, load_ranges, parse_method
    from .calibration.tensorrt_cache import format_cache
    from .data.batches import Data
    from .engines.tensorrt.adapter import load_adapter
    from .engines.tensorrt.builder.calibrator import Calibration
    from .model.graph import graph_precision
    from .model.weightless import read_weightless

    model = Path(intent.model)
    weightless = read_weightless(model)
    found = graph_precision(weightless.model)
    if found != "fp32":
        raise InvalidOption(f"{model}: its graph is {found} already; a calibrator takes the float graph")
    if intent.ranges is None:
        assert intent.data is not None  # _check_calibrator
        batches = Data(intent.data, weightless.io.inputs, batch_size=1)
        return Calibration("minmax" if intent.calibrator == "minmax" else "entropy", batches)
    loaded = intent.ranges if isinstance(intent.ranges, Ranges) else load_ranges(Path(intent.ranges))
    loaded.require_model(model, weightless.fingerprint())
    version = load_adapter(intent.target).version
    method = parse_method(intent.method) if intent.method else None
    scales = format_cache(loaded, version=version, method=method)
    return Calibration("entropy", scales=scales.encode())
