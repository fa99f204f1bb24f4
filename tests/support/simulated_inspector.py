"""The layers of an engine, and the JSON of TensorRT's engine inspector, as each version spells it.

Only what qcompile reads is there; `inspector_shapes` has whole answers of public reports.

8.5: layers with Name, LayerType, Inputs of Name, Dimensions and "Format/Datatype", then Weights, TacticName.
Source: the ten graphs of TREX (tools/experimental/trt-engine-explorer in NVIDIA/TensorRT, release/8.5). The
layers of every profile are listed, those of others than the first with " [profile 1]" behind their names.
Source: trex/parser.py `filter_profiles`; Polygraphy, backend/trt/util.py `str_from_engine`: `num_layers //
num_optimization_profiles`, "In TRT 10, layer information is not specified per profile".

10.x: also Metadata. Source: NVIDIA/TensorRT issue 4020, of 10.2. Layers of the second compiler spell a type
alone, "Half", where others have a sentence. Source: issue 4397, of 10.10.

In both, a layer whose shapes are dynamic has no format, until the inspector is given an execution context
that knows them. Source: NvInferRuntime.h `IEngineInspector::setExecutionContext`; the words "N/A due to
dynamic shapes" are those that Polygraphy reads ("N/A" in `dtype_from_fmt_dtype`).

11.x: "Format/Datatype" became "Format" and "Datatype". Source: migration guide 11.0, "Migrating
IEngineInspector Usage from TensorRT 10.x to 11.x". TensorRT-RTX is given the same form, for which there is no
source: both forms are read.
"""

from __future__ import annotations

import json
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from simulated_network import kind_of

_SENTENCES = {
    # As in trex/activations.py in NVIDIA/TensorRT.
    "FLOAT": "Row major linear FP32",
    "HALF": "Channel major FP16 format where channel % 8 == 0",
    "BF16": "Channel major BFloat16 format where channel % 8 == 0",
    "INT8": "Thirty-two wide channel vectorized row major Int8 format",
    "INT32": "Row major linear Int32",
    "INT64": "Row major linear Int64 format",
    "BOOL": "Row major linear BOOL",
}
_WORDS = {
    "FLOAT": "Float", "HALF": "Half", "BF16": "BFloat16", "INT8": "Int8", "INT32": "Int32", "INT64": "Int64",
    "BOOL": "Bool", "FP8": "FP8", "UINT8": "UInt8",
}  # fmt: skip
_KERNELS = {
    "FLOAT": "f32f32_f32f32_f32", "HALF": "f16f16_f16f16_f16", "BF16": "bf16bf16_bf16f32_f32",
    "INT8": "i8i8_i8i32_f32",
}  # fmt: skip
_UNKNOWN = "N/A due to dynamic shapes"


COMPUTES = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
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
        inputs: Tensors: name, shape, type.
        weights: Type of its weights; empty without.
        onnx_names: The ONNX nodes it comes from.
        second_compiler: Whether it is of TensorRT's second compiler (Myelin), which spells types otherwise.

    Source: the tests' own.
    """

    name: str
    kind: str
    precision: str
    inputs: list[tuple[str, list[int], str]]
    weights: str = ""
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
        precision if _has_weights(layer, made_by) else "",
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
    block = EngineLayer(name, kind, first.precision, first.inputs, "", onnx_names, second_compiler=newer)
    return [*(layer for layer in layers if layer not in inside), block]


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


def _has_weights(layer: Any, made_by: dict[str, Any]) -> bool:
    constants = [_kind_behind(tensor, made_by) == "CONSTANT" for tensor in layer._inputs[1:2]]
    return kind_of(layer) in COMPUTES and bool(layer._weights or any(constants))


def listed_profiles(module: Any, plan: dict[str, Any]) -> int:
    """How often the layers are listed, and counted in `num_layers`: before 10 for each profile."""
    return len(plan["profiles"]) or 1 if _by_profile(module) else 1


def _by_profile(module: Any) -> bool:
    return not hasattr(module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")


def _entries(module: Any, plan: dict[str, Any], *, shapes_known: bool) -> list[dict[str, Any]]:
    """Source: the ten graphs of trt-engine-explorer, trex/activations.py, and issues 4020 and 4397."""
    split, entries = _split(module), []
    for layer in plan["layers"]:
        newer, weights = layer["second_compiler"], layer["weights"]
        inputs = [_tensor(layer, tensor, split, shapes_known or newer) for tensor in layer["inputs"]]
        entry: dict[str, Any] = {"Name": layer["name"], "LayerType": layer["kind"], "Inputs": inputs}
        if weights and not newer:
            entry["Weights"] = {"Type": _WORDS[weights]}
        if weights:
            form = "gemm" if newer else "fprop_implicit_gemm"
            entry["TacticName"] = f"sm80_xmma_{form}_{_KERNELS[layer['precision']]}_tilesize128x64x32"
        if hasattr(module.ILayer, "metadata"):
            entry["Metadata"] = "\x1f".join(f"[ONNX Layer: {name}]" for name in layer["onnx_names"] if name)
        entries.append(entry)
    return entries


def _tensor(layer: dict[str, Any], tensor: list[Any], split: bool, told: bool) -> dict[str, Any]:
    """Source: trex/activations.py, and the migration guide of 11.0, as the head of this file says."""
    name, shape, dtype = tensor
    told = told or not any(extent < 0 for extent in shape)
    word = _WORDS[dtype] if layer["second_compiler"] else _SENTENCES.get(dtype, _WORDS[dtype])
    formats = {"Format": word, "Datatype": _WORDS[dtype]} if split else {"Format/Datatype": word}
    return {"Name": name, "Dimensions": shape} | (formats if told else dict.fromkeys(formats, _UNKNOWN))


def _split(module: Any) -> bool:
    """Whether the form is that of 11: it came with the end of weak types."""
    return not hasattr(module.BuilderFlag, "FP16")


class Inspector:
    """EngineInspector.

    Source: NvInferRuntime.h of release/10.13, `IEngineInspector::setExecutionContext`: only with all input
    shapes does it show formats.
    """

    _context: Any = None

    @property
    def execution_context(self) -> Any:
        return self._context and self._context()

    @execution_context.setter
    def execution_context(self, context: Any) -> None:
        # Source: python/src/infer/pyCore.cpp, EngineInspector: the binding keeps no context alive.
        self._context = weakref.ref(context)

    def get_engine_information(self, format: Any) -> str:
        return json.dumps({"Layers": self._layers()})

    def get_layer_information(self, index: int, format: Any) -> str:
        layers = (
            self._layers()
        )  # of ProfilingVerbosity.NONE, "Do not print any layer information" (NvInfer.h)
        return json.dumps(layers[index]) if layers else ""

    def _layers(self) -> list[Any]:
        """The words on each layer, for each profile where the version lists them so."""
        # Source: trex/parser.py, `filter_profiles`, and NvInferRuntime.h, `ProfilingVerbosity`.
        plan, known, entries = self._engine._plan, self._known_profile(), []
        for profile in range(0 if plan["verbosity"] == "NONE" else listed_profiles(self._module, plan)):
            suffix = f" [profile {profile}]" if profile else ""
            told = known is not None
            if _by_profile(self._module):  # and of a range none: tried with 8.5.3.1 on an H200, 2026-11-28
                ranges = plan["profiles"][profile].values() if plan["profiles"] else ()
                told = known == profile and not any(low != high for low, _, high in ranges)
            for entry in _entries(self._module, plan, shapes_known=told):
                entry["Name"] += suffix
                entries.append(entry if plan["verbosity"] == "DETAILED" else entry["Name"])
        return entries

    def _known_profile(self) -> int | None:
        context = self.execution_context
        known = context is not None and context._all_known()
        return int(context.active_optimization_profile) if known else None
