"""Faults planted in graphs, and all of their tensors at once: what a search with few taps is held against."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from written_models import computed, text_model

from qcompile.model.graph.graph import infer_types
from qcompile.model.outputs.judgement import output_error


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
    made = [name for node in model.graph.node for name in node.output]
    found = [computed(model, one, *made) for one in feeds]
    return {name: np.concatenate([one[name].ravel() for one in found]) for name in made}


def brute_force(
    reference: onnx.ModelProto, artifact: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]
) -> dict[str, float]:
    """Tensor to signal-to-noise ratio, of the tensors that have the same name."""
    ours, theirs = all_at_once(reference, feeds), all_at_once(artifact, feeds)
    return {name: output_error(ours[name], theirs[name]).snr_db for name in ours if name in theirs}


def scaled(model: onnx.ModelProto, tensor: str, times: float) -> onnx.ModelProto:
    """The model with a tensor that is so many times too large; a model without the tensor stays."""
    for index, node in enumerate(model.graph.node):
        if tensor in node.output:
            kind = infer_types(model).get(tensor, "float32")
            right = f"{tensor}/right"
            node.output[list(node.output).index(tensor)] = right
            factor = numpy_helper.from_array(np.asarray(times, kind), f"{tensor}/factor")
            model.graph.initializer.append(factor)
            wrong = onnx.helper.make_node("Mul", [right, factor.name], [tensor], f"{tensor}/wrong")
            model.graph.node.insert(index + 1, wrong)
            return model
    return model


def random_network(layers: int, seed: int) -> onnx.ModelProto:
    """So many layers of x [batch,8] to y: products, activations, and sums of two earlier tensors."""
    generator = np.random.default_rng([layers, seed])
    text, weights, tensors = "", {}, ["x"]
    for number in range(layers):
        name, last = f"t{number}" if number < layers - 1 else "y", tensors[-1]
        kind = generator.integers(0, 4)
        if kind == 0 and len(tensors) > 2:
            other = tensors[int(generator.integers(max(0, len(tensors) - 6), len(tensors) - 1))]
            made = f"Add ({last}, {other})"
        elif kind == 1:
            made = f"LeakyRelu <alpha = 0.5> ({last})"
        else:
            weights[f"w{number}"] = generator.standard_normal((8, 8)).astype(np.float32) * 0.35
            made = f"MatMul ({last}, w{number})"
        text += f"[n{number}] {name} = {made} "
        tensors.append(name)
    return text_model(f"(float[batch,8] x) => (float[batch,8] y) {{ {text} }}", **weights)
