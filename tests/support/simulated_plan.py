"""The plan of a simulated engine: the builder's stand-in writes it, and the runtime's reads and computes it.

It begins with the bytes that real plans begin with; then come JSON, a zero, and the ONNX file that the engine
computes. Weights that a plan leaves out are initializers without data there.

Source: TensorRT-RTX 1.7.1 for the first bytes; the tests' own: no real plan is like it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto
from recorded_tensorrt import FILES

MAGIC = {"tensorrt": b"ftrt", "tensorrt_rtx": b"vtrt"}
TYPES = {
    TensorProto.FLOAT: "FLOAT", TensorProto.FLOAT16: "HALF", TensorProto.INT8: "INT8",
    TensorProto.INT32: "INT32", TensorProto.INT64: "INT64", TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8", TensorProto.BFLOAT16: "BF16",
}  # fmt: skip
WORDS = {np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)): word for kind, word in TYPES.items()}
_ARRAYS = {word: dtype for dtype, word in WORDS.items()}
_DEFAULTS: dict[str, Any] = {
    "devices": ["8.6"], "version_compatible": False, "lean_runtime": False, "verbosity": "DETAILED",
    "refittable": False, "stripped": False, "streams_weights": False, "io": [], "profiles": [{}],
    "values": [{}], "layers": [], "plugins": [], "weights": {}, "data_dependent": [], "marked": [],
    "unfused": [],
}  # fmt: skip

Ranges = Mapping[str, Sequence[Sequence[int]]]


class PlanTensor(NamedTuple):
    """An input or output, an entry of a plan's "io". Source: the tests' own."""

    name: str
    mode: str
    dtype: str
    shape: Sequence[int]
    holds_shape: bool
    format: str

    @property
    def is_input(self) -> bool:
        return self.mode == "INPUT"

    @property
    def array_type(self) -> np.dtype[Any]:
        return _ARRAYS[self.dtype]


def pack(plan: Mapping[str, Any]) -> bytes:
    """Serialize a plan; a stripped one holds no weights and none of their digests. Source: the tests' own."""
    header, model = {key: value for key, value in plan.items() if key != "model"}, plan["model"]
    if plan["stripped"]:
        header["weights"] = {name: {**entry, "sha256": ""} for name, entry in plan["weights"].items()}
        whole = onnx.load_from_string(model)
        for item in whole.graph.initializer:
            if item.name in plan["weights"]:
                item.CopyFrom(TensorProto(name=item.name, dims=item.dims, data_type=item.data_type))
        model = whole.SerializeToString()
    return MAGIC[plan["module"]] + json.dumps(header).encode() + b"\0" + bytes(model)


def read_plan(content: Any) -> dict[str, Any] | None:
    """Return what `pack` wrote; None for anything else. Source: the tests' own."""
    content = bytes(content)
    header, _, model = content[4:].partition(b"\0")
    try:
        return {**_DEFAULTS, **json.loads(header), "model": model} if content[:4] in MAGIC.values() else None
    except ValueError:
        return None


def write_plan(
    path: Path,
    model: onnx.ModelProto,
    version: str,
    *,
    host: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
    formats: Mapping[str, str] | None = None,
    **about: Any,
) -> Path:
    """Write an engine.

    Args:
        path: Where to.
        model: What it computes.
        version: Which TensorRT loads it, a key of `recorded_tensorrt.FILES`.
        host: Inputs and outputs that TensorRT reads and writes on the host.
        types, formats: Tensor to the type or format the engine tells, where not that of the model.
        about: "profiles": for each profile, dynamic input to its smallest, optimal and largest shape;
            "values": the same of shape inputs; "data_dependent": outputs whose shape is known after the run
            alone; "plugins": creators without which it cannot be loaded; "marked" and "unfused": its debug
            tensors, those that were marked and those left unfused.

    Source: the tests' own.
    """
    module, _, number = FILES[version].partition("-")
    io = [
        PlanTensor(
            value.name, mode, (types or {}).get(value.name, TYPES[value.type.tensor_type.elem_type]),
            [dim.dim_value if dim.HasField("dim_value") else -1 for dim in value.type.tensor_type.shape.dim],
            value.name in host, (formats or {}).get(value.name, "LINEAR"),
        )._asdict()
        for mode, values in (("INPUT", model.graph.input), ("OUTPUT", model.graph.output))
        for value in values
    ]  # fmt: skip
    plan = {**_DEFAULTS, "module": module, "version": number, "io": io, **about}
    plan["values"] = about.get("values") or [{} for _ in plan["profiles"]]
    path.write_bytes(pack({**plan, "model": model.SerializeToString()}))
    return path


def make_kernel(content: bytes, inside: Sequence[str] = ()) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return feeds to outputs, and to tensors `inside`, by name.

    Source: the tests' own: ONNX Runtime computes.
    """
    model = onnx.load_from_string(content)
    ends = (*model.graph.input, *model.graph.output)
    kinds = {value.name: value.type.tensor_type.elem_type for value in ends}
    arrays = {name: onnx.helper.tensor_dtype_to_np_dtype(kind) for name, kind in kinds.items()}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in {*inside} - {*kinds})
    names = [value.name for value in model.graph.output]
    if TensorProto.BFLOAT16 in kinds.values():
        from onnx.reference import ReferenceEvaluator

        run = ReferenceEvaluator(model).run
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        run = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        ).run

    def compute(feeds: dict[str, Any]) -> dict[str, Any]:
        typed = {name: array.astype(arrays[name], copy=False) for name, array in feeds.items()}
        return dict(zip(names, run(None, typed), strict=True))

    return compute
