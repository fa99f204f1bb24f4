"""Rewrite an LSTM or a GRU as its matrix products, which TensorRT can run in INT8.

TensorRT has no integer kernels for ONNX's LSTM and GRU: behind Q/DQ they would run in floating point. Its
parser reads Scan, and INT8 products inside a Scan. Gates are in ONNX's order: input, output, forget, cell
(LSTM), or update, reset, hidden (GRU).

    X ─ MatMul(Wᵀ) ─ Add(B) ─ P ─ Scan: hidden, cell ─┬─ Unsqueeze ─┬─ Concat ─ Y
                                  gates = P + hidden Rᵀ              │
                                  for each direction ───────────────┘

`rewrite_recurrences` runs before the other products get Q/DQ, so its MatMul by Wᵀ gets Q/DQ, too.
`quantize_states` then places Q/DQ in front of `hidden Rᵀ`. The hidden state lies between -1 and 1: an LSTM's
is a sigmoid times a tanh, a GRU's lies between its previous state and a tanh. So its scale is 1/127.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray
from onnx import helper

from ...calibration.qparams import INT8, choose_qparams, choose_weight_qparams
from ...model.graph.graph import attribute, subgraphs, tensor_values
from ...model.graph.graph_edits import drop_unused_initializers, set_nodes, store
from ...model.graph.graph_names import Names
from ..qdq import make_qdq_pair, store_qparams

_PLAIN = {
    "LSTM": {"hidden_size", "direction", "input_forget", "layout"},
    "GRU": {"hidden_size", "direction", "linear_before_reset", "layout"},
}
_GATES = {"LSTM": 4, "GRU": 3}
_STATE = "state_product"


def recurrent_inputs(model: onnx.ModelProto) -> set[str]:
    """Return the inputs of the layers that `rewrite_recurrences` rewrites: these tensors need a scale."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return {node.input[0] for node in model.graph.node if why_not_rewritten(node, stored) == ""}


def float_recurrences(model: onnx.ModelProto) -> dict[str, str]:
    """Map the name of each LSTM or GRU that computes in floating point to the reason."""
    stored = {tensor.name for tensor in model.graph.initializer}
    reasons = {node.name: why_not_rewritten(node, stored) for node in model.graph.node}
    return {name: reason or "it was excluded" for name, reason in reasons.items() if reason is not None}


def why_not_rewritten(node: onnx.NodeProto, stored: Container[str]) -> str | None:
    """Return why a layer cannot be rewritten; "" if it can, None for other operators."""
    if node.op_type not in _PLAIN or node.domain not in ("", "ai.onnx"):
        return None
    plain = {item.name for item in node.attribute} <= _PLAIN[node.op_type]
    if not plain or attribute(node, "input_forget", 0) or attribute(node, "layout", 0):
        return "its activations, clip, input_forget or layout are not the usual ones"
    if node.op_type == "GRU" and not attribute(node, "linear_before_reset", 0):
        return "it resets the state before the product"
    operands = [*node.input, *[""] * (8 - len(node.input))]
    if operands[4] or operands[7]:
        return "it has sequence lengths or peepholes"
    if any(name and name not in stored for name in operands[1:4]):
        return "its weights are computed at run time"
    return "" if not operands[5] and not operands[6] else "its first state is given"


def rewrite_recurrences(model: onnx.ModelProto, *, exclude: Container[str] = ()) -> list[str]:
    """Rewrite layers of a model of opset 13 or newer in place, except `exclude`; return the layers' names."""
    stored, names = {tensor.name: tensor for tensor in model.graph.initializer}, Names(model.graph)
    nodes, opened = [], []
    for node in model.graph.node:
        if why_not_rewritten(node, stored) == "" and node.name not in exclude:
            opened.append(node.name)
            nodes += _LayerRewrite(model.graph, node, stored, names.stem(node.name)).nodes()
        else:
            nodes.append(node)
    if opened:
        set_nodes(model.graph, nodes)
        drop_unused_initializers(model.graph)
    return opened


def quantize_states(model: onnx.ModelProto) -> int:
    """Place Q/DQ in front of the products that `rewrite_recurrences` gives a Scan; return their number."""
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    count, nodes = 0, []
    for node in graph.node:
        for body in subgraphs(node) if node.op_type == "Scan" else ():
            name = f"{node.name.removesuffix('scan')}{_STATE}"  # of the product from `rewrite_recurrences`
            product = next((inner for inner in body.node if inner.name == name), None)
            if product is None:
                continue
            name = product.input[1]
            weight = tensor_values(stored[name])
            qparams, state = choose_weight_qparams(weight, 1), choose_qparams(-1, 1, INT8)
            of_weight = store_qparams(graph, f"{name}/", qparams)
            of_state = store_qparams(graph, f"{name}/state_", state)
            nodes += make_qdq_pair(name, f"{name}/dequantized", of_weight, axis=1)
            of_product = make_qdq_pair(product.input[0], f"{product.name}/dequantized", of_state)
            product.input[:] = [f"{product.name}/dequantized", f"{name}/dequantized"]
            set_nodes(body, [*of_product, *body.node])
            count += 1
        nodes.append(node)
    if count:
        set_nodes(graph, nodes)
        imports = [item for item in model.opset_import if item.domain in ("", "ai.onnx")]
        model.ir_version = max(model.ir_version, helper.find_min_ir_version_for(imports))
    return count


class _LayerRewrite:
    def __init__(
        self, graph: onnx.GraphProto, node: onnx.NodeProto, stored: dict[str, onnx.TensorProto], base: str
    ) -> None:
        self.graph, self.node, self.base = graph, node, base
        self.hidden = attribute(node, "hidden_size", 0)
        self.values = [tensor_values(stored[name]) for name in node.input[1:4] if name]
        self.made: list[onnx.NodeProto] = []

    def nodes(self) -> list[onnx.NodeProto]:
        direction = attribute(self.node, "direction", "forward")
        directions = ("forward", "reverse") if direction == "bidirectional" else (direction,)
        state = self._initial_state()
        results = [self._direction(index, direction, state) for index, direction in enumerate(directions)]
        for kind, output in enumerate(self.node.output):
            if output:
                axis = 0 if kind else 1
                stored = self._store(f"axes/{kind}", np.array([axis], np.int64))
                part = [names[kind] for names in results]
                joined = [self._add("Unsqueeze", [name, stored], f"{name}/unsqueezed") for name in part]
                self._add("Concat", joined, output, f"{self.base}/join_{kind}", axis=axis)
        return self.made

    def _add(self, kind: str, inputs: list[str], output: str, name: str = "", **settings: int) -> str:
        self.made.append(helper.make_node(kind, inputs, [output], name=name or output, **settings))
        return output

    def _store(self, name: str, values: NDArray[Any]) -> str:
        return store(self.graph, f"{self.base}/{name}", values)

    def _initial_state(self) -> str:
        """Return zeros of shape [batch, hidden]."""
        zero = self._store("zero", np.zeros(1, np.float32))
        numbers = {"one": 1, "two": 2, "width": self.hidden}
        one, two, width = (self._store(name, np.array([value], np.int64)) for name, value in numbers.items())
        shape = self._add("Shape", [self.node.input[0]], f"{self.base}/shape")
        batch = self._add("Slice", [shape, one, two], f"{self.base}/batch")
        whole = self._add("Concat", [batch, width], f"{self.base}/state_shape", axis=0)
        return self._add("Expand", [zero, whole], f"{self.base}/state")

    def _direction(self, index: int, direction: str, first: str) -> list[str]:
        """Add the nodes of one direction; return its Y, Y_h and Y_c."""
        weights, states, *biases = self.values
        weight = self._store(f"{direction}/weight", weights[index].T)
        self._store(f"{direction}/state_weight", states[index].T)
        prefix = f"{self.base}/{direction}"
        gates = self._add("MatMul", [self.node.input[0], weight], f"{prefix}/product")
        gru = self.node.op_type == "GRU"
        if biases:
            of_input, of_state = biases[0][index].reshape(2, -1)
            both = of_input + of_state
            if gru:  # the reset gate also scales the hidden gate's state bias, so the state product gets it
                both[2 * self.hidden :] = of_input[2 * self.hidden :]
                of_state = np.concatenate([0 * of_state[: 2 * self.hidden], of_state[2 * self.hidden :]])
                self._store(f"{direction}/state_bias", of_state)
            gates = self._add("Add", [gates, self._store(f"{direction}/bias", both)], f"{prefix}/gates")
        # Split with sizes as an operand is valid before opset 18, from 13 on, and in 18.
        self._store(f"{direction}/sizes", np.full(_GATES[self.node.op_type], self.hidden, np.int64))
        states_of = ("hidden",) if gru else ("hidden", "cell")
        results = [f"{prefix}/{name}" for name in (*states_of, "y")]
        body = _step(self.node.op_type, prefix, self.hidden, biased=bool(biases))
        flip = {"scan_input_directions": [1], "scan_output_directions": [1]} if direction == "reverse" else {}
        scan = helper.make_node(
            "Scan", [*[first] * len(states_of), gates], results, name=f"{prefix}/scan",
            num_scan_inputs=1, body=body, **flip,
        )  # fmt: skip
        self.made.append(scan)
        return [results[-1], *results[:-1]]


_STEPS = {
    "LSTM": """
        step (float[?,{width}] h, float[?,{width}] cell_before, float[?,{gates}] p)
        => (float[?,{width}] h_after, float[?,{width}] cell_after, float[?,{width}] h_out) {{
            state_product = MatMul(h, state_weight)
            sum = Add(p, state_product)
            i, o, f, c = Split <axis = 1> (sum, sizes)
            input_gate = Sigmoid(i)  output_gate = Sigmoid(o)  forget_gate = Sigmoid(f)  cell_gate = Tanh(c)
            kept = Mul(forget_gate, cell_before)
            taken = Mul(input_gate, cell_gate)
            cell_after = Add(kept, taken)
            shown = Tanh(cell_after)
            h_after = Mul(output_gate, shown)
            h_out = Identity(h_after) }}""",
    "GRU": """
        step (float[?,{width}] h, float[?,{gates}] p) => (float[?,{width}] h_after, float[?,{width}] h_out) {{
            state_product = MatMul(h, state_weight)
            state_part = Add(state_product, state_bias)
            sz, sr, sh = Split <axis = 1> (state_part, sizes)
            pz, pr, ph = Split <axis = 1> (p, sizes)
            z = Add(pz, sz)  update_gate = Sigmoid(z)
            r = Add(pr, sr)  reset_gate = Sigmoid(r)
            reset = Mul(reset_gate, sh)
            n = Add(ph, reset)
            hidden_gate = Tanh(n)
            change = Sub(h, hidden_gate)
            kept = Mul(update_gate, change)
            h_after = Add(hidden_gate, kept)
            h_out = Identity(h_after) }}""",
}


def _step(kind: str, prefix: str, width: int, *, biased: bool) -> onnx.GraphProto:
    """Return the Scan's body for a time step, with states [batch, width] and P [batch, gates]."""
    text = _STEPS[kind].format(width=width, gates=_GATES[kind] * width)
    if not biased:
        text = text.replace("state_part = Add(state_product, state_bias)", "").replace("state_part", _STATE)
    graph = onnx.parser.parse_graph(text)
    for node in graph.node:
        node.input[:], node.output[:] = (
            [f"{prefix}/{name}" for name in names] for names in (node.input, node.output)
        )
        node.name = node.output[0]
    for value in (*graph.input, *graph.output):
        value.name = f"{prefix}/{value.name}"
    return graph
