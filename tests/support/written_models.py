"""Models written in ONNX's text form or as one node, and what ONNX Runtime computes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

Floats = NDArray[np.float32]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Floats:
    """Return normal values that depend on the seed and on the shape."""
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float32)


def noisy(array: Floats, share: float) -> Floats:
    """Return values with normal noise of a share of their standard deviation."""
    noise = np.random.default_rng(9).standard_normal(array.shape).astype(np.float32)
    return array + np.float32(share * array.std()) * noise


def text_model(
    text: str, *, opset: int = 17, ir_version: int = 8, also: str = "", **weights: NDArray[Any]
) -> onnx.ModelProto:
    """Return a model with weights; `text` is "(inputs) => (outputs) { body }", `also` further opsets."""
    model = parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}{also}]> tiny {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def model_of(
    text: str, *, opset: int = 17, named: bool = False, imports: str = "", **weights: NDArray[Any]
) -> onnx.ModelProto:
    """Return a checked model with weights; those that the text declares without values are normal ones.

    `named` gives each node its operator and number, `imports` further opsets.
    """
    model = text_model(text, opset=opset, ir_version=8 if opset < 19 else 10, also=imports, **weights)
    for number, node in enumerate(model.graph.node if named else ()):
        node.name = f"{node.op_type.lower()}{number}"
    generator = np.random.default_rng(0)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        normals = (generator.standard_normal(shape) * 0.3).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(normals, value.name))
    del model.graph.value_info[:]
    onnx.checker.check_model(model)
    return model


def one_node(
    operator: str,
    inputs: dict[str, int],
    outputs: dict[str, int],
    *,
    opset: int = 21,
    domain: str = "",
    stored: tuple[onnx.TensorProto, ...] = (),
    **how: Any,
) -> onnx.ModelProto:
    """Return a model of one node; tensors are named with their ONNX types, and have any shape."""
    names = [*inputs, *(tensor.name for tensor in stored)]
    node = helper.make_node(operator, names, [*outputs], domain=domain, **how)
    read, made = (
        [helper.make_tensor_value_info(name, kind, None) for name, kind in some.items()]
        for some in (inputs, outputs)
    )
    graph = helper.make_graph([node], "one", read, made, stored)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def computed(
    model: onnx.ModelProto | Path,
    feeds: dict[str, NDArray[Any]],
    *names: str,
    optimize: bool = False,
    optimized: Path | None = None,
    **config: str,
) -> dict[str, NDArray[Any]]:
    """Return the outputs, or the tensors `names`, of one thread of ONNX Runtime.

    Args:
        names: Tensors in place of the outputs; inputs are not among them.
        optimize: Whether nodes are fused; without, each is computed by its own kernel.
        optimized: File for the graph that the optimizer makes.
        config: Entries of the session's configuration, "__" for a dot.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    elif not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in config.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    whole = onnx.ModelProto()
    whole.CopyFrom(onnx.load(model) if isinstance(model, Path) else model)
    present = {value.name for value in whole.graph.output}
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in {*names} - present)
    session = onnxruntime.InferenceSession(
        whole.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = [*names] or [value.name for value in whole.graph.output]
    return dict(zip(wanted, session.run(wanted, feeds), strict=True))


def outputs_of(
    model: onnx.ModelProto | Path,
    feeds: NDArray[Any] | dict[str, Any],
    *names: str,
    optimize: bool = False,
    optimized: Path | None = None,
) -> list[NDArray[Any]]:
    """Return the outputs, or other tensors, of a model that is fed `x` alone, or by name."""
    fed = feeds if isinstance(feeds, dict) else {"x": feeds}
    return list(computed(model, fed, *names, optimize=optimize, optimized=optimized).values())


def run_file(path: Path, **feeds: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the outputs of a file by name."""
    return computed(path, feeds)


def stored(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Return the initializers."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
