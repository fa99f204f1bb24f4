"""Damage to ONNX models: by fields of the protobuf, and by bytes. Equal generators do equal damage."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

_NUMBERS = (0, 1, -1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**34, 2**62, 2**63 - 1, -(2**63))
_DIMS = (0, -1, 1, 2, 3, 5, 9, 1000, 2**20, 2**31, 2**34, 2**62)
_TYPES = (*range(27), 99, 1000, -5)
_OPERATORS = (
    "Add Relu Conv MatMul Gemm Reshape Loop If Scan Constant ConstantOfShape Shape Gather Identity LSTM "
    "Concat Split Slice Resize QuantizeLinear DequantizeLinear SequenceAt Optional Einsum TopK Frobnicate "
    "Cast Tile Expand Range NonZero Unsqueeze Squeeze Transpose BatchNormalization LayerNormalization "
    "MaxPool Pad"
).split()
_NAMES = ("", "x", "y", "w", "nowhere", "\x1b[31mred", "a" * 5000, "../up", "name with spaces", "\u202etfel")
_FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e38, 1e-45)
_PLACES = (
    "/proc/self/mem", "/etc/passwd", "../m.data", "m.data/../../x", "", ".", "missing", "/dev/zero", "m.onnx",
    "sub/x",
)  # fmt: skip

Mutation = Callable[[onnx.ModelProto, random.Random], None]


def mutate(model: onnx.ModelProto, generator: random.Random) -> tuple[bytes, list[str]]:
    """Return the damaged file and what was done to it. The model is changed."""
    done: list[str] = []
    if generator.random() < 0.75:
        for _ in range(generator.choice((1, 1, 1, 2, 3))):
            mutation = generator.choice(MUTATIONS)
            try:
                mutation(model, generator)
                done.append(mutation.__name__)
            except (IndexError, ValueError, TypeError, AttributeError, DecodeError):
                done.append(f"no {mutation.__name__}")  # there is nothing of the kind in this model
    content = model.SerializeToString()
    if not done or generator.random() < 0.08:
        damage = generator.choice((flip, flip, cut, insert, repeat, not_utf8))
        content = damage(content, generator)
        done.append(damage.__name__)
    return content, done


def _messages(message: Any, kind: type | None = None) -> Iterator[Any]:
    """A message and all inside it; of one type only, where that is given."""
    if kind is None or isinstance(message, kind):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                yield from _messages(one, kind)


def _pick(model: onnx.ModelProto, generator: random.Random, kind: type) -> Any:
    return generator.choice(list(_messages(model, kind)))


def edge(model: onnx.ModelProto, generator: random.Random) -> None:
    """Another name at an input or an output of a node: an edge elsewhere, a cycle, a name twice."""
    node = _pick(model, generator, onnx.NodeProto)
    others = [name for one in _messages(model, onnx.NodeProto) for name in (*one.input, *one.output)]
    names = node.input if generator.random() < 0.6 and node.input else node.output
    names[generator.randrange(len(names))] = generator.choice([*others, *_NAMES])


def arity(model: onnx.ModelProto, generator: random.Random) -> None:
    """An input or output more or less."""
    node = _pick(model, generator, onnx.NodeProto)
    names = generator.choice((node.input, node.output))
    if generator.random() < 0.6:
        del names[generator.randrange(len(names))]
    else:
        names.append(generator.choice(_NAMES))


def operator(model: onnx.ModelProto, generator: random.Random) -> None:
    """Another operator or domain."""
    node = _pick(model, generator, onnx.NodeProto)
    if generator.random() < 0.85:
        node.op_type = generator.choice([*_OPERATORS, ""])
    else:
        node.domain = generator.choice(("own", "com.microsoft", "ai.onnx", "ai.onnx.ml", "nowhere"))


def rename(model: onnx.ModelProto, generator: random.Random) -> None:
    """Another name of a tensor, a value, a node, a graph or an attribute."""
    kinds = (onnx.TensorProto, onnx.ValueInfoProto, onnx.NodeProto, onnx.AttributeProto, onnx.GraphProto)
    _pick(model, generator, generator.choice(kinds)).name = generator.choice(_NAMES)


def dims(model: onnx.ModelProto, generator: random.Random) -> None:
    """Another extent of a stored tensor."""
    tensor = _pick(model, generator, onnx.TensorProto)
    chance = generator.random()
    if chance < 0.7:
        tensor.dims[generator.randrange(len(tensor.dims))] = generator.choice(_DIMS)
    elif chance < 0.85:
        del tensor.dims[generator.randrange(len(tensor.dims))]
    else:
        tensor.dims.append(generator.choice(_DIMS))


def declared_shape(model: onnx.ModelProto, generator: random.Random) -> None:
    """Another extent of an input, an output or a declared value."""
    shape = _pick(model, generator, onnx.TensorShapeProto)
    chance = generator.random()
    if chance < 0.7:
        shape.dim[generator.randrange(len(shape.dim))].dim_value = generator.choice(_DIMS)
    elif chance < 0.85:
        del shape.dim[generator.randrange(len(shape.dim))]
    else:
        shape.dim.add().dim_param = generator.choice(_NAMES)


def stored_type(model: onnx.ModelProto, generator: random.Random) -> None:
    """Another type of a stored tensor."""
    _pick(model, generator, onnx.TensorProto).data_type = generator.choice(_TYPES)


def declared_type(model: onnx.ModelProto, generator: random.Random) -> None:
    """Another type of a value: of its elements, or a sequence, an optional, a map, none."""
    value = _pick(model, generator, onnx.ValueInfoProto)
    chance = generator.random()
    if chance < 0.5:
        value.type.tensor_type.elem_type = generator.choice(_TYPES)
    elif chance < 0.6:
        value.ClearField("type")
    else:
        inner = onnx.TypeProto()
        inner.CopyFrom(value.type)
        kind = generator.choice(("sequence_type", "optional_type", "map_type", "sparse_tensor_type"))
        if kind == "map_type":
            value.type.map_type.key_type = TensorProto.INT64
            value.type.map_type.value_type.CopyFrom(inner)
        elif kind == "sparse_tensor_type":
            value.type.sparse_tensor_type.elem_type = TensorProto.FLOAT
        else:
            getattr(value.type, kind).elem_type.CopyFrom(inner)


def values(model: onnx.ModelProto, generator: random.Random) -> None:
    """Raw data that are too short, too long, gone, or changed; typed values that are."""
    tensor = _pick(model, generator, onnx.TensorProto)
    raw = tensor.raw_data
    if raw:
        tensor.raw_data = generator.choice(
            (raw[:-1], raw[: len(raw) // 2], b"", raw + b"\0", raw * 2, bytes(generator.randbytes(len(raw))))
        )
    else:
        field, typed = generator.choice(
            [item for item in tensor.ListFields() if item[0].name.endswith("_data")]
        )
        if field.name == "external_data":
            location(model, generator)
        elif generator.random() < 0.5:
            del typed[: max(len(typed) // 2, 1)]
        else:
            typed.extend(list(typed))


def attribute(model: onnx.ModelProto, generator: random.Random) -> None:
    """Another value or type of an attribute, or none."""
    node = generator.choice([one for one in _messages(model, onnx.NodeProto) if one.attribute])
    one = generator.choice(node.attribute)
    chance = generator.random()
    if chance < 0.12:
        node.attribute.remove(one)
    elif chance < 0.24:
        one.type = generator.randrange(0, 15)  # type: ignore[assignment]
    elif chance < 0.3:
        node.attribute.add().CopyFrom(one)
    elif chance < 0.36:
        one.ref_attr_name = generator.choice(_NAMES)
    elif one.ints:
        change = generator.random()
        if change < 0.6:
            one.ints[generator.randrange(len(one.ints))] = generator.choice(_NUMBERS)
        elif change < 0.8:
            del one.ints[generator.randrange(len(one.ints))]
        else:
            one.ints.append(generator.choice(_NUMBERS))
    elif one.HasField("i"):
        one.i = generator.choice(_NUMBERS)
    elif one.HasField("f"):
        one.f = generator.choice(_FLOATS)
    elif one.HasField("s"):
        one.s = generator.choice((b"", b"\xff\xfe", b"SAME_UPPER", b"nearest", b"i" * 3000, b"ii,jj->k"))
    elif one.HasField("t"):
        generator.choice((dims, stored_type, values))(one.t, generator)
    elif one.HasField("g"):
        one.ClearField("g")


def new_attribute(model: onnx.ModelProto, generator: random.Random) -> None:
    """An attribute more: of another operator, mostly."""
    node = _pick(model, generator, onnx.NodeProto)
    name = generator.choice(
        ("axis", "axes", "perm", "to", "group", "pads", "strides", "value", "keepdims", "body")
    )
    value: Any = generator.choice((generator.choice(_NUMBERS), [generator.choice(_NUMBERS)] * 3, 1.5, "text"))
    node.attribute.append(helper.make_attribute(name, value))


def version(model: onnx.ModelProto, generator: random.Random) -> None:
    """Another opset or version of the format."""
    chance = generator.random()
    if chance < 0.3:
        model.ir_version = generator.choice((0, 1, 3, 1000, 2**62, -1))
    elif chance < 0.75:
        model.opset_import[0].version = generator.choice((0, 1, 6, 9, 13, 21, 25, 1000, -1, 2**62))
    elif chance < 0.85:
        del model.opset_import[:]
    else:
        model.opset_import.append(
            helper.make_opsetid(generator.choice(("", "own", "x")), generator.choice(_NUMBERS))
        )


def remove(model: onnx.ModelProto, generator: random.Random) -> None:
    """One element less: a node, an input, a weight, a function, whatever."""
    field = _repeated(model, generator)
    del field[generator.randrange(len(field))]


def double(model: onnx.ModelProto, generator: random.Random) -> None:
    """One element twice."""
    field = _repeated(model, generator)
    one = generator.choice(list(field))
    if hasattr(one, "CopyFrom"):
        field.add().CopyFrom(one)
    else:
        field.append(one)


def swap(model: onnx.ModelProto, generator: random.Random) -> None:
    """Two elements in each other's place: nodes are then out of order."""
    field = _repeated(model, generator)
    first, second = (generator.randrange(len(field)) for _ in range(2))
    if hasattr(field[first], "CopyFrom"):
        kept = type(field[first])()
        kept.CopyFrom(field[first])
        field[first].CopyFrom(field[second])
        field[second].CopyFrom(kept)
    else:
        field[first], field[second] = field[second], field[first]


def _repeated(model: onnx.ModelProto, generator: random.Random) -> Any:
    fields = [
        value
        for message in _messages(model)
        for field, value in message.ListFields()
        if field.is_repeated and field.name != "dims"
    ]
    return generator.choice(fields)


def location(model: onnx.ModelProto, generator: random.Random) -> None:
    """A tensor whose data lie elsewhere."""
    tensor = _pick(model, generator, onnx.TensorProto)
    entries = {entry.key: entry.value for entry in tensor.external_data} or {"location": "m.data"}
    chance = generator.random()
    if chance < 0.5:
        entries["location"] = generator.choice(_PLACES)
    elif chance < 0.75:
        entries["offset"] = generator.choice(("-1", "-4096", "9" * 30, "x", "1", str(2**62)))
    else:
        entries["length"] = generator.choice(("-1", "0", "9" * 30, "x", "1", str(2**62)))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def recursion(model: onnx.ModelProto, generator: random.Random) -> None:
    """A function that calls itself, or that doubles its nodes at each of many levels."""
    if generator.random() < 0.5:
        own = generator.choice(model.functions)
        own.node.append(helper.make_node(own.name, own.input[:1], own.output[:1], domain=own.domain))
        return
    model.opset_import.append(helper.make_opsetid("bomb", 1))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bomb", 1)]
    levels = generator.choice((3, 40))
    for level in range(levels):
        inner = f"f{level + 1}" if level + 1 < levels else "Relu"
        domain = "bomb" if level + 1 < levels else ""
        nodes = [
            helper.make_node(inner, ["u"], ["t"], domain=domain),
            helper.make_node(inner, ["t"], ["v"], domain=domain),
        ]
        model.functions.append(helper.make_function("bomb", f"f{level}", ["u"], ["v"], nodes, opsets))
    model.graph.node.append(helper.make_node("f0", [model.graph.input[0].name], ["boom"], domain="bomb"))


def nesting(model: onnx.ModelProto, generator: random.Random) -> None:
    """Subgraphs inside subgraphs, a few or very many."""
    inner = helper.make_graph([helper.make_node("Constant", [], ["deep"], value_float=1.0)], "deep", [], [
        helper.make_tensor_value_info("deep", TensorProto.FLOAT, [])])  # fmt: skip
    for _ in range(generator.choice((2, 10, 25, 200))):
        node = helper.make_node("If", ["c"], ["deep"], then_branch=inner, else_branch=onnx.GraphProto())
        inner = helper.make_graph(
            [node], "deep", [], [helper.make_tensor_value_info("deep", TensorProto.FLOAT, [])]
        )
    model.graph.node.append(helper.make_node("If", ["c"], ["deepest"], then_branch=inner, else_branch=inner))


def oddments(model: onnx.ModelProto, generator: random.Random) -> None:
    """Fields that hardly any file has: training, annotations, sparse weights, metadata."""
    chance = generator.randrange(5)
    if chance == 0:
        model.training_info.add().algorithm.node.add().op_type = "Nowhere"
    elif chance == 1:
        note = model.graph.quantization_annotation.add(tensor_name="nowhere")
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="nothing")
    elif chance == 2:
        sparse = model.graph.sparse_initializer.add()
        sparse.dims.extend(generator.sample(_DIMS, 2))
        sparse.values.CopyFrom(helper.make_tensor(generator.choice(("x", "w", "s")), 1, [2], [1.0, 2.0]))
        sparse.indices.CopyFrom(helper.make_tensor("i", 7, [2], [0, generator.choice(_NUMBERS)]))
    elif chance == 3:
        model.metadata_props.add(
            key=generator.choice(("qcompile.inputs", "qcompile", "x")), value="{[" * 20000
        )
    else:
        model.ClearField("graph")


MUTATIONS: tuple[Mutation, ...] = (
    edge, edge, arity, operator, rename, dims, dims, declared_shape, declared_shape, stored_type,
    declared_type, values, values, attribute, attribute, new_attribute, version, remove, double, swap,
    location, recursion, nesting, oddments,
)  # fmt: skip


def flip(content: bytes, generator: random.Random) -> bytes:
    """A few bits changed."""
    changed = bytearray(content)
    for _ in range(generator.choice((1, 1, 2, 8))):
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def cut(content: bytes, generator: random.Random) -> bytes:
    """The end is missing."""
    return content[: generator.randrange(len(content))]


def insert(content: bytes, generator: random.Random) -> bytes:
    """A few bytes more."""
    place = generator.randrange(len(content))
    return content[:place] + generator.randbytes(generator.choice((1, 4, 64))) + content[place:]


def repeat(content: bytes, generator: random.Random) -> bytes:
    """A part twice."""
    start, end = sorted(generator.randrange(len(content)) for _ in range(2))
    return content[:end] + content[start:end] + content[end:]


def not_utf8(content: bytes, generator: random.Random) -> bytes:
    """A name that is no UTF-8, of the same length."""
    names = [
        name
        for name in (b"w1", b"conv", b"Relu", b"MatMul", b"batch", b"float", b"Constant")
        if name in content
    ]
    name = generator.choice(names or [content[:1]])
    return content.replace(name, b"\xff" * len(name), generator.choice((1, 100)))
