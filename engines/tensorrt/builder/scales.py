"""Where TensorRT's calibrator gets the scales of a float graph from: a ranges file, or samples."""

from __future__ import annotations

from pathlib import Path

from ....calibration import load_ranges, parse_method
from ....calibration.tensorrt_cache import format_cache
from ....data.batches import Data
from ....errors import InvalidOption
from ....model.graph import graph_precision
from ....model.weightless import read_weightless
from ...base import BuildRequest
from ..adapter import Adapter
from .calibrator import Calibration


def calibration_for(adapter: Adapter, request: BuildRequest) -> Calibration | None:
    """Return what a build calibrates with; None where the scales are in the graph.

    Raises:
        InvalidOption: If this TensorRT has no calibrators, or the graph is not in float.
        CalibrationError: If the ranges are of another model.
    """
    spec = request.spec
    if not spec.calibrator:
        return None
    adapter.require_calibrators()
    model = Path(request.source or request.model)
    weightless = read_weightless(model)
    present = graph_precision(weightless.model)
    if present != "fp32":
        raise InvalidOption(f"{model}: its graph is {present} already; a calibrator takes the float graph")
    if spec.ranges is None:
        assert spec.data is not None, "the spec requires one of them"
        batches = Data(spec.data, weightless.io.inputs, batch_size=1)
        return Calibration("minmax" if spec.calibrator == "minmax" else "entropy", batches)
    ranges = load_ranges(spec.ranges)
    ranges.require_model(model, weightless.fingerprint())
    method = parse_method(spec.method) if spec.method else None
    scales = format_cache(ranges, version=adapter.version, method=method)
    return Calibration("entropy", scales=scales.encode())
