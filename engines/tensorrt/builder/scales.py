"""Where the scales of a float graph come from that TensorRT itself quantizes: a ranges file, or samples.

Ranges are set on the network's tensors (`ITensor.set_dynamic_range`, as sampleINT8API does). A calibration
cache made of them would do the same only if its header is what TensorRT expects; otherwise TensorRT asks for
batches, gets none, and fails or builds without scales (NVIDIA/TensorRT issue 1378).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....calibration import load_ranges, parse_method
from ....data.batches import Data
from ....data.readers import Batch
from ....errors import CalibrationError, InvalidOption
from ....model.graph import graph_precision
from ....model.weightless import read_weightless
from ...base import BuildRequest
from ..adapter import Adapter
from ..log import Log, setting
from .calibrator import Calibrator

_FLOATS = ("FLOAT", "HALF", "BF16")
_LEAST = 127 * 2.0**-149  # amax whose scale is float32's smallest: nothing below it is told apart from zero
_SHOWN = 3


@dataclass(frozen=True)
class Calibration:
    """Samples, on which TensorRT finds the scales by itself."""

    calibrator: Calibrator
    batches: Iterable[Batch]


@dataclass(frozen=True)
class GivenRanges:
    """Tensor name to amax, > 0, of a ranges file."""

    amax: Mapping[str, float]


def scales_for(adapter: Adapter, request: BuildRequest) -> Calibration | GivenRanges | None:
    """Return where TensorRT gets the scales from; None where they are in the graph.

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
    # A tensor that was always zero is exact at any scale, and 1 is one that TensorRT takes.
    return GivenRanges(
        {name: max(ranges.amax(name, method) or 1.0, _LEAST) for name in sorted(ranges.names())}
    )


def set_ranges(adapter: Adapter, network: Any, log: Log, given: GivenRanges) -> int:
    """Set the dynamic range of every tensor that has one; returns how many have.

    Raises:
        InvalidOption: If TensorRT refuses one, in its words.
        CalibrationError: If the network has none of the tensors.
    """
    count = 0
    refused: list[str] = []
    for tensor in _float_tensors(network):
        if tensor.name in given.amax:
            limit = given.amax[tensor.name]
            with setting(log, f"`calibrator` ranges: tensor {tensor.name!r}", adapter.name):
                taken = tensor.set_dynamic_range(-limit, limit)
            count += bool(taken)
            refused += [] if taken else [tensor.name]
    if refused:
        raise CalibrationError(
            f"{adapter.name} takes no range for {len(refused)} tensors: {', '.join(refused[:_SHOWN])}",
            tensor=refused[0],
        )
    if not count:
        raise CalibrationError("the parsed network has none of the tensors that the ranges are of")
    return count


def _float_tensors(network: Any) -> Iterable[Any]:
    """The inputs, and what each layer computes, in floating point."""
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    for layer in map(network.get_layer, range(network.num_layers)):
        tensors += [layer.get_output(index) for index in range(layer.num_outputs)]
    return [tensor for tensor in tensors if str(tensor.dtype).rsplit(".", 1)[-1] in _FLOATS]
