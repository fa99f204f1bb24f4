"""Behaviours of TensorRT's ONNX parser: an ONNX graph becomes a network as it does there.

Source: the parser of TensorRT-RTX 1.7.1, against which `test_recorded.py` holds it. Where older parsers
differ, onnx/onnx-tensorrt of branch 8.5-GA, with file and line. Left out are the helper layers, named
ONNXTRT_..., that compute shapes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulated_network import FLOATS, say
from simulated_operators import KINDS, LACKED, OLDER
from simulated_process import known_creators

_WEIGHTS = {
    # Inputs that the parser keeps as weights of the layer where they are initializers.
    "Conv": (1, 2), "ConvTranspose": (1, 2), "BatchNormalization": (1, 2, 3, 4), "LayerNormalization": (),
    "Reshape": (1,), "Squeeze": (1,), "Unsqueeze": (1,), "Slice": (1, 2, 3, 4), "Clip": (1, 2),
    "Resize": (1, 2, 3), "Expand": (1,), "ReduceMean": (1,), "ReduceSum": (1,), "TopK": (1,),
}  # fmt: skip

_SHAPES = {"Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "ConstantOfShape": (0,), "Resize": (3,)}
"""Inputs that hold a shape."""

_COMPUTED_ON_SHAPES = ("Cast", "Concat", "Identity", "Mul", "Add", "Slice", "Gather", "Squeeze", "Unsqueeze")

_NO_PLUGIN = 'creator && "Plugin not found, are the plugin name, version, and namespace correct?"'
_PLACES = {
    # Source: builtin_op_importers.cpp:5757 of 8.5-GA.
    True: ("builtin_op_importers.cpp", 5757, "importFallbackPluginImporter"),
    # Source: TensorRT-RTX 1.7.1, recorded.
    False: ("onnxOpCheckers.cpp", 998, "checkFallbackPluginImporter"),
}
_PLACE_OF_NODES = ("ModelImporter.cpp", 489, "parseNode")
_STORED = ("INT8", "UINT8", "FP8", "INT4", "FP4")
_FOLDED = ("Constant", "ConstantOfShape")


class ParserError:
    """IParserError; `_found` holds what each method returns.

    Source: NvOnnxParser.h of onnx-tensorrt 8.5-GA and 10.0-GA, `IParserError`; the recording
    tensorrt-rtx-1.7.1.116.jsonl has one.
    """

    def __init__(self, **found: Any) -> None:
        self._found = found

    def code(self) -> Any:
        return self._found["code"]

    def desc(self) -> str:
        return str(self._found["desc"])

    def file(self) -> str:
        return str(self._found["file"])

    def line(self) -> int:
        return int(self._found["line"])

    def func(self) -> str:
        return str(self._found["func"])

    def node(self) -> int:
        return int(self._found["node"])

    def node_name(self) -> str:
        return str(self._found["name"])

    def node_operator(self) -> str:
        return str(self._found["operator"])


class Refused(Exception):
    """A node that the parser does not take.

    Source: the tests' own.
    """


class Parser:
    """OnnxParser.

    Source: onnx-tensorrt 8.5-GA, ModelImporter.cpp and NvOnnxParser.h; TensorRT-RTX 1.7.1 by
    test_simulated_as_real.py.
    """

    def __init__(self, network: Any, log: Any) -> None:
        self._network, self._log = network, log
        self._errors: list[Any] = []
        self._flags = 0

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return self._errors[index]

    def clear_errors(self) -> None:
        self._errors = []

    @property
    def flags(self) -> int:
        return self._flags

    @flags.setter
    def flags(self, value: int) -> None:
        self._flags = value

    def set_flag(self, flag: Any) -> None:
        self._flags |= 1 << int(flag)

    def clear_flag(self, flag: Any) -> None:
        self._flags &= ~(1 << int(flag))

    def get_flag(self, flag: Any) -> bool:
        return bool(self._flags >> int(flag) & 1)

    def supports_operator(self, name: str) -> bool:
        return self._knows(name) or name in known_creators(self._network._builder)

    def _knows(self, operator: str) -> bool:
        version = str(self._module.__version__)
        lacked = [name for start, names in LACKED.items() if version.startswith(start) for name in names]
        known = operator in KINDS or operator in _FOLDED or self._is_native(operator)
        return known and operator not in lacked

    def _is_native(self, operator: str) -> bool:
        """Whether a layer computes it that was a plugin before (8.5-GA, builtin_op_importers.cpp:2192)."""
        return operator == "InstanceNormalization" and "NORMALIZATION" in self._module.LayerType.__members__

    def parse_from_file(self, path: str, **_: Any) -> bool:
        import onnx

        if not Path(path).is_file():
            say(self, "ERROR", f"Could not open file {path}")
            return False
        return self._parse(onnx.load(path))

    def parse(self, model: Any, path: str = "") -> bool:
        import onnx

        return self._parse(onnx.load_from_string(bytes(model)))

    def _parse(self, model: Any) -> bool:
        network = self._network
        if not network._explicit:
            # Source: ModelImporter.cpp:519 of 8.5-GA.
            text = "This version of the ONNX parser only supports TensorRT INetworkDefinitions with an "
            say(self, "ERROR", text + "explicit batch dimension. Please ensure the network was created using "
                "the EXPLICIT_BATCH NetworkDefinitionCreationFlag.")  # fmt: skip
            return False
        graph = _Graph(self._module, network, self._log, model)
        for index, node in enumerate(model.graph.node):
            try:
                known = node.domain in ("", "ai.onnx") and self._knows(node.op_type)
                if not known and node.op_type not in known_creators(self._network._builder):
                    raise Refused(_NO_PLUGIN)
                graph.add(node)
            except Refused as error:
                self._refuse(index, node, str(error))
                return False
        for output in model.graph.output:
            network.mark_output(graph.tensor(output.name))
        return True

    def _refuse(self, index: int, node: Any, reason: str) -> None:
        old = not hasattr(self._module.ParserError, "node_name")
        missing = reason == _NO_PLUGIN
        code = "UNSUPPORTED_NODE" if old and missing else "INVALID_NODE"
        file, line, func = _PLACES[old] if missing else _PLACE_OF_NODES
        made = self._module.ParserError(
            code=self._module.ErrorCode[code],
            desc=f"Assertion failed: {reason}" if old else reason,
            file=file,
            line=line,
            func=func,
            node=index,
            name=node.name,
            operator=node.op_type,
        )
        self._errors.append(made)
        say(self, "ERROR", f'While parsing node number {index} [{node.op_type} -> "{node.output[0]}"]:')
        say(self, "ERROR", f"ERROR: {made._found['file']}:{made._found['line']} In function "
            f"{made._found['func']}:\n[{int(made._found['code'])}] {made._found['desc']}")  # fmt: skip


def _behind(graph: Any, names: Any) -> set[str]:
    """The tensors that shapes are computed of, themselves among them.

    Source: TensorRT-RTX 1.7.1, whose `is_shape_tensor` is true of an input behind Cast and Concat.
    """
    found = set(names)
    for node in reversed(graph.node):
        if found & set(node.output) and node.op_type in _COMPUTED_ON_SHAPES:
            found |= set(node.input)
    return found


class _Graph:
    """An ONNX graph on its way into a network.

    Source: TensorRT-RTX 1.7.1 by test_simulated_as_real.py, which compares layers, types and shapes;
    onnx-tensorrt 8.5-GA, builtin_op_importers.cpp, where 8.5 differs.
    """

    def __init__(self, module: Any, network: Any, log: Any, model: Any) -> None:
        from onnx import shape_inference

        self.module, self.network, self._log = module, network, log
        self._module = module
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
        self.values = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
        self.constants: dict[str, Any] = {item.name: item for item in model.graph.initializer}
        self.tensors: dict[str, Any] = {}
        self.temporaries = self.layers = 0
        network._weights = {}
        for value in model.graph.input:
            if value.name not in self.constants:
                tensor = network._tensor(value.name, *self._type(value.name), "input")
                self.tensors[value.name] = tensor
                network._inputs.append(tensor)
        for node in model.graph.node:
            for index in _SHAPES.get(node.op_type, ()):
                for name in _behind(model.graph, node.input[index : index + 1]):
                    if name in self.tensors:
                        self.tensors[name]._holds_shape = True

    def add(self, node: Any) -> None:
        if node.op_type in _FOLDED:
            self._fold(node)
            return
        kinds = self.module.LayerType.__members__
        native = "NORMALIZATION" if "NORMALIZATION" in kinds else "PLUGIN_V3"
        kind = KINDS.get(node.op_type, native if node.op_type == "InstanceNormalization" else "PLUGIN_V3")
        if kind not in kinds:
            kind = OLDER[kind]
        kept = [i for i in _WEIGHTS.get(node.op_type, ()) if i < len(node.input)]
        weights = [node.input[i] for i in kept if node.input[i] in self.constants]
        operands = [name for name in node.input if name and name not in weights]
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            inputs = self._quantization(node)
        elif node.op_type == "Gemm":
            inputs = [self._operand(name) for name in operands[:2]]
        else:
            rank = len(self._shape(node.output[0]))
            broadcasts = kind in ("ELEMENTWISE", "MATRIX_MULTIPLY", "SELECT")
            inputs = [self._operand(name, rank if broadcasts else None) for name in operands]
        name = node.name or f"node_of_{node.output[0]}"
        dtype = self._computed(kind, node.output[0])
        made = [output for output in node.output if output in self.values]  # a mask may have no shape
        outputs = [
            self.network._tensor(output, dtype if index == 0 else self._type(output)[0], self._shape(output))
            for index, output in enumerate(made)
        ]
        if node.op_type == "Dropout":  # of inference: a helper's layer
            layer = self.network._add(f"ONNXTRT_identity_{self._number()}", kind, inputs[:1], outputs)
        else:
            layer = self.network._add(name, kind, inputs, outputs, name)
        layer._weights, layer._operator = weights, node.op_type
        for weight in weights:
            self._remember(weight)
        self.tensors |= dict(zip(made, outputs, strict=True))
        if node.op_type == "Gemm" and len(operands) > 2:
            self._gemm_bias(node, name, outputs[0], operands[2])

    def tensor(self, name: str) -> Any:
        return self.tensors[name] if name in self.tensors else self._operand(name)

    def _gemm_bias(self, node: Any, name: str, product: Any, bias: str) -> None:
        product._name = f"{name}_output"
        inputs = [product, self._operand(bias, len(product._shape))]
        output = self.network._tensor(node.output[0], product._dtype, product._shape)
        self.network._add(f"{name}_{self._number()}", "ELEMENTWISE", inputs, [output], name)
        self.tensors[node.output[0]] = output

    def _quantization(self, node: Any) -> list[Any]:
        """Data, scale and a zero point of floats; what is stored must be of a type that TensorRT has."""
        if len(node.input) < 3 and not hasattr(self.module.ParserError, "node_name"):
            # Source: builtin_op_importers.cpp:1206 of 8.5-GA, QuantDequantLinearHelper: of both operators.
            text = "This version of TensorRT requires 3 inputs for the DequantizeLinear operator."
            raise Refused(f'(inputs.size() == 3) && "{text}"')
        stored = node.input[0] if node.op_type == "DequantizeLinear" else node.output[0]
        dtype = self._type(stored)[0]
        if dtype not in _STORED:
            spelled = dtype.capitalize()
            raise Refused(
                f"Invalid Node - {node.name}\nITensor::getDimensions: Error Code 4: API Usage Error "
                f"({node.name}: input has type {spelled} but must have type FP8, FP4, Int4, Int8, or UInt8.)"
            )
        inputs = [self._operand(name) for name in node.input[:2]]
        if len(node.input) > 2:
            name = f"tmp_weight_{self._number()}"
            zero = self.network._tensor(f"{name}_output", "FLOAT", inputs[1]._shape)
            self.network._add(name, "CONSTANT", [], [zero])
            inputs.append(zero)
        return inputs

    def _operand(self, name: str, rank: int | None = None) -> Any:
        """A tensor; of an initializer by a constant layer, and where its rank is lower by a shuffle."""
        if name not in self.tensors:
            dtype, shape = self._type(name)
            tensor = self.network._tensor(f"{name}_output", dtype, shape)
            self.network._add(name, "CONSTANT", [], [tensor])._weights = [name]
            self._remember(name)
            self.tensors[name] = tensor
        tensor = self.tensors[name]
        if rank is None or len(tensor._shape) >= rank:
            return tensor
        helper = f"ONNXTRT_Broadcast_{self._number()}"
        shape = (1,) * (rank - len(tensor._shape)) + tensor._shape
        wider = self.network._tensor(f"{helper}_output", tensor._dtype, shape)
        self.network._add(helper, "SHUFFLE", [tensor], [wider])
        return wider

    def _fold(self, node: Any) -> None:
        from onnx import numpy_helper
        from onnx.reference import ReferenceEvaluator

        if any(name not in self.constants for name in node.input):
            raise Refused(f"{node.op_type} of a shape that is no constant")
        feeds = {name: numpy_helper.to_array(self.constants[name]) for name in node.input}
        value = ReferenceEvaluator(node).run(None, feeds)[0]
        self.constants[node.output[0]] = numpy_helper.from_array(value, node.output[0])

    def _computed(self, kind: str, output: str) -> str:
        """The type of an output: where types are weak, floats are FLOAT until TensorRT chooses."""
        dtype = self._type(output)[0]
        weak = not self.network._strong and dtype in FLOATS
        return "FLOAT" if weak and kind not in ("CAST", "QUANTIZE") else dtype

    def _type(self, name: str) -> tuple[str, tuple[int, ...]]:
        import onnx

        if name in self.constants:
            item = self.constants[name]
            number, shape = item.data_type, tuple(item.dims)
        else:
            found = self.values[name].type.tensor_type
            number = found.elem_type
            shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in found.shape.dim)
        return self._spelled(onnx.TensorProto.DataType.Name(number)), shape

    def _spelled(self, name: str) -> str:
        spelled = {"FLOAT16": "HALF", "BFLOAT16": "BF16", "DOUBLE": "FLOAT", "FLOAT8E4M3FN": "FP8"}.get(
            name, name
        )
        known = self.module.DataType.__members__
        if spelled == "INT64" and spelled not in known:
            # Source: onnx2trt_utils.cpp:376 of 8.5-GA.
            text = "Your ONNX model has been generated with INT64 weights, while TensorRT does not natively "
            say(self, "WARNING", text + "support INT64. Attempting to cast down to INT32.")
            return "INT32"
        if spelled not in known:
            raise Refused(f"Unsupported data type {spelled}")
        return spelled

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._type(name)[1]

    def _remember(self, name: str) -> None:
        item = self.constants[name]
        self.network._weights[name] = item

    def _number(self) -> int:
        self.layers += 1
        return self.layers


BEHAVIOURS: dict[str, Any] = {"OnnxParser": Parser, "ParserError": ParserError}
