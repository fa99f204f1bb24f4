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
from onnx import helper

from ...calibration.qparams import INT8, choose_qparams, choose_weight_qparams
from ...model.graph import attribute, subgraphs, tensor_values
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
            weight = tensor_values(stored[name])
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
        self.made: list[onnx.NodeProto] = []

    def nodes(self) -> list[onnx.NodeProto]:
        self._first_state()
        parts: list[list[str]] = [[], [], []]  # of Y, Y_h and Y_c
        for index, way in enumerate(self.ways):
            self._direction(index, way)
            for part, name in zip(parts, ("y", "hidden", "cell"), strict=True):
                part.append(self._name(way, name))
        for kind, (output, part) in enumerate(zip(self.node.output, parts, strict=False)):
            if output:
                axis = store(
                    self.graph, f"{self.node.name}/axes/{kind}", np.array([0 if kind else 1], np.int64)
                )
                joined = [self._add("Unsqueeze", [name, axis], f"{name}/unsqueezed") for name in part]
                self._add("Concat", joined, output, f"{self.node.name}/join_{kind}", axis=0 if kind else 1)
        return self.made

    def _add(self, kind: str, inputs: list[str], output: str, name: str = "", **settings: int) -> str:
        self.made.append(helper.make_node(kind, inputs, [output], name=name or output, **settings))
        return output

    def _first_state(self) -> None:
        """Zeros of [batch, hidden]."""
        base = self.node.name
        zero = store(self.graph, f"{base}/zero", np.zeros(1, np.float32))
        one, two, width = (
            store(self.graph, f"{base}/{name}", np.array([value], np.int64))
            for name, value in (("one", 1), ("two", 2), ("width", self.hidden))
        )
        shape = self._add("Shape", [self.node.input[0]], f"{base}/shape")
        batch = self._add("Slice", [shape, one, two], f"{base}/batch")
        whole = self._add("Concat", [batch, width], f"{base}/state_shape", axis=0)
        self._add("Expand", [zero, whole], f"{base}/state")

    def _direction(self, index: int, way: str) -> None:
        weight = store(self.graph, self._name(way, "weight"), self._value(1)[index].T)
        state = store(self.graph, self._name(way, "state_weight"), self._value(2)[index].T)
        gates = self._add("MatMul", [self.node.input[0], weight], self._name(way, "product"))
        if len(self.node.input) > 3 and self.node.input[3]:
            both = self._value(3)[index].reshape(2, -1).sum(0)  # of the input and of the state
            bias = store(self.graph, self._name(way, "bias"), both)
            gates = self._add("Add", [gates, bias], self._name(way, "gates"))
        results = [self._name(way, name) for name in ("hidden", "cell", "y")]
        turned = {"scan_input_directions": [1], "scan_output_directions": [1]} if way == "reverse" else {}
        first = f"{self.node.name}/state"
        scan = helper.make_node(
            "Scan", [first, first, gates], results, name=self._name(way, "scan"),
            num_scan_inputs=1, body=self._body(way, state), **turned,
        )  # fmt: skip
        self.made.append(scan)

    def _body(self, way: str, weight: str) -> onnx.GraphProto:
        """One step: hidden and cell [batch, hidden], the input's part of the gates [batch, 4 * hidden]."""

        def value(name: str, width: int) -> Any:
            return helper.make_tensor_value_info(self._name(way, name), 1, [None, width])

        def node(kind: str, inputs: str, outputs: str, **settings: Any) -> onnx.NodeProto:
            names = [[self._name(way, name) for name in text.split()] for text in (inputs, outputs)]
            return helper.make_node(kind, *names, name=names[1][0], **settings)

        state, sums = self._name(way, _STATE), self._name(way, "sum")
        # With sizes, as opsets 13 to 17 and 18 both take them.
        sizes = store(self.graph, self._name(way, "sizes"), np.full(4, self.hidden, np.int64))
        gates = [self._name(way, name) for name in "iofc"]
        steps = [
            helper.make_node("MatMul", [self._name(way, "h"), weight], [state], name=state),
            node("Add", f"p {_STATE}", "sum"),
            helper.make_node("Split", [sums, sizes], gates, name=gates[0], axis=1),
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

    def _value(self, index: int) -> NDArray[Any]:
        return tensor_values(self.stored[self.node.input[index]])

    def _name(self, way: str, name: str) -> str:
        return f"{self.node.name}/{way}/{name}"


def _pair(value: str, result: str, parameters: list[str], **settings: int) -> list[onnx.NodeProto]:
    middle = f"{result}/quantized"
    return [
        helper.make_node("QuantizeLinear", [value, *parameters], [middle], name=middle, **settings),
        helper.make_node("DequantizeLinear", [middle, *parameters], [result], name=result, **settings),
    ]
