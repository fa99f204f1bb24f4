"""How Triton's LibTorch backend addresses the inputs and outputs of a TorchScript file: by their position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ArtifactError
from ..model.pytorch import import_torch, load_torch
from ..model.source import parse_source
from ..tensors import ModelIO


def positional_names(path: Path, io: ModelIO) -> list[str]:
    """Return `INPUT__0` and so on for the manifest's inputs, in its order.

    Triton, "Model Configuration", "Special Conventions for PyTorch Backend": `NAME__INDEX`, where the index
    is the argument of `forward`.

    Raises:
        EngineUnavailable: If PyTorch, which has to read the file, is not here.
        ArtifactError: If `forward` takes or returns something else than tensors, one by one.
    """
    import_torch()
    module: Any = load_torch(parse_source(str(path))).module
    schema = module.forward.schema
    arguments = list(schema.arguments)[1:]  # without self
    names = [argument.name for argument in arguments]
    given = [str(argument.type) for argument in arguments]
    returned = _tensors_of(schema.returns[0].type if len(schema.returns) == 1 else None)
    if any(kind != "Tensor" for kind in given) or len(given) != len(io.inputs):
        raise _not_plain(path, f"forward takes ({', '.join(given)})", f"{len(io.inputs)} tensors")
    if returned != len(io.outputs):
        what = ", ".join(str(value.type) for value in schema.returns)
        raise _not_plain(path, f"forward returns {what}", f"a tensor or a tuple of {len(io.outputs)}")
    by_name = all(tensor.name in names for tensor in io.inputs)
    places = [names.index(tensor.name) for tensor in io.inputs] if by_name else range(len(io.inputs))
    return [f"INPUT__{place}" for place in places]


def _tensors_of(kind: Any) -> int:
    """How many tensors a type is; -1 when it is not a tensor or a tuple of them."""
    if str(kind) == "Tensor":
        return 1
    if kind is None or kind.kind() != "TupleType":
        return -1
    elements = [str(element) for element in kind.elements()]
    return len(elements) if all(element == "Tensor" for element in elements) else -1


def _not_plain(path: Path, problem: str, required: str) -> ArtifactError:
    return ArtifactError(
        f"{path}: {problem}; Triton's pytorch backend is given {required} here",
        hint="package the ONNX file in its place",
        file=path,
    )
