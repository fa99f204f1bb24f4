"""Export a model of float64, float16 or bfloat16 in float32; name such a model where that is not asked for.

The tensors of the module are exchanged for float32 ones while it is exported. They come back afterwards, and
once in between, when the outputs of both are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ...core.progress import quiet
from ...data.batches import Data
from ...data.readers import Batch
from ...errors import ExportError, first_line
from ...model.sources.pytorch import LoadedModel, flat_tensors, import_torch
from ...spec.tensors import TensorInfo, parse_input
from ..check import compare_outputs
from .checks import Original

_LOWEST_DB = {"float64": 80.0, "float16": 40.0, "bfloat16": 25.0}
"""Signal-to-noise ratio of the float32 model to itself in another type.

One rounding of bfloat16 has about 54 dB, of float16 72 dB, of float32 150 dB; a network adds up many."""


class DataInFloat32(Data):
    """Samples whose floats of any type become float32."""

    def _checked(self, batch: Batch) -> Batch:
        feeds = {
            name: array.astype("float32") if str(array.dtype) in _LOWEST_DB else array
            for name, array in batch.feeds.items()
        }
        return super()._checked(replace(batch, feeds=feeds))


def type_warnings(loaded: LoadedModel, label: str) -> list[str]:
    """Warn of a model whose parameters or inputs have no INT8; refuse those that nothing here computes."""
    torch = import_torch()
    example = loaded.example or ()
    inputs = example.items() if isinstance(example, dict) else enumerate(example)
    tensors = [(f"parameter {name}", value) for name, value in loaded.module.named_parameters()]
    tensors += [(f"input {name}", value) for name, value in inputs]
    of_type = {_type_of(value): name for name, value in reversed(tensors) if isinstance(value, torch.Tensor)}
    if name := of_type.get("bfloat16"):
        raise ExportError(
            f"{label}: {name} is bfloat16, which neither NumPy nor ONNX Runtime computes",
            hint="`dtype` float32 exports the model in float32",
            reason="dtype",
        )
    dtype = next((dtype for dtype in ("float64", "float16") if dtype in of_type), "")
    return [f"{of_type[dtype]} is {dtype}, which has no INT8; `dtype` float32 exports it so"] if dtype else []


class InFloat32:
    """A loaded model whose tensors can be exchanged for float32 ones.

    Attributes:
        loaded: The model with a float32 example.
    """

    def __init__(self, loaded: LoadedModel, label: str) -> None:
        torch = import_torch()
        self._first, self._label = loaded, label
        # Of a part of the module, a name in it, and the other tensor. Tied tensors stay tied.
        self._places: list[list[Any]] = []
        converted: dict[int, Any] = {}
        for part in loaded.module.modules():
            for name, tensor in [*part._parameters.items(), *part._buffers.items(), *vars(part).items()]:
                if not isinstance(tensor, torch.Tensor) or _type_of(tensor) not in _LOWEST_DB:
                    continue
                if id(tensor) not in converted:
                    other = tensor.detach().float()
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    converted[id(tensor)] = torch.nn.Parameter(other, False) if is_parameter else other
                self._places.append([part, name, converted[id(tensor)]])
        if self._places and isinstance(loaded.module, torch.jit.ScriptModule | torch.fx.GraphModule):
            raise ExportError(
                f"{label}: a captured model has its types in its graph; `dtype` cannot change them",
                hint="call .float() on the module, then capture and save it again",
            )
        example: Any = loaded.example
        if isinstance(example, dict):
            example = {name: _to_float32(value) for name, value in example.items()}
        elif example is not None:
            example = tuple(map(_to_float32, example))
        self.loaded = replace(loaded, example=example)

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Let the module have its other tensors in the block: float32, or inside of that, those it had."""

        def exchange() -> None:
            for place in self._places:
                part, name, other = place
                place[2] = getattr(part, name)
                setattr(part, name, other)  # by which a recurrent layer updates its list of them

        exchange()
        try:
            yield
        finally:
            exchange()

    def compare(self, original: Original) -> None:
        """Add the check of the float32 model against itself in the type it came in, or a warning."""
        if not self._places:
            return
        torch, example = import_torch(), original.example
        with self.exchanged():
            tensor = getattr(*self._places[0][:2])
            kind = _type_of(tensor)
            values: Any = self._first.example or {}
            if not isinstance(values, dict):
                values = dict(zip((tensor.name for tensor in example.inputs), values, strict=False))

            def as_first(name: str, value: Any) -> Any:
                first = values[name].dtype if name in values else tensor.dtype
                return value.to(first) if value.is_floating_point() else value

            arguments, keywords = example.arguments(example.feeds)
            names = [tensor.name for tensor in example.inputs]
            try:
                with quiet(), torch.no_grad():
                    outputs = self._first.module(
                        *map(as_first, names, arguments),
                        **{name: as_first(name, value) for name, value in keywords.items()},
                    )
            except Exception as error:  # not every operator takes every type on a processor
                why = f"it raises {type(error).__name__}: {first_line(error)}"
                original.warnings.append(f"not compared with the model in {kind}: there {why}")
                return
        subject = f"same outputs in float32 as in {kind}"
        sides = [
            [tensor.float().numpy() for _, tensor in flat_tensors(side) if tensor.is_floating_point()]
            for side in (outputs, original.reference)
        ]
        if not sides[0]:  # integers, of which nearly equal scores decide
            return
        indices = [str(index) for index in range(len(sides[0]))]
        check = compare_outputs(subject, indices, [(sides[0], sides[1])], lowest_db=_LOWEST_DB[kind])
        if not check.passed:
            raise ExportError(
                f"{self._label}: failed '{subject}': {check.detail}",
                hint="find the layer that needs that type, or leave `dtype` out",
                reason="dtype",
            )
        original.checks.append(check)


def float32_inputs(inputs: Sequence[str | TensorInfo]) -> list[TensorInfo]:
    """Return inputs of which floats are float32."""
    parsed = (parse_input(item) if isinstance(item, str) else item for item in inputs)
    return [replace(tensor, dtype="float32") if tensor.dtype in _LOWEST_DB else tensor for tensor in parsed]


def _to_float32(value: Any) -> Any:
    return value.float() if _type_of(value) in _LOWEST_DB else value


def _type_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
