"""Export a float64, float16 or bfloat16 model in float32; without that option, warn or raise.

The tensors of the module are exchanged for float32 ones during the export and restored afterwards. They are
also restored once in between, to compare the outputs of both.
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
"""Required SQNR in decibels of the float32 model against the model in its original type.

One rounding to bfloat16 has about 54 dB, to float16 72 dB, to float32 150 dB; a network adds up many."""


class DataInFloat32(Data):
    """Samples in which all floats become float32."""

    def _checked(self, batch: Batch) -> Batch:
        feeds = {
            name: array.astype("float32") if str(array.dtype) in _LOWEST_DB else array
            for name, array in batch.feeds.items()
        }
        return super()._checked(replace(batch, feeds=feeds))


def type_warnings(loaded: LoadedModel, label: str) -> list[str]:
    """Return a warning for float64 or float16 parameters or inputs, which INT8 excludes; refuse bfloat16."""
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
    return [f"{of_type[dtype]} is {dtype}, which has no INT8; `dtype` float32 converts it"] if dtype else []


class InFloat32:
    """A loaded model with tensors that can be exchanged for float32 copies.

    Attributes:
        loaded: The model with its example in float32.
    """

    def __init__(self, loaded: LoadedModel, label: str) -> None:
        torch = import_torch()
        self._source_model, self._label = loaded, label
        # Module, attribute and the tensor to exchange. Tied tensors share one copy.
        self._places: list[list[Any]] = []
        converted: dict[int, Any] = {}
        for part in loaded.module.modules():
            for name, tensor in [*part._parameters.items(), *part._buffers.items(), *vars(part).items()]:
                if not isinstance(tensor, torch.Tensor) or _type_of(tensor) not in _LOWEST_DB:
                    continue
                if id(tensor) not in converted:
                    copied = tensor.detach().float()
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    converted[id(tensor)] = torch.nn.Parameter(copied, False) if is_parameter else copied
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
        """Exchange the tensors in the block, for float32 copies; nested, for the original tensors."""

        def exchange() -> None:
            for place in self._places:
                part, name, tensor = place
                place[2] = getattr(part, name)
                setattr(part, name, tensor)  # also updates a recurrent layer's list of weights

        exchange()
        try:
            yield
        finally:
            exchange()

    def compare(self, original: Original) -> None:
        """Check float32 outputs against those in the original type; if these cannot be computed, warn."""
        if not self._places:
            return
        torch, example = import_torch(), original.example
        with self.exchanged():
            tensor = getattr(*self._places[0][:2])
            dtype = _type_of(tensor)
            values: Any = self._source_model.example or {}
            if not isinstance(values, dict):
                values = dict(zip((tensor.name for tensor in example.inputs), values, strict=False))

            def as_first(name: str, value: Any) -> Any:
                first = values[name].dtype if name in values else tensor.dtype
                return value.to(first) if value.is_floating_point() else value

            arguments, keywords = example.arguments(example.feeds)
            names = [tensor.name for tensor in example.inputs]
            try:
                with quiet(), torch.no_grad():
                    outputs = self._source_model.module(
                        *map(as_first, names, arguments),
                        **{name: as_first(name, value) for name, value in keywords.items()},
                    )
            except Exception as error:  # some operators do not support every type on the CPU
                why = f"it raises {type(error).__name__}: {first_line(error)}"
                original.warnings.append(f"not compared with the model in {dtype}: there {why}")
                return
        subject = f"same outputs in float32 as in {dtype}"
        sides = [
            [tensor.float().numpy() for _, tensor in flat_tensors(side) if tensor.is_floating_point()]
            for side in (outputs, original.reference)
        ]
        if not sides[0]:  # only integers, which near ties of scores can change
            return
        indices = [str(index) for index in range(len(sides[0]))]
        check = compare_outputs(subject, indices, [(sides[0], sides[1])], lowest_db=_LOWEST_DB[dtype])
        if not check.passed:
            raise ExportError(
                f"{self._label}: failed '{subject}': {check.detail}",
                hint="find the layer that needs that type, or leave `dtype` out",
                reason="dtype",
            )
        original.checks.append(check)


def float32_inputs(inputs: Sequence[str | TensorInfo]) -> list[TensorInfo]:
    """Return the inputs with float32 in place of other float types."""
    parsed = (parse_input(item) if isinstance(item, str) else item for item in inputs)
    return [replace(tensor, dtype="float32") if tensor.dtype in _LOWEST_DB else tensor for tensor in parsed]


def _to_float32(value: Any) -> Any:
    return value.float() if _type_of(value) in _LOWEST_DB else value


def _type_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
