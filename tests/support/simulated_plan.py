"""What a simulated build makes of a network: the layers of the engine, and the plan that holds them.

A plan begins with the bytes that real ones begin with, then JSON, then as many zeros as its weights have.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from simulated_network import kind_of

COMPUTES = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
MAGIC = {"tensorrt": b"ftrt", "tensorrt_rtx": b"vtrt"}

_FOLDED = ("CONSTANT", "DEQUANTIZE", "SHAPE", "IDENTITY")
_TYPES = {
    # "LayerType" of the inspector's JSON. CaskConvolution: NVIDIA's developer guide, engine inspector;
    # gemm: github.com/NVIDIA/TensorRT/issues/4397 (10.x); the others: trex/colors.py in NVIDIA/TensorRT.
    "CONVOLUTION": "CaskConvolution", "DECONVOLUTION": "CaskDeconvolution", "QUANTIZE": "Reformat",
    "CAST": "Reformat", "SHUFFLE": "Shuffle", "SQUEEZE": "NoOp", "UNSQUEEZE": "NoOp",
    "POOLING": "CaskPooling",
    "REDUCE": "Reduce", "SOFTMAX": "SoftMax", "ELEMENTWISE": "ElementWise", "ACTIVATION": "PointWiseV2",
    "SLICE": "Slice", "CONCATENATION": "NoOp", "SCALE": "Scale",
}  # fmt: skip


@dataclass
class EngineLayer:
    """One layer of an engine.

    Attributes:
        name: The network's layers it is made of, joined by " + ".
        kind: Its "LayerType".
        precision: What it computes in, as `DataType` spells it.
        inputs, outputs: Tensors: name, shape, type.
        weights: Type and count of its weights; None without.
        onnx_names: The ONNX nodes it comes from.
        second_compiler: Whether it is of TensorRT's second compiler (Myelin), which spells types otherwise.

    Source: the tests' own.
    """

    name: str
    kind: str
    precision: str
    inputs: list[tuple[str, list[int], str]]
    outputs: list[tuple[str, list[int], str]]
    weights: tuple[str, int] | None = None
    onnx_names: list[str] = field(default_factory=list)
    second_compiler: bool = False


def engine_layers(network: Any, precisions: dict[str, str], blocks: set[str]) -> list[EngineLayer]:
    """Return an engine's layers: pointwise ones fused into what they follow, Q/DQ and constants gone.

    Args:
        network: INetworkDefinition.
        precisions: Layer that computes to what it computes in.
        blocks: Network layers that the engine has as one block of its second compiler.

    Source: docs.nvidia.com, "Types of fusions": pointwise layers go into the convolution or product before
    them.
    """
    made_by = {tensor._name: layer for layer in network._layers for tensor in layer._outputs}
    uses = Counter(tensor._name for layer in network._layers for tensor in layer._inputs)
    found: list[EngineLayer] = []
    home: dict[str, EngineLayer] = {}
    kinds = network._module.LayerType.__members__
    for layer in network._layers:
        kind, source = kind_of(layer), layer._inputs[0]._name if layer._inputs else ""
        if _folded(layer, made_by):
            continue
        host = home.get(source)
        if host and kind in ("ACTIVATION", "ELEMENTWISE") and uses[source] == 1 and not host.second_compiler:
            host.name += f" + {layer._name}"
            host.outputs = _tensors(layer._outputs, host.precision)
            host.onnx_names.append(layer._onnx_name)
            home[layer._outputs[0]._name] = host
            continue
        made = _engine_layer(layer, made_by, precisions, len(found), newer="CAST" in kinds)
        found.append(made)
        if kind in COMPUTES:
            home[layer._outputs[0]._name] = made
    return _with_block(found, blocks, newer="CAST" in kinds)


def _folded(layer: Any, made_by: dict[str, Any]) -> bool:
    """Source: docs.nvidia.com, "Explicit quantization": Q/DQ of weights and of fused tensors are no layers of
    the engine.
    """
    kind = kind_of(layer)
    if kind == "QUANTIZE":  # of weights, or fused into what makes the tensor
        return layer._inputs[0]._name in made_by
    helper = layer._name.startswith("ONNXTRT_") or layer._name.startswith("(Unnamed Layer")
    return kind in _FOLDED or helper


def _engine_layer(
    layer: Any, made_by: dict[str, Any], precisions: dict[str, str], index: int, *, newer: bool
) -> EngineLayer:
    """Source: tools/experimental/trt-engine-explorer/trex/colors.py and NVIDIA/TensorRT issue 4397, for the
    kinds and names.
    """
    kind, name = kind_of(layer), layer._name
    precision = precisions.get(name, layer._outputs[0]._dtype)
    source = layer._inputs[0]._dtype if kind in ("QUANTIZE", "CAST") else precision
    made = EngineLayer(
        name,
        _TYPES.get(kind, kind.capitalize()),
        precision,
        _tensors([tensor for tensor in layer._inputs if _kind_behind(tensor, made_by) != "CONSTANT"], source),
        _tensors(layer._outputs, precision),
        _weights(layer, made_by, precision),
        [layer._onnx_name],
    )
    if kind == "MATRIX_MULTIPLY":
        made.kind = "gemm" if newer else "MatrixMultiply"
        made.second_compiler = newer
        made.name = f"{name.replace('.', '_')}_myl0_{index}" if newer else name
    return made


def _with_block(layers: list[EngineLayer], blocks: set[str], *, newer: bool) -> list[EngineLayer]:
    """Put the named layers into one block: of 8.5 "{ForeignNode[...]}", later a kernel of its own name.

    Source: NVIDIA/TensorRT issues 3067 ("{ForeignNode[...]}", 8.x) and 4397 ("__myl_...", 10.x).
    """
    inside = [layer for layer in layers if blocks & {*layer.name.split(" + "), *layer.onnx_names}]
    if not inside:
        return layers
    first, last = inside[0], inside[-1]
    onnx_names = [name for layer in inside for name in layer.onnx_names]
    name = f"__myl_{'_'.join(layer.kind for layer in inside)}_fused_myl0_0" if newer else (
        f"{{ForeignNode[{first.name.split(' + ')[0]}...{last.name.split(' + ')[-1]}]}}"
    )  # fmt: skip
    kind = "kgen" if newer else "Myelin"
    block = EngineLayer(
        name, kind, first.precision, first.inputs, last.outputs, None, onnx_names, second_compiler=newer
    )
    kept = [layer for layer in layers if layer not in inside]
    return [*kept, block]


def _tensors(tensors: list[Any], precision: str) -> list[tuple[str, list[int], str]]:
    floats = ("FLOAT", "HALF", "BF16", "INT8")
    return [
        (tensor._name, list(tensor._shape), precision if tensor._dtype in floats else tensor._dtype)
        for tensor in tensors
    ]


def _kind_behind(tensor: Any, made_by: dict[str, Any]) -> str:
    """The kind of layer a tensor comes from, looking through Q/DQ and what only moves data.

    Source: the tests' own.
    """
    layer = made_by.get(tensor._name)
    while layer is not None and kind_of(layer) in ("QUANTIZE", "DEQUANTIZE", "SHUFFLE") and layer._inputs:
        layer = made_by.get(layer._inputs[0]._name)
    return kind_of(layer) if layer is not None else ""


def _weights(layer: Any, made_by: dict[str, Any], precision: str) -> tuple[str, int] | None:
    """Source: the tests' own."""
    if kind_of(layer) not in COMPUTES:
        return None
    items = [layer._network._weights[name] for name in layer._weights[:1]]
    for tensor in layer._inputs[1:2]:
        if _kind_behind(tensor, made_by) == "CONSTANT":
            return (precision, _count(tensor._shape))
    return (precision, _count(items[0].dims)) if items else None


def _count(shape: Any) -> int:
    """Source: the tests' own."""
    count = 1
    for extent in shape:
        count *= extent
    return count


def plugins_of(network: Any) -> list[str]:
    """Return the creators that a plan needs when it is loaded.

    Source: onnx-tensorrt 8.5-GA, builtin_op_importers.cpp, importer of InstanceNormalization; others are the
    test's own, with one creator of the operator's name.
    """
    operators = {layer._operator for layer in network._layers if kind_of(layer).startswith("PLUGIN")}
    return sorted(f"{name}_TRT" if name == "InstanceNormalization" else name for name in operators)


def weight_entries(network: Any) -> dict[str, dict[str, Any]]:
    """Return each weight that can be refitted to its type, shape, size and digest.

    Source: NvInferRuntime.h of release/10.13, `IRefitter::getAllWeights`, for the names; the rest is the
    tests' own.
    """
    from onnx import numpy_helper

    found = {}
    for name, item in network._weights.items():
        array = numpy_helper.to_array(item)
        if array.dtype.kind in "iu" and array.dtype.itemsize > 1:
            continue  # shapes and indices
        found[name] = {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "bytes": array.nbytes,
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
        }
    return found


def write_plan(plan: dict[str, Any], *, with_weights: bool) -> bytes:
    """Serialize a plan; without weights it holds none of their digests.

    Source: the tests' own; the first bytes are those of real plans, as TensorRT-RTX 1.7.1 writes
    them.
    """
    weights = plan["weights"]
    if not with_weights:
        plan = {**plan, "weights": {name: {**entry, "sha256": ""} for name, entry in weights.items()}}
    size = sum(entry["bytes"] for entry in weights.values()) if with_weights else 0
    return MAGIC[plan["module"]] + json.dumps(plan).encode() + bytes(size)


def read_plan(content: Any) -> dict[str, Any] | None:
    """Return what `write_plan` wrote; None for anything else.

    Source: the tests' own.
    """
    content = bytes(content)
    if content[:4] not in MAGIC.values():
        return None
    try:
        plan: dict[str, Any] = json.loads(content[4:].rstrip(b"\0"))
    except ValueError:
        return None
    return plan
