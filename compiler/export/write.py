"""Write a PyTorch model as an ONNX file with the dynamo exporter, or else with the TorchScript exporter."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Literal

from ...core.progress import quiet
from ...errors import ExportError, QCompileError, UnsupportedOperator, first_line
from ...model.graph.input_notes import AxisRange
from ...model.graph.onnx_file import (
    EXTERNAL_DATA_BYTES,
    Graph,
    is_large,
    read_graph,
    save_onnx,
    write_whole,
)
from ...model.graph.plain_forms import to_plain_forms
from ...model.graph.source_paths import strip_source_paths
from ...model.sources.example import Example
from ...model.sources.pytorch import flat_tensors, import_torch, is_plain
from ...model.sources.user_code import deepest_line
from ...spec.opsets import NEWEST_BY_TORCHSCRIPT, OLDEST_BY_DYNAMO
from ...spec.words import GraphTarget
from ..opset.lower import lower_opset
from ..quantize.qat.finish_qdq import finish_qdq
from .axes import Axes, capture
from .recurrent import store_weights
from .translations import complete_file, complete_types, translations, without_scatter_means

if TYPE_CHECKING:
    import onnx

    from .checks import Original


@dataclass(frozen=True)
class WriteResult:
    """How a file was written.

    Attributes:
        model: The model, if it is not in the file yet.
        reason: Why the dynamo exporter failed, as the error to raise.
        frozen: Places in the model's code where the older exporter took a value for a constant: "net.py:12".
        notes: Notes for the user on parts that were captured in another form.
    """

    exporter: Literal["dynamo", "torchscript"]
    axes: Axes
    model: onnx.ModelProto | None = None
    reason: QCompileError | None = None
    frozen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def write_model(
    original: Original, names: Sequence[str], opset_version: int, path: Path, *, freeze_branches: bool
) -> WriteResult:
    """Write the model; its opset may differ from `opset_version` (`lower_to`).

    `freeze_branches` allows the trace to freeze branches on input values as the example takes them.
    """
    torch = import_torch()
    module, example, label = original.loaded.module, original.example, original.label
    flat = _flatten_signature(module, example)
    axes = Axes(ranges=dict(example.ranges), equal=[frozenset([name]) for name in sorted(example.extents)])
    if not is_plain(original.reference):  # the exporter supports only plain outputs
        module, example = flat, replace(example, by_name=False)
    if isinstance(module, torch.jit.ScriptModule):
        # The dynamo exporter traces Python code, which a TorchScript archive does not have.
        try:
            _write_traced(module, example, names, opset_version, path)
        except Exception as error:
            # A trace around the module supports default numbers of forward() and dicts as outputs; the
            # module's branches and loops are preserved.
            try:
                with quiet(), torch.no_grad():
                    trace = torch.jit.trace(flat, _by_position(example), check_trace=False)
                _write_traced(trace, example, names, opset_version, path)
            except Exception:
                raise explain_export_failure(error, label) from error
        return WriteResult("torchscript", axes)
    try:
        return WriteResult("dynamo", *_write_captured(module, example, names, opset_version, path))
    except Exception as error:  # PyTorch raises any type
        explained = explain_export_failure(error, label)
        if not _may_be_traced(module, example, explained):
            raise explained from error
        try:
            frozen = _write_traced(flat, example, names, opset_version, path)
        except Exception as second_error:
            if freeze_branches:
                explained.message += f"; PyTorch's TorchScript-based exporter: {first_line(second_error)}"
                explained.hint = "leave the part that branches out of the exported model"
            raise explained from error
        if frozen and explained.data.get("reason") == "values" and not freeze_branches:
            raise explained from error  # the trace contains one way of a branch on values
        return WriteResult("torchscript", axes, reason=explained, frozen=tuple(frozen))


def _by_position(example: Example) -> Any:
    return replace(example, by_name=False).arguments(example.feeds)[0]


def _flatten_signature(module: Any, example: Example) -> Any:
    """Return a module with positional tensor inputs that returns a tuple of tensors."""
    torch = import_torch()

    class Flat(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            self.training = False

        def forward(self, *tensors: Any) -> tuple[Any, ...]:
            named = dict(zip([tensor.name for tensor in example.inputs], tensors, strict=True))
            outputs = self.inner(**named) if example.by_name else self.inner(*tensors)
            return tuple(tensor for _, tensor in flat_tensors(outputs))

    return Flat()


def lower_to(graph: Graph, opset_version: int, label: str) -> None:
    """Lower an exported graph to the requested opset, if that is older."""
    if graph.opset <= opset_version:
        return
    try:
        graph.edited(lower_opset(graph.load(), opset_version))
    except UnsupportedOperator as error:
        raise ExportError(
            f"{label}: opset {opset_version} requested; the exporter reached {graph.opset}: {error.message}",
            hint=f"give `opset` {graph.opset}; an operator has no older form",
        ) from error


def complete_graph(graph: Graph, target: GraphTarget) -> None:
    """Rewrite a model in plain forms, and complete the Q/DQ of a model with trained scales."""
    if to_plain_forms(graph.model):
        graph.edited()
    if any(node.op_type == "QuantizeLinear" for node in graph.model.graph.node):
        graph.edited(finish_qdq(graph.load(), target))


def write_back(graph: Graph) -> Graph:
    """Write an edited graph to its file, and read it again; external weights are not moved."""
    model = graph.load(beside=False)
    if is_large(model, loaded=True):
        save_onnx(model, graph.path)
    else:
        strip_source_paths(model)
        write_whole(model, graph.path)
    return read_graph(graph.path)


def _write_captured(
    module: Any, example: Example, names: Sequence[str], opset_version: int, path: Path
) -> tuple[Axes, onnx.ModelProto | None]:
    torch = import_torch()
    with quiet(), torch.no_grad():
        captured, axes = capture(module, example)
        _require_ranges(module, example, axes)
        program = torch.onnx.export(
            without_scatter_means(captured), dynamo=True, verbose=False, output_names=list(names),
            input_names=[tensor.name for tensor in example.inputs],
            opset_version=max(opset_version, OLDEST_BY_DYNAMO),
            custom_translation_table=translations(),
        )  # fmt: skip
        store_weights(program.model)
        complete_types(program.model)
        weights = (tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
        if sum(weights) <= EXTERNAL_DATA_BYTES:
            return axes, program.model_proto
        program.save(str(path), external_data=True)
    return axes, None


def _require_ranges(module: Any, example: Example, axes: Axes) -> None:
    """Refuse a graph that holds for fewer extents than requested, if the model runs at more.

    PyTorch fixes the number of steps of some recurrent layers; only extents with that number then remain.
    """
    for name, required in example.ranges.items():
        captured = axes.ranges.get(name, AxisRange())
        if required.maximum is None or captured.maximum is None:
            continue
        largest = required.maximum - required.maximum % captured.multiple
        if captured.maximum < largest and _runs(module, example, {name: largest}):
            raise ExportError(
                f"axis {name!r}: {required.minimum} to {required.maximum} requested, and the model takes "
                f"{largest}; PyTorch captured a graph only for {captured.minimum} to {captured.maximum}",
                hint="give that axis a number in `inputs`, or request fewer extents",
                reason="axis",
            )


def _write_traced(
    module: Any, example: Example, names: Sequence[str], opset_version: int, path: Path
) -> list[str]:
    """Write with the TorchScript-based exporter; return the code lines where its tracer froze a value."""
    torch = import_torch()
    tensors = _by_position(example)
    with quiet(), ExitStack() as stack, warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        # On failure C++ writes the whole graph to standard output, past Python's streams; torch 2.13's
        # `setup_onnx_logging` switches this on.
        stack.callback(setattr, torch._C, "_jit_onnx_log", torch._C._jit_onnx_log)
        torch._C._jit_onnx_log = lambda *_: None
        stack.enter_context(_without_native_warnings())
        torch.onnx.export(
            module, tensors, str(path), dynamo=False, output_names=list(names),
            input_names=[tensor.name for tensor in example.inputs],
            dynamic_axes={tensor.name: tensor.dynamic_axes for tensor in example.inputs},
            opset_version=min(opset_version, NEWEST_BY_TORCHSCRIPT),
        )  # fmt: skip
        complete_file(path)
    traced = [item for item in caught if issubclass(item.category, torch.jit.TracerWarning)]
    return list(dict.fromkeys(f"{Path(item.filename).name}:{item.lineno}" for item in traced))


@contextmanager
def _without_native_warnings() -> Iterator[None]:
    """Discard C++ output to standard error, for example warnings of shape inference."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _may_be_traced(module: Any, example: Example, reason: QCompileError) -> bool:
    """Return whether to try the older exporter: neither the model nor the request caused the failure."""
    quantized = any("quantized_decomposed" in str(type(part)) for part in module.modules())
    if quantized or not isinstance(reason, ExportError):
        return False
    # Try extents other than the traced one and 1.
    return reason.data.get("reason") != "axis" or all(
        any(_runs(module, example, {name: size}) for size in (extent * 2, extent + 1, extent // 2))
        for name, extent in example.extents.items()
    )


def _runs(module: Any, example: Example, extents: dict[str, int]) -> bool:
    """Return whether the original runs with these extents of some axes."""
    if any(extent < 2 for extent in extents.values()):
        return False
    try:
        with quiet():
            example.call(module, example.at(extents))
    except Exception:  # models raise any type
        return False
    return True


def explain_export_failure(error: Exception, label: str) -> QCompileError:
    """Return the error to raise for an exception of `torch.onnx.export`.

    Returns:
        An `ExportError` whose data may have a `reason`: "axis" if an axis cannot be dynamic, "values" if the
        model branches on values. Another `QCompileError` is returned unchanged.
    """
    if isinstance(error, ExportError):
        message = error.message if error.message.startswith(label) else f"{label}: {error.message}"
        return ExportError(message, hint=error.hint, **error.data)
    if isinstance(error, QCompileError):
        return error
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    text = "\n".join(str(item) for item in chain)
    # The exporter's messages name the node but not its module; the node object in the frames has it.
    frames = [(frame, line) for item in chain for frame, line in walk_tb(item.__traceback__)]
    nodes = (frame.f_locals.get("node") for frame, _ in frames)
    node = next((node for node in nodes if hasattr(node, "meta") and hasattr(node, "target")), None)
    module = ""
    if node is not None:
        text += str(node.meta.get("stack_trace") or "")
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():  # the innermost is the last
            name = kind if isinstance(kind, str) else kind.__name__
            module = f"{path or '(root)'} ({name.rsplit('.', 1)[-1]})"
    place = f" in module {module}" if module else ""
    # If the model itself raised, its frames have the line.
    code = [(frame.f_code.co_filename, str(line), frame.f_code.co_name) for frame, line in frames]

    def failure(problem: str, hint: str = "", **data: str) -> ExportError:
        return ExportError(f"{label}: {problem}{_code_line(text, code)}", hint=hint, module=module, **data)

    if any(name in _PACKED and file.endswith("rnn.py") for file, _, name in code) or any(
        type(value).__name__ == "PackedSequence" for frame, _ in frames for value in frame.f_locals.values()
    ):
        return failure(
            "packed sequences (torch.nn.utils.rnn) have no ONNX form",
            "give the layer the padded batch, and read its outputs at the lengths by a mask or torch.gather",
            operator="pack_padded_sequence",
        )
    if match := re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", text):
        return failure(f"operator {match[1]}{place} has no ONNX form", _REPLACE, operator=match[1])
    if match := re.search(r"Error when translating node .*?target=torch\.ops\.([\w.]+)", text, re.S):
        problem = f"operator {match[1]}{place} cannot be translated: {first_line(chain[-1])}"
        return failure(problem, _REPLACE, operator=match[1])
    if "data-dependent" in text or any(
        type(item).__name__ == "DataDependentOutputException" for item in chain
    ):
        return failure(
            f"forward branches on a value of its input{place}, which ONNX cannot freeze",
            "use torch.where or torch.cond in place of the Python `if`; `freeze_branches` exports the "
            "branches that the example takes",
            reason="values",
        )
    if match := re.search(r"[Cc]onstraints violated \((.+?)\).*?\n\s*- ([^\n]+)", text, re.S):
        return failure(
            f"axis {match[1]} cannot be dynamic in this model: {match[2].split('. If ')[0]}",
            "give that axis a number in `inputs`, or leave it out of `dynamic`",
            reason="axis",
        )
    return failure(f"the exporter failed with {type(chain[-1]).__name__}: {first_line(chain[-1])}", _REPLACE)


_REPLACE = "replace the operator in the model, or leave it out of the exported part"
_PACKED = ("pack_padded_sequence", "pad_packed_sequence", "pack_sequence")


def _code_line(text: str, code: Sequence[tuple[str, str, str]]) -> str:
    """Return the line of the user's code or the model's library, from the exporter's text or the frames."""
    places = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', text)
    place = None
    for source in (places, code):
        lines = [(file, f"{line}, in {function}") for file, line, function in source]
        place = place or deepest_line(lines)
    return f" ({Path(place[0]).name}, line {place[1]})" if place else ""
