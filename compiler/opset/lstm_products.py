"""Rewrite an LSTM as its matrix products, which TensorRT can run in INT8.

TensorRT has no integer kernel for ONNX's LSTM; behind Q/DQ it would compute in float. Its parser takes Scan,
and INT8 products inside. Gates are in ONNX's order: input, output, forget, cell.

    X ─ MatMul(Wᵀ) ─ Add(B) ─ Scan: hidden, cell ─┬─ Unsqueeze ─┬─ Concat ─ Y
                              gates = P + hidden Rᵀ              │
                              one for each direction ───────────┘

`open_lstms` comes before the Q/DQ of all other products, whose MatMul of the inputs is one of them;
`quantize_states` then places Q/DQ around the product of the state. A state is a sigmoid times a tanh, so that
its scale is 1/127 and needs no calibration.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ...calibration.qparams import INT8, choose_qparams, choose_weight_qparams
from ...model.graph import attribute, subgraphs
from ...model.graph_edits import drop_unused_initializers, set_nodes, store

_PLAIN = frozenset(["hidden_size", "direction", "input_forget", "layout"])
_STATE = "state_product"


def lstm_inputs(model: onnx.ModelProto) -> set[str]:
    """Return what the LSTMs that `open_lstms` rewrites multiply by weights: it needs a scale."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return {node.input[0] for node in model.graph.node if why_closed(node, stored) == ""}


def closed_lstms(model: onnx.ModelProto) -> dict[str, str]:
    """Return name to reason for the LSTMs that stay as they are, and compute in float."""
    stored = {tensor.name for tensor in model.graph.initializer}
    reasons = {node.name: why_closed(node, stored) for node in model.graph.node}
    return {name: reason or "it was excluded" for name, reason in reasons.items() if reason is not None}


def why_closed(node: onnx.NodeProto, stored: Container[str]) -> str | None:
    """Return why an LSTM stays as it is; "" where it can be rewritten, None for any other operator."""
    if node.op_type != "LSTM" or node.domain not in ("", "ai.onnx"):
        return None
    settings = {attribute.name for attribute in node.attribute}
    if settings - _PLAIN or attribute(node, "input_forget", 0) or attribute(node, "layout", 0):
        return "its activations, clip, input_forget or layout are not the usual ones"
    operands = [*node.input, *[""] * (8 - len(node.input))]
    if operands[4] or operands[7]:
        return "it has sequence lengths or peepholes"
    if any(name and name not in stored for name in operands[1:4]):
        return "its weights are computed at run time"
    return "" if not operands[5] and not operands[6] else "its first state is given"


def open_lstms(model: onnx.ModelProto, *, exclude: Container[str] = ()) -> list[str]:
    """Rewrite LSTMs in place; return the names of those that were.

    Args:
        model: Of opset 13 or newer, with named nodes.
        exclude: Names of nodes that stay.
    """
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes, opened = [], []
    for node in model.graph.node:
        if why_closed(node, stored) == "" and node.name not in exclude:
            opened.append(node.name)
            nodes += _Opened(model.graph, node, stored).nodes()
        else:
            nodes.append(node)
    if opened:
        set_nodes(model.graph, nodes)
        drop_unused_initializers(model.graph)
    return opened


def quantize_states(model: onnx.ModelProto) -> int:
    """Place Q/DQ around the products of states that `open_lstms` made; return how many."""
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    done, nodes = 0, []
    for node in graph.node:
        for body in subgraphs(node) if node.op_type == "Scan" else ():
            product = next((inner for inner in body.node if inner.name.endswith(_STATE)), None)
            if product is None:
                continue
            name = product.input[1]
            weight = numpy_helper.to_array(stored[name])
            qparams, state = choose_weight_qparams(weight, 1), choose_qparams(-1, 1, INT8)
            store(graph, f"{name}/scale", qparams.scale)
            store(graph, f"{name}/zero_point", qparams.zero_point)
            store(graph, f"{name}/state_scale", state.scale)
            store(graph, f"{name}/state_zero_point", state.zero_point)
            of_weight = [f"{name}/scale", f"{name}/zero_point"]
            of_state = [f"{name}/state_scale", f"{name}/state_zero_point"]
            nodes += _pair(name, f"{name}/dequantized", of_weight, axis=1)
            pair = _pair(product.input[0], f"{product.name}/dequantized", of_state)
            product.input[:] = [f"{product.name}/dequantized", f"{name}/dequantized"]
            set_nodes(body, [*pair, *body.node])
            done += 1
        nodes.append(node)
    if done:
        set_nodes(graph, nodes)
        known = [item for item in model.opset_import if item.domain in ("", "ai.onnx")]
        model.ir_version = max(model.ir_version, helper.find_min_ir_version_for(known))
    return done


class _Opened:
    """The nodes that replace one LSTM."""

    def __init__(
        self, graph: onnx.GraphProto, node: onnx.NodeProto, stored: dict[str, onnx.TensorProto]
    ) -> None:
        self.graph, self.node, self.stored = graph, node, stored
        self.hidden = attribute(node, "hidden_size", 0)
        way = attribute(node, "direction", "forward")
        self.ways = ("forward", "reverse") if way == "bidirectional" else (way,)
        self.axes = f"{node.name}/axes"

    def nodes(self) -> list[onnx.NodeProto]:
        made = self._first_state()
        parts: list[list[str]] = [[], [], []]  # of Y, Y_h and Y_c
        for index, way in enumerate(self.ways):
            made += self._direction(index, way)
            for part, name in zip(parts, ("y", "hidden", "cell"), strict=True):
                part.append(self._name(way, name))
        for kind, (output, part) in enumerate(zip(self.node.output, parts, strict=False)):
            if not output:
                continue
            axis = store(self.graph, f"{self.axes}/{kind}", np.array([0 if kind else 1], np.int64))
            joined = [f"{name}/unsqueezed" for name in part]
            made += [
                helper.make_node("Unsqueeze", [name, axis], [wide], name=wide)
                for name, wide in zip(part, joined, strict=True)
            ]
            join = f"{self.node.name}/join_{kind}"
            made.append(helper.make_node("Concat", joined, [output], name=join, axis=0 if kind else 1))
        return made

    def _first_state(self) -> list[onnx.NodeProto]:
        """Zeros of [batch, hidden]."""
        base = self.node.name
        zero = store(self.graph, f"{base}/zero", np.zeros(1, np.float32))
        one = store(self.graph, f"{base}/one", np.array([1], np.int64))
        two = store(self.graph, f"{base}/two", np.array([2], np.int64))
        width = store(self.graph, f"{base}/width", np.array([self.hidden], np.int64))
        shape, batch, whole = (f"{base}/{name}" for name in ("shape", "batch", "state_shape"))
        return [
            helper.make_node("Shape", [self.node.input[0]], [shape], name=shape),
            helper.make_node("Slice", [shape, one, two], [batch], name=batch),
            helper.make_node("Concat", [batch, width], [whole], name=whole, axis=0),
            helper.make_node("Expand", [zero, whole], [f"{base}/state"], name=f"{base}/state"),
        ]

    def _direction(self, index: int, way: str) -> list[onnx.NodeProto]:
        weight = store(self.graph, self._name(way, "weight"), self._value(1)[index].T)
        state = store(self.graph, self._name(way, "state_weight"), self._value(2)[index].T)
        product, gates = self._name(way, "product"), self._name(way, "gates")
        made = [helper.make_node("MatMul", [self.node.input[0], weight], [product], name=product)]
        if len(self.node.input) > 3 and self.node.input[3]:
            both = self._value(3)[index].reshape(2, -1).sum(0)  # of the input and of the state
            bias = store(self.graph, self._name(way, "bias"), both)
            made.append(helper.make_node("Add", [product, bias], [gates], name=gates))
        else:
            gates = product
        results = [self._name(way, name) for name in ("hidden", "cell", "y")]
        turned = {"scan_input_directions": [1], "scan_output_directions": [1]} if way == "reverse" else {}
        first = f"{self.node.name}/state"
        scan = helper.make_node(
            "Scan", [first, first, gates], results, name=self._name(way, "scan"),
            num_scan_inputs=1, body=self._body(way, state), **turned,
        )  # fmt: skip
        return [*made, scan]

    def _body(self, way: str, weight: str) -> onnx.GraphProto:
        """One step: hidden and cell [batch, hidden], the input's part of the gates [batch, 4 * hidden]."""

        def value(name: str, width: int) -> Any:
            return helper.make_tensor_value_info(self._name(way, name), 1, [None, width])

        def node(kind: str, inputs: str, outputs: str, **settings: Any) -> onnx.NodeProto:
            names = [[self._name(way, name) for name in text.split()] for text in (inputs, outputs)]
            return helper.make_node(kind, *names, name=names[1][0], **settings)

        state = self._name(way, _STATE)
        product = helper.make_node("MatMul", [self._name(way, "h"), weight], [state], name=state)
        steps = [
            product,
            node("Add", f"p {_STATE}", "sum"),
            self._split(way),
            *(node("Sigmoid", name, f"{name}/gate") for name in "iof"),
            node("Tanh", "c", "c/gate"),
            node("Mul", "f/gate cell_before", "kept"),
            node("Mul", "i/gate c/gate", "taken"),
            node("Add", "kept taken", "cell_after"),
            node("Tanh", "cell_after", "shown"),
            node("Mul", "o/gate shown", "h_after"),
            node("Identity", "h_after", "h_out"),
        ]
        inputs = [value("h", self.hidden), value("cell_before", self.hidden), value("p", 4 * self.hidden)]
        outputs = [value(name, self.hidden) for name in ("h_after", "cell_after", "h_out")]
        return helper.make_graph(steps, self._name(way, "step"), inputs, outputs)

    def _split(self, way: str) -> onnx.NodeProto:
        """The gates apart; with sizes, as opsets 13 to 17 and 18 both take them."""
        sizes = store(self.graph, self._name(way, "sizes"), np.full(4, self.hidden, np.int64))
        gates = [self._name(way, name) for name in "iofc"]
        return helper.make_node("Split", [self._name(way, "sum"), sizes], gates, name=gates[0], axis=1)

    def _value(self, index: int) -> NDArray[Any]:
        array: NDArray[Any] = numpy_helper.to_array(self.stored[self.node.input[index]])
        return array

    def _name(self, way: str, name: str) -> str:
        return f"{self.node.name}/{way}/{name}"


def _pair(value: str, result: str, parameters: list[str], **settings: int) -> list[onnx.NodeProto]:
    middle = f"{result}/quantized"
    return [
        helper.make_node("QuantizeLinear", [value, *parameters], [middle], name=middle, **settings),
        helper.make_node("DequantizeLinear", [middle, *parameters], [result], name=result, **settings),
    ]
