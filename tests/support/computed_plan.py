"""Plans of simulated engines: a header and an ONNX file, and what they compute."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

TYPES = {
    "float32": "FLOAT", "float16": "HALF", "int8": "INT8", "int32": "INT32", "int64": "INT64", "bool": "BOOL",
    "uint8": "UINT8", "bfloat16": "BF16",
}  # fmt: skip

Ranges = Mapping[str, Sequence[Sequence[int]]]


def write_plan(
    path: Path,
    model: onnx.ModelProto,
    version: str,
    *,
    profiles: Sequence[Ranges] = ({},),
    values: Sequence[Ranges] = (),
    host: Sequence[str] = (),
    data_dependent: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
    formats: Mapping[str, str] | None = None,
    plugins: Sequence[str] = (),
) -> Path:
    """Write an engine.

    Args:
        path: Where to.
        model: What it computes.
        version: Which TensorRT loads it, a key of `recorded_tensorrt.FILES`.
        profiles: For each profile, dynamic input to its smallest, optimal and largest shape.
        values: For each profile, shape input to its smallest, optimal and largest values.
        host: Inputs and outputs that TensorRT reads and writes on the host.
        data_dependent: Outputs whose shape is known after the run alone.
        plugins: Creators without which it cannot be loaded.
        types, formats: Tensor to the type or format the engine tells, where not that of the model.

    Source: the tests' own: no real plan is like it.
    """
    header = {
        "version": version, "profiles": profiles, "values": list(values) or [{} for _ in profiles],
        "host": list(host), "data_dependent": list(data_dependent), "types": dict(types or {}),
        "formats": dict(formats or {}), "plugins": list(plugins),
    }  # fmt: skip
    path.write_bytes(json.dumps(header).encode() + b"\0" + model.SerializeToString())
    return path


def make_kernel(model: onnx.ModelProto) -> Any:
    """Return feeds to outputs in order.

    Source: the tests' own: ONNX Runtime computes.
    """
    types = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    if onnx.TensorProto.BFLOAT16 in types:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(model)
        return lambda feeds: evaluator.run(None, feeds)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda feeds: session.run(None, feeds)


class PlanTensor:
    """What the model says of one input or output.

    Source: the tests' own.
    """

    def __init__(self, value: onnx.ValueInfoProto, is_input: bool) -> None:
        kind = value.type.tensor_type
        self.name, self.is_input = value.name, is_input
        self.dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        self.shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)
