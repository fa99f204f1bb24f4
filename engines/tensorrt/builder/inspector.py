"""Read an engine's layers from TensorRT's inspector, in any version's format.

The inspector's answer may be empty (NVIDIA/TensorRT issues 4438 and 2583: an engine of several profiles),
truncated, or contain control characters (issue 2779). At a verbosity other than "detailed", layers are only
names. Unreadable parts count as unknown and are never an error, because the engine is already built.

| | 8.2 to 10 | 11 |
|---|---|---|
| inputs and outputs | "Bindings": names | "I/O Tensors": objects |
| a tensor's type | "Format/Datatype": a sentence, or in fused blocks a word | "Format" and "Datatype" |

(migration guide 11.0, "Migrating IEngineInspector Usage"; trex/activations.py for the sentences and words.
TREX is NVIDIA's engine explorer.)

An engine layer's name and metadata list the network layers in it:

    Conv_5 + Add_6 + Relu_7                        layers in one kernel (TREX, resnet fp16, 8.4)
    conv1.weight + QuantizeLinear_7 + Conv_9       with the fused constants and Q/DQ (TREX, resnet qat)
    Conv_48 + PWN(Clip_52)                         pointwise layers, sometimes nested (TREX, mobilenet_v2 qat)
    conv_a || conv_b                               layers side by side on one input
    Conv_0 + Relu_1 [profile 1]                    layers of the second profile (TREX, trex/parser.py)
    {ForeignNode[first...last]}                    a fused block: its first and last layer (issue 4397)
    /a/MatMul+/b/MatMul_myl0_44                    a kernel of a block; dots are underscores (issue 4397)

From 8.6 on `Metadata` lists the ONNX nodes, `[ONNX Layer: NAME | PROPERTY ...]`, adjacent or separated by a
control character (onnx-tensorrt, 10.0-GA importerUtils.cpp `processMetadata`; issue 2779). If a node becomes
several layers, each one's metadata has the node's name; the layers' names get numeric suffixes
(`generateUniqueName`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....errors import ArtifactError, BuildError
from ..adapter import Adapter
from ..plan import PlanNeeds, open_plan
from ..runner.io_tensors import InputRange

UNREPORTED = "unreported"
"""Precision of a layer for which the inspector reports no type."""

_PRECISIONS = {
    "uint8": "uint8", "int8": "int8", "fp8|e4m3|e5m2": "fp8", "int4": "int4", "fp4|e2m1": "fp4",
    "bf16|bfloat": "bf16", "half|fp16|float16": "fp16", "double|fp64|float64": "fp64", "float|fp32": "fp32",
    "int32": "int32", "int64": "int64", "bool": "bool",
}  # fmt: skip
"""Maps patterns to precisions; type names in answers are "Row major linear FP16 format" or "Half"."""

_TYPE_KEYS = ("Format/Datatype", "Datatype", "DataType", "Data Type")
_WEIGHT_KEYS = ("Weights", "ConvWeights")
"""The second is the key in "ConvActPool" layers: convolution and pooling (TREX, resnet-qat-residual)."""

_MOVE_ONLY = ("Reformat", "NoOp", "Shape", "Constant", "signal", "wait", "TrainStation")
"""Kinds of layers that do not compute. The last three wait for other streams, or for data-dependent sizes
(trex/parser.py, TREX v0.1.8)."""

_BLOCKS = ("myelin", "kgen", "fusion")
_PRODUCT = re.compile("conv|gemm|matrix|matmul|fullyconnected", re.IGNORECASE)
"""Kinds of layers that multiply: "CaskConvolution", "CudaDepthwiseConvolution", "gemm", "MatrixMultiply"."""

_TYPE = r"(?:tf32|bf16|f16|f32|f64|i8|u8|i32|e4m3|e5m2|e2m1)"
_OPERANDS = re.compile(rf"_{_TYPE}{_TYPE}_({_TYPE}){_TYPE}_{_TYPE}(?:_|$)")
"""Types in a kernel's name, in this order: input, output, operand, sum, scale. The operands of
`_i8f16_i8i32_f32_` are INT8 (TREX)."""
_OF_OPERANDS = {
    "i8": "int8", "e4m3": "fp8", "e5m2": "fp8", "bf16": "bf16", "f16": "fp16", "f32": "fp32", "tf32": "fp32",
}  # fmt: skip

_PROFILE = re.compile(r"\s*\[profile +(\d+)\]")
_BLOCK = re.compile(r"\{ForeignNode\[(.*)\.\.\.(.*)\]\}", re.DOTALL)
_KERNEL = re.compile(r"_myl\d+_\d+$")
_SEPARATORS = re.compile(r" \+ | \|\| |[\x1e\x1f]")
_POINTWISE = re.compile(r"PWN\(|\)|, ")
_NODE = re.compile(r"\[ONNX Layer: (.*?)(?: \| [^\x1e\x1f]*?)?\](?=\[ONNX Layer: |[\x1e\x1f\s+]|$)")


@dataclass(frozen=True)
class Members:
    """The network layers and ONNX nodes in an engine layer; `kernels` have underscores in place of dots."""

    layers: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()

    def has(self, layer: str, node: str = "") -> bool:
        """Return whether the engine layer contains a network layer, or its ONNX node."""
        is_named = layer in self.layers or layer in self.nodes or layer.replace(".", "_") in self.kernels
        return is_named or (bool(node) and node in self.nodes)


@dataclass(frozen=True)
class EngineLayer:
    """A layer of an engine; unreported fields are empty.

    `kind` is TensorRT's, for instance "CaskConvolution"; `tactic` is the kernel's name. `precision` is the
    type of the first input, the weights or the kernel's operands: the first that is reported, else
    "unreported". Fused blocks are always "unreported": their inner types can differ.
    """

    name: str
    kind: str
    precision: str
    tactic: str
    members: Members = field(default_factory=Members)

    @property
    def is_block(self) -> bool:
        """Return whether this is a fused block of Myelin (TensorRT's second compiler), with unknown types
        inside. A block's kernel is no block if its kind is "gemm" or its tactic names operand types."""
        fused = self.kind.lower() in _BLOCKS and not _OPERANDS.search(self.tactic)
        return fused or "{ForeignNode[" in self.name

    @property
    def multiplies(self) -> bool:
        """Return whether this is a convolution or matrix product, possibly fused."""
        return bool(_PRODUCT.search(self.kind)) or bool(_OPERANDS.search(self.tactic))


@dataclass(frozen=True)
class Inspection:
    """The inspector's report about an engine in one profile.

    `layers` compute; `moving` counts layers that only copy, reformat, wait or hold constants; `count` counts
    all layers. `problem` explains missing information. `memory_bytes` is for one execution context.
    """

    layers: Sequence[EngineLayer] = ()
    moving: int = 0
    problem: str = ""
    memory_bytes: int = 0
    weights_bytes: int | None = None
    count: int = 0

    def as_json(self) -> dict[str, object]:
        """Return the form written to manifests; "engine_layers" is None if no layer could be read."""
        precisions: dict[str, Counter[str]] = {}
        for layer in self.layers:
            precisions.setdefault(layer.precision, Counter())[layer.kind or "of unknown kind"] += 1
        return {
            "engine_layers": len(self.layers) if self.layers or not self.problem else None,
            "engine_layers_by_precision": {name: dict(counts) for name, counts in precisions.items()},
            "fused_layers": sum(1 for layer in self.layers if " + " in layer.name or layer.is_block),
            "moving_layers": self.moving,
            "tactics": len({layer.tactic for layer in self.layers if layer.tactic}),
            "device_memory_bytes": self.memory_bytes,
            "weights_bytes": self.weights_bytes,
            **({"inspector": f"not known: {self.problem}"} if self.problem else {}),
        }


def read_layers(answer: object, profile: int = 0) -> Inspection:
    """Return the layers of a profile from an answer of the inspector.

    `answer` is the text of `get_engine_information`, or a list of decoded answers of `get_layer_information`.
    Before TensorRT 10 an answer lists the layers of every profile, and only the names of the first profile's
    layers lack a profile number (trex/parser.py). From 10 on it lists the layers once for all profiles
    (Polygraphy, backend/trt/util.py `str_from_engine`).
    """
    value, problem = (answer, "") if isinstance(answer, list) else decode_answer(answer)
    if problem:
        return Inspection(problem=problem)
    entries = value.get("Layers") if isinstance(value, dict) else value
    if not isinstance(entries, list):
        return Inspection(problem="its answer holds no list of layers")
    numbers = [_PROFILE.search(_name(entry)) for entry in entries]
    profiles = [int(number[1][:9]) if number else 0 for number in numbers]
    number_of_profile = profile if profile in profiles else 0
    layers, moving, unreadable = [], 0, 0
    for entry, its_profile in zip(entries, profiles, strict=True):
        if its_profile != number_of_profile:
            continue
        if isinstance(entry, str):
            layers.append(EngineLayer(entry, "", UNREPORTED, "", parse_members(entry)))
        elif not isinstance(entry, dict):
            unreadable += 1
        elif entry.get("LayerType") in _MOVE_ONLY:
            moving += 1
        else:
            layers.append(_layer(entry))
    return Inspection(layers, moving, f"{unreadable} of its layers cannot be read" if unreadable else "")


def decode_answer(answer: object) -> tuple[Any, str]:
    """Return an answer's JSON value and "", or None and the reason why it cannot be read."""
    if answer is None or (isinstance(answer, str) and not answer.strip("\0 \t\r\n")):
        return None, "its answer is empty"
    if not isinstance(answer, str):
        return None, f"its answer is a {type(answer).__name__}"
    try:
        return json.loads(answer.strip("\0"), strict=False), ""
    except (ValueError, RecursionError):
        return None, "its answer is no JSON, or is cut off"


def _layer(entry: dict[str, Any]) -> EngineLayer:
    name, kind, tactic = _name(entry), _text(entry, "LayerType"), _text(entry, "TacticName")
    layer = EngineLayer(name, kind, UNREPORTED, tactic, parse_members(name, _text(entry, "Metadata")))
    if layer.is_block:
        return layer
    inputs = entry.get("Inputs")
    first = inputs[0] if isinstance(inputs, list) and inputs else {}
    sources = [first.get(key) for key in _TYPE_KEYS] if isinstance(first, dict) else []
    weights = [entry.get(key) for key in _WEIGHT_KEYS]
    sources += [part.get("Type") for part in weights if isinstance(part, dict)]
    operands = _OPERANDS.search(tactic)
    precisions = [*map(parse_precision, sources), _OF_OPERANDS.get(operands[1] if operands else "")]
    reported = (precision for precision in precisions if precision not in (None, UNREPORTED))
    return replace(layer, precision=next(reported, UNREPORTED))


def parse_precision(type_name: object) -> str:
    """Return the precision of a type's name; UNREPORTED for "N/A due to dynamic shapes"."""
    text = type_name.lower() if isinstance(type_name, str) else ""
    return next((name for pattern, name in _PRECISIONS.items() if re.search(pattern, text)), UNREPORTED)


def _name(entry: object) -> str:
    return _text(entry, "Name") if isinstance(entry, dict) else entry if isinstance(entry, str) else ""


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""


def parse_members(name: str, metadata: str = "") -> Members:
    nodes = frozenset(_NODE.findall(metadata))
    plain = _PROFILE.sub("", name)
    kernel = _KERNEL.sub("", plain)
    if kernel != plain:
        return Members(nodes=nodes, kernels=frozenset(_parts(kernel, "+")))
    block = _BLOCK.search(plain)
    if block is not None:
        return Members(frozenset(part for end in block.groups() for part in _parts(end)), nodes)
    return Members(frozenset(_parts(plain)), nodes)


def node_in_metadata(layer: Any) -> str:
    """Return the first ONNX node in a network layer's metadata; "" in TensorRT 8.5."""
    match = _NODE.search(getattr(layer, "metadata", ""))
    return match.group(1) if match else ""


def _parts(text: str, separator: str = "") -> list[str]:
    parts = text.split(separator) if separator else _SEPARATORS.split(text)
    return [*parts, *(inner for part in parts if "PWN(" in part for inner in _POINTWISE.split(part) if inner)]


def inspect_plan(
    adapter: Adapter, plan: Any, needs: PlanNeeds, profiles: Sequence[Sequence[InputRange]]
) -> list[Inspection]:
    """Deserialize a plan on this machine's GPU and inspect it in each profile, at the profile's OPT shapes.

    Reported types depend on shapes: without a context that has shapes, TensorRT reports "N/A due to dynamic
    shapes". TensorRT 8.5.3.1 does so even with shapes if a profile permits several (an H200, 2026-11-28);
    then the weights and the kernel's name show the types.
    """
    try:
        opened = open_plan(adapter, plan, needs, subject="the engine just built")
    except ArtifactError as error:
        raise BuildError(error.message) from error
    engine = opened.engine
    context = engine.create_execution_context() if profiles else None
    if profiles and context is None:
        problem = f"the engine just built cannot run here: {opened.said()}"
        raise BuildError(problem, hint="lower `max_shapes`, or free memory on the GPU")
    inspector = engine.create_engine_inspector()
    stat = getattr(adapter.module, "EngineStat", None)  # from 10 on
    inspections = []
    for index, ranges in enumerate(profiles or [()]):
        shape_values: list[Any] = []
        problem = _choose_shapes(context, index, ranges, shape_values)
        if context is not None and not problem:
            inspector.execution_context = context
        report = _inspect_profile(adapter, inspector, engine, index)
        weights = None if stat is None else int(engine.get_engine_stat(stat.TOTAL_WEIGHTS_SIZE))
        problem = "; ".join(filter(None, [problem, report.problem]))
        memory, count = adapter.memory_bytes(engine), int(engine.num_layers)
        report = replace(report, problem=problem, memory_bytes=memory, weights_bytes=weights, count=count)
        inspections.append(report)
        del shape_values
    del inspector  # before the engine: in TensorRT 8.5 the inspector does not hold the engine (pyCore.cpp)
    return inspections


def _choose_shapes(context: Any, index: int, ranges: Sequence[InputRange], shape_values: list[Any]) -> str:
    """Set the OPT shapes of a profile on a context; return TensorRT's refusal, "" if it accepts. The
    bindings return False, or raise RuntimeError (python/src/infer/pyCore.cpp)."""
    try:
        if index and not context.set_optimization_profile_async(index, 0):  # a new context has profile 0
            return f"profile {index} cannot be chosen"
        for item in ranges:
            if item.of_values:
                is_int64 = str(context.engine.get_tensor_dtype(item.name)).endswith("INT64")  # from 10 on
                shape_values.append(np.array(item.opt, np.int64 if is_int64 else np.int32))
                accepted = context.set_tensor_address(item.name, shape_values[-1].ctypes.data)
            else:
                accepted = context.set_input_shape(item.name, item.opt)
            if not accepted:
                return f"profile {index} does not take the OPT shape of {item.name!r}"
    except (RuntimeError, ValueError, TypeError) as error:
        return f"profile {index} does not take its OPT shapes: {error}"
    return ""


def _inspect_profile(adapter: Adapter, inspector: Any, engine: Any, profile: int) -> Inspection:
    """Return the inspector's report about a profile: for the whole engine, or else layer by layer."""
    whole = read_layers(_answer(adapter, inspector.get_engine_information), profile)
    if (whole.layers or whole.moving) and not whole.problem:
        return whole
    count = engine.num_layers
    answers = [decode_answer(_answer(adapter, inspector.get_layer_information, at)) for at in range(count)]
    unreadable = sum(1 for _, problem in answers if problem)
    single = read_layers([answer for answer, problem in answers if not problem], profile)
    if not single.layers and not single.moving:
        return Inspection(problem=whole.problem or ("" if not count else "it names no layer"))
    problem = f"{unreadable} of {count} layers have no answer" if unreadable else single.problem
    return Inspection(single.layers, single.moving, problem)


def _answer(adapter: Adapter, ask: Any, *which: int) -> object:
    """Return one answer; None if there is no answer or it is not UTF-8 (a truncated name)."""
    try:
        return ask(*which, adapter.module.LayerInformationFormat.JSON)
    except (UnicodeDecodeError, RuntimeError):
        return None
