"""Upgrade an ONNX model to a newer opset with ONNX's converter, and compare the two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...files import temporary_folder
from ...model.graph import without_weights
from ...model.onnx_file import copy_model, opset, save_onnx
from ..quantize.prepare import upgrade_opset
from .fit import same_outputs

if TYPE_CHECKING:
    import onnx


def in_newer_opset(
    model: onnx.ModelProto, path: Path, lowest: int, *, data: str | None = None
) -> onnx.ModelProto:
    """Return the model in opset `lowest` or newer; itself where it is no older.

    Args:
        model: What `path` holds.
        path: The file.
        lowest: The opset.
        data: Samples to compare the outputs on; random input otherwise.

    Raises:
        UnsupportedOperator: Naming what ONNX's converter could not take.
        ModelError: If the converted model computes something else.
    """
    if opset(model) >= lowest:
        return model
    raised = copy_model(model)
    upgrade_in_place(raised, lowest)
    with temporary_folder("opset") as folder:
        converted = folder / path.name
        save_onnx(raised, converted)
        same_outputs(path, converted, data)
    return raised


def upgrade_in_place(model: onnx.ModelProto, lowest: int) -> None:
    """Bring a model to opset `lowest` where it is older; large weights are not copied.

    Args:
        model: It is changed; it may be over protobuf's 2 GB.
        lowest: The opset.

    Raises:
        UnsupportedOperator: Naming what ONNX's converter could not take.
    """
    import onnx

    if opset(model) < lowest:
        light = without_weights(model)
        small = {tensor.name for tensor in light.graph.initializer}
        raised = upgrade_opset(light, lowest)
        stored = model.graph.initializer
        for index in reversed(range(len(stored))):
            if stored[index].name in small:
                del stored[index]
        stored.extend(raised.graph.initializer)
        del model.graph.node[:], model.opset_import[:]
        model.graph.node.extend(raised.graph.node)
        model.opset_import.extend(raised.opset_import)
    known = [item for item in model.opset_import if item.domain in ("", "ai.onnx")]
    model.ir_version = max(model.ir_version, onnx.helper.find_min_ir_version_for(known))
