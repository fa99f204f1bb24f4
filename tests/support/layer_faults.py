"""Faults planted in graphs, and all of their tensors at once: what a search with few taps is held against."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from qcompile.model.output_error import output_error


def perturbed(model: onnx.ModelProto, name: str, *, by: float = 0.0, times: float = 1.0) -> onnx.ModelProto:
    """The model with other values in a stored tensor."""
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    values = numpy_helper.to_array(tensor)
    noise = np.random.default_rng(0).standard_normal(values.shape) * by
    changed = np.asarray((values + noise) * times, values.dtype)
    tensor.CopyFrom(numpy_helper.from_array(changed, name))
    return model


def all_at_once(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Every tensor of a float graph over all feeds, from one session that optimizes nothing."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    made = [name for node in model.graph.node for name in node.output]
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options)
    found = [session.run(made, one) for one in feeds]
    return {name: np.concatenate([one[i].ravel() for one in found]) for i, name in enumerate(made)}


def brute_force(
    reference: onnx.ModelProto, artifact: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]
) -> dict[str, float]:
    """Tensor to signal-to-noise ratio, of the tensors that have the same name."""
    ours, theirs = all_at_once(reference, feeds), all_at_once(artifact, feeds)
    return {name: output_error(ours[name], theirs[name]).snr_db for name in ours if name in theirs}
