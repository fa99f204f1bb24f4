"""Behaviours of TensorRT's ONNX parser: TensorRT-RTX's real parser parses, and its network is copied.

Source: the parser of TensorRT-RTX 1.7.1. Where older parsers differ, onnx/onnx-tensorrt of branch 8.5-GA,
with file and line, and `parser_operators` for the operators that each version reads.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import onnx
import tensorrt_rtx as real
from simulated_network import FLOATS, known_creators, say

from qcompile.engines.tensorrt.log import make_log
from qcompile.engines.tensorrt.parser_operators import parser_of

_OLDER = {"CAST": "IDENTITY", "SQUEEZE": "SHUFFLE", "UNSQUEEZE": "SHUFFLE", "NORMALIZATION": "PLUGIN_V2"}
"""What stands in for a layer type before it existed.

Source: docs/Changelog.md, 8.6 EA ("All cast operations will now use the new CastLayer over the previous
IdentityLayer"); builtin_op_importers.cpp of 8.5-GA, importers of Squeeze, Unsqueeze and, line 2192,
InstanceNormalization.
"""
_NO_PLUGIN = 'creator && "Plugin not found, are the plugin name, version, and namespace correct?"'
_NO_ZERO_POINT = (
    # Source: builtin_op_importers.cpp:1206 of 8.5-GA, QuantDequantLinearHelper: of both operators.
    '(inputs.size() == 3) && "This version of TensorRT requires 3 inputs for the DequantizeLinear operator."'
)
_NO_BATCH = (
    # Source: ModelImporter.cpp:519 of 8.5-GA.
    "This version of the ONNX parser only supports TensorRT INetworkDefinitions with an explicit batch "
    "dimension. Please ensure the network was created using the EXPLICIT_BATCH NetworkDefinitionCreationFlag."
)


class ParserError:
    """IParserError; `_about` holds what each method returns.

    Source: NvOnnxParser.h of onnx-tensorrt 8.5-GA and 10.0-GA, `IParserError`.
    """

    def __init__(self, **about: Any) -> None:
        self._about = about

    def desc(self) -> str:
        return str(self._about["desc"])

    def node(self) -> int:
        return int(self._about["node"])

    def node_name(self) -> str:
        return str(self._about["name"])

    def node_operator(self) -> str:
        return str(self._about["operator"])


class ErrorList:
    """What a parser or a refitter refused. Source: NvOnnxParser.h, `IParser` and `IParserRefitter`."""

    _errors: list[Any]

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return self._errors[index]

    def _add_error(self, desc: str, node: int = -1, name: str = "", operator: str = "") -> None:
        error = self._module.ParserError(desc=desc, node=node, name=name, operator=operator)  # type: ignore[attr-defined]
        self._errors.append(error)


@functools.cache
def _rtx_reads(operator: str) -> bool:
    """Whether the real parser reads an operator. Source: TensorRT-RTX 1.7.1, asked."""
    logger = make_log(real).logger
    network = real.Builder(logger).create_network(0)
    return bool(real.OnnxParser(network, logger).supports_operator(operator))


class Parser(ErrorList):
    """OnnxParser. Source: onnx-tensorrt 8.5-GA, ModelImporter.cpp and NvOnnxParser.h; TensorRT-RTX 1.7.1."""

    def __init__(self, network: Any, log: Any) -> None:
        self._network, self._log = network, log
        self._errors: list[Any] = []

    def set_flag(self, flag: Any) -> None:
        pass

    def supports_operator(self, name: str) -> bool:
        return self._reads(name) or name in known_creators(self._network._builder)

    def _reads(self, operator: str) -> bool:
        known = parser_of(str(self._module.__version__))  # type: ignore[attr-defined]
        return _rtx_reads(operator) and (known is None or operator in known.operators)

    def parse_from_file(self, path: str, **_: Any) -> bool:
        model, network = onnx.load(path), self._network
        if not network._explicit:
            say(self, "ERROR", _NO_BATCH)
            return False
        names_nodes = hasattr(self._module.ParserError, "node_name")  # type: ignore[attr-defined]
        plugins: dict[str, str] = {}
        stand_in = onnx.ModelProto()
        stand_in.CopyFrom(model)
        for index, node in enumerate(stand_in.graph.node):
            node.name = node.name or f"node_of_{node.output[0]}"
            quantizes = node.op_type in ("QuantizeLinear", "DequantizeLinear")
            if quantizes and len(node.input) < 3 and not names_nodes:
                return self._refuse(index, node, _NO_ZERO_POINT)
            if node.domain in ("", "ai.onnx") and self._reads(node.op_type):
                continue
            if node.op_type not in known_creators(network._builder):
                return self._refuse(index, node, _NO_PLUGIN)
            plugins[node.name] = node.op_type
            node.op_type, node.domain = "Identity", ""
            del node.input[1:], node.attribute[:]
        sizes = _without_non_zero(stand_in)
        logger = make_log(real).logger
        builder = real.Builder(logger)
        strong = 1 << int(real.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        parsed = builder.create_network(strong)
        parser = real.OnnxParser(parsed, logger)
        if not parser.parse(stand_in.SerializeToString(), str(path)):
            error = parser.get_error(0)
            index = max(error.node(), 0)
            return self._refuse(index, model.graph.node[index], error.desc())
        network._model = model
        _copy(network, parsed, stand_in, plugins, sizes)
        return True

    def _refuse(self, index: int, node: Any, reason: str) -> bool:
        old = not hasattr(self._module.ParserError, "node_name")  # type: ignore[attr-defined]
        desc = f"Assertion failed: {reason}" if old else reason
        self._add_error(desc, index, node.name, node.op_type)
        say(self, "ERROR", f'While parsing node number {index} [{node.op_type} -> "{node.output[0]}"]:')
        say(self, "ERROR", f"ERROR: {desc}")
        return False


def _without_non_zero(model: onnx.ModelProto) -> dict[str, str]:
    """Make inputs of what NonZero computes; returns output to input.

    Source: TensorRT-RTX 1.7.1 reads NonZero with a library of plugins alone, TensorRT has INonZeroLayer
    (NvInfer.h of release/8.5).
    """
    sizes = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "NonZero"}
    shapes = onnx.shape_inference.infer_shapes(model).graph.value_info
    model.graph.input.extend(value for value in shapes if value.name in sizes)
    kept = [node for node in model.graph.node if node.op_type != "NonZero"]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return sizes


def _copy(
    network: Any, parsed: Any, model: onnx.ModelProto, plugins: dict[str, str], sizes: dict[str, str]
) -> None:
    """Fill a network with the layers of the real one, in the types of its version.

    Source: onnx-tensorrt 8.5-GA, onnx2trt_utils.cpp, `convertDtype`: INT64 becomes INT32; where types are
    weak, floats are FLOAT until TensorRT chooses (NvInfer.h of release/8.6, `ILayer::setOutputType`), in 8
    what a QuantizeLinear makes, too: "x_QuantizeLinear_Output -> (-1, 16, 16, 16)[FLOAT]" (its parser's log
    at 8.5.3.1 on an H200, 2026-11-28).
    """
    module, nodes = network._module, {node.name: node for node in model.graph.node}
    initializers = {item.name: item for item in model.graph.initializer}
    network._weights = initializers
    tensors: dict[str, Any] = {}
    no_types = module.__version__.startswith("8.")
    kinds, typed = (*FLOATS, "INT8") if no_types else FLOATS, () if no_types else ("QUANTIZE",)

    def tensor(source: Any, role: str = "", *, weak: bool = False) -> Any:
        if source.name not in tensors:
            dtype = source.dtype.name
            dtype = "INT32" if dtype == "INT64" and "INT64" not in module.DataType.__members__ else dtype
            dtype = "FLOAT" if weak and dtype in kinds else dtype
            made = network._tensor(source.name, dtype, tuple(source.shape), role)
            made._holds_shape = bool(role) and source.is_shape_tensor
            tensors[source.name] = made
        return tensors[source.name]

    inputs = [parsed.get_input(index) for index in range(parsed.num_inputs)]
    network._inputs += [tensor(item, "input") for item in inputs if item.name not in sizes]
    computed = {item.name: tensor(item) for item in inputs if item.name in sizes}
    for layer in map(parsed.get_layer, range(parsed.num_layers)):
        match = re.search(r"\[ONNX Layer: (.*)\]", layer.metadata)
        onnx_name = match[1] if match else ""
        node = nodes.get(onnx_name)
        kind = layer.type.name
        if onnx_name in plugins:
            kind = "PLUGIN_V3" if "PLUGIN_V3" in module.LayerType.__members__ else "PLUGIN_V2"
        kind = kind if kind in module.LayerType.__members__ else _OLDER[kind]
        weak = not network._strong and kind not in ("CAST", "CONSTANT", *typed)
        inputs = [layer.get_input(index) for index in range(layer.num_inputs)]
        outputs = [layer.get_output(index) for index in range(layer.num_outputs)]
        copied = network._add(
            layer.name, kind, [tensor(item) for item in inputs if item is not None],
            [tensor(item, weak=weak) for item in outputs], onnx_name,
        )  # fmt: skip
        copied._operator = plugins.get(onnx_name) or (node.op_type if node is not None else "")
        if node is not None and kind.endswith("CONVOLUTION"):
            copied._weights = [name for name in node.input[1:] if name in initializers]
    for output, source in sizes.items():
        network._add(f"node_of_{output}", "NON_ZERO", [tensors[source]], [computed[output]])
    for index in range(parsed.num_outputs):
        network.mark_output(tensor(parsed.get_output(index)))


BEHAVIOURS: dict[str, Any] = {"OnnxParser": Parser, "ParserError": ParserError}
