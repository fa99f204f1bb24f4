"""The JSON of TensorRT's engine inspector, as each version spells it.

8.5: layers with Name, LayerType, Inputs, Outputs of Name, Location, Dimensions and "Format/Datatype", then
ParameterType, Weights, TacticName, TacticValue (docs.nvidia.com/deeplearning/tensorrt, "Engine Inspector").
10.x: also StreamId and Metadata (github.com/NVIDIA/TensorRT/issues/4020, of 10.2); layers of the second
compiler spell a type alone, "Half", where others have a sentence (issues/4397). In both, a layer whose shapes
are dynamic has "N/A due to dynamic shapes" for its format and type, until the inspector is given an execution
context that knows them; its weights' type is told. 11.x: "Bindings" became "I/O Tensors", and
"Format/Datatype" became "Format" and "Datatype" (docs.nvidia.com/deeplearning/tensorrt/11.3.0, "Migrating
IEngineInspector Usage from TensorRT 10.x to 11.x"); that TensorRT-RTX 1.7 has this form too is assumed.
"""

from __future__ import annotations

import json
from typing import Any

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
    "BOOL": "Bool", "FP8": "FP8",
}  # fmt: skip
_KERNELS = {
    "FLOAT": "f32f32_f32f32_f32", "HALF": "f16f16_f16f16_f16", "BF16": "bf16bf16_bf16f32_f32",
    "INT8": "i8i8_i8i32_f32",
}  # fmt: skip
_UNKNOWN = "N/A due to dynamic shapes"


def engine_information(module: Any, plan: dict[str, Any], shapes_known: bool) -> str:
    """Return the inspector's JSON for an engine.

    Args:
        module: Whose spelling.
        plan: From `simulated_plan`.
        shapes_known: Whether an execution context knows the shapes of the inputs.

    Source: NvInferRuntime.h of release/10.13, `IEngineInspector`, on what each verbosity prints.
    """
    if plan["verbosity"] == "NONE":
        return json.dumps({"Layers": [], **_io(module, plan)})
    if plan["verbosity"] != "DETAILED":
        return json.dumps({"Layers": [layer["name"] for layer in plan["layers"]], **_io(module, plan)})
    return json.dumps({"Layers": layer_entries(module, plan, shapes_known), **_io(module, plan)}, indent=1)


def layer_entries(module: Any, plan: dict[str, Any], shapes_known: bool) -> list[dict[str, Any]]:
    """Return the inspector's words on each layer.

    Source: the head of this file: docs.nvidia.com, "Engine Inspector", and issues 4020 and 4397.
    """
    split = _split(module)
    entries = []
    for index, layer in enumerate(plan["layers"]):
        told = shapes_known or layer["second_compiler"]
        compute, parameter = layer["weights"] is not None, layer["kind"].removeprefix("Cask")
        entry: dict[str, Any] = {
            "Name": layer["name"],
            "LayerType": layer["kind"],
            **{
                side.capitalize(): [_tensor(layer, tensor, split, told) for tensor in layer[side]]
                for side in ("inputs", "outputs")
            },
        }
        if not layer["second_compiler"]:
            entry["ParameterType"] = parameter
            if compute:
                dtype, count = layer["weights"]
                entry["Weights"] = {"Type": _WORDS[dtype], "Count": count}
        if compute:
            form = "gemm" if layer["second_compiler"] else "fprop_implicit_gemm"
            entry["TacticName"] = f"sm80_xmma_{form}_{_KERNELS[layer['precision']]}_tilesize128x64x32"
        if not layer["second_compiler"]:
            entry["TacticValue"] = f"0x{index + 1:016x}"
        if hasattr(module.ILayer, "metadata"):
            entry["StreamId"] = 0
            entry["Metadata"] = "\x1f".join(f"[ONNX Layer: {name}]" for name in layer["onnx_names"] if name)
        entries.append(entry)
    return entries


def _tensor(layer: dict[str, Any], tensor: list[Any], split: bool, told: bool) -> dict[str, Any]:
    """Source: tools/experimental/trt-engine-explorer/trex/activations.py of release/10.13, and the 11.3
    migration guide, docs.nvidia.com.
    """
    name, shape, dtype = tensor
    entry: dict[str, Any] = {"Name": name, "Dimensions": shape}
    if not layer["second_compiler"]:
        entry["Location"] = "Device"
    told = told or not any(extent < 0 for extent in shape)
    word = _WORDS[dtype] if layer["second_compiler"] else _SENTENCES.get(dtype, _WORDS[dtype])
    if split:
        return entry | {"Format": word if told else _UNKNOWN, "Datatype": _WORDS[dtype] if told else _UNKNOWN}
    return entry | {"Format/Datatype": word if told else _UNKNOWN}


def _io(module: Any, plan: dict[str, Any]) -> dict[str, Any]:
    if not _split(module):
        return {"Bindings": [tensor["name"] for tensor in plan["io"]]}
    return {
        "I/O Tensors": [
            {
                "Name": tensor["name"],
                "IOMode": tensor["mode"].capitalize(),
                "DataType": _WORDS[tensor["dtype"]],
                "Dimensions": tensor["shape"],
                "Location": "Device",
                "IsShapeInferenceIO": tensor["holds_shape"],
                "ProfileInfo": [],
            }
            for tensor in plan["io"]
        ]
    }


def _split(module: Any) -> bool:
    """Whether the form is that of 11: it came with the end of weak types."""
    return not hasattr(module.BuilderFlag, "FP16")
