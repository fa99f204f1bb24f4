"""Names of PyTorch's modules for the tensors of an exported graph."""

from __future__ import annotations

from .. import onnx


def module_names(model: onnx.ModelProto) -> dict[str, str]:
    """Return tensor to module, for tensors computed with or after a module that has weights.

    1. A node with an initializer `stages.0.conv1.weight` is the module `stages.0.conv1`.
    2. Another node follows the module of its first input that has one: `stages.0.conv1 → Relu`.
    """
    weights = {tensor.name: tensor.name.rpartition(".")[0] for tensor in model.graph.initializer}
    modules: dict[str, str] = {}
    names: dict[str, str] = {}
    for node in model.graph.node:
        module = next((path for name in node.input if (path := weights.get(name))), "")
        name = module
        if not module:
            module = next((path for name in node.input if (path := modules.get(name))), "")
            name = f"{module} → {node.op_type}"
        if module:
            modules.update(dict.fromkeys(node.output, module))
            names.update(dict.fromkeys(node.output, name))
    return names
