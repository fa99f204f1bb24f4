"""The passes that convert a graph to the operators, types and opset that an engine's parser supports.

    graph ─ types of inputs, outputs ─ missing forms ─ opset ─ missing operators ─ known faults ─▶

*Missing forms* are operators that can be replaced only at the original opset, such as STFT. The engine's
capabilities, which depend on its version, select the passes. After a rewrite for missing operators or known
faults, the outputs are compared in ONNX Runtime with those of the user's model: an SNR of 80 dB is required.
Rewrites of quantized graphs are compared with the graph before the rewrite, at 30 dB, because a value between
two integers may round to either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..compiler.io_types import set_io_types
from ..compiler.opset import byte_forms, dft, scatter_forms, stft, tensorrt_forms
from ..compiler.opset.cures import FAULTY_GRAPHS
from ..compiler.opset.exact_forms import MODES_RENAMED, find_cubic_modes
from ..compiler.opset.fit import in_older_opset, rewritten_outputs
from ..compiler.opset.lower import require_operators, without_missing
from ..compiler.opset.passes import Pass, operators_of, replace_model
from ..core.progress import Progress
from ..errors import ModelError, QCompileError, UnsupportedOperator, first_line
from ..model.graph.graph import captured_names
from ..model.graph.onnx_file import DEFECT, Graph
from ..spec.opsets import BFLOAT16_LAYERS, INT4

if TYPE_CHECKING:
    from ..engines.base import Engine
    from ..engines.registry import Capabilities
    from ..engines.words import KnownFault
    from ..spec.artifacts import BuildSpec

_FIRST_OPSETS = {"bf16": BFLOAT16_LAYERS, "int4": INT4}
"""First opset in which the operators concerned accept the type; parsers with the type read this opset."""
_FORMS = (stft.PASS, dft.PASS, *tensorrt_forms.PASSES, *scatter_forms.PASSES)
"""STFT comes first, so that the input shapes of DFT nodes are known."""


def run_passes(
    passes: Iterable[Pass], graph: Graph, source: Graph, progress: Progress
) -> tuple[dict[str, int], list[str]]:
    """Run passes on a graph in place; return pass name to number of changed nodes, and warnings.

    `source` is the user's model. An error names the failed pass and the passes before it.
    """
    counts: dict[str, int] = {}
    warnings: list[str] = []
    for item in passes:
        names: Sequence[str] = ()
        try:
            if item.needs(graph):
                if item.comparison_message:
                    progress(item.comparison_message)
                    warnings += _compare_change(item, source if item.on_source else graph)
                graph.load()
                names = item.change(graph)
            if names:
                graph.edited()
            problem = item.find_problem(graph) or (find_broken_edge(graph) if names else "")
        except QCompileError:
            raise
        except Exception as error:  # a defect of the pass, not of the model
            raise _pass_error(item, graph, counts, first_line(error)) from error
        if problem:
            raise _pass_error(item, graph, counts, problem)
        counts[item.name] = len(names)
    return counts, warnings


def _compare_change(item: Pass, before: Graph) -> list[str]:
    after = before.copy()
    after.load()
    return rewritten_outputs(before, after) if item.change(after) else []


def _pass_error(item: Pass, graph: Graph, counts: Mapping[str, int], problem: str) -> QCompileError:
    earlier = [name for name, changed in counts.items() if changed]
    after = f", after {', '.join(earlier)}" if earlier else ""
    return ModelError(
        f"{graph.path}: pass {item.name!r} failed{after}: {problem}",
        hint=f"{DEFECT}; another target may not need the pass",
        file=graph.path,
    )


def find_broken_edge(graph: Graph) -> str:
    """Describe a tensor that is produced twice or read too early, or an output without a producer; or ""."""
    proto = graph.model.graph
    defined = {"", *graph.stored, *(value.name for value in proto.input)}
    defined |= {tensor.values.name for tensor in proto.sparse_initializer}
    for node in proto.node:
        for name in (*node.input, *captured_names(node)):
            if name not in defined:
                return f"{node.op_type} {node.name!r} reads {name!r} before any node writes it"
        for name in node.output:
            if name and name in defined:
                return f"{node.op_type} {node.name!r} writes {name!r}, which already exists"
            defined.add(name)
    return next((f"no node writes output {v.name!r}" for v in proto.output if v.name not in defined), "")


def fitting_passes(
    spec: BuildSpec,
    engine: Engine,
    capabilities: Capabilities,
    needed: str,
    source: Graph,
    warnings: list[str],
) -> list[Pass]:
    """Return the passes that fit a graph of precision `needed` to the parser, without fault workarounds."""
    types = {name: dtype for name, (dtype, _) in spec.tensorrt.tensor_formats.items() if dtype}
    passes = []
    if types:
        passes.append(
            Pass(
                "types of inputs and outputs",
                lambda graph: replace_model(graph, set_io_types(graph.model, types)),
            )
        )
    passes += [form for form in _FORMS if form.operator in capabilities.lacks]
    if capabilities.highest_opset is not None:
        passes.append(_opset_pass(spec, capabilities, needed, warnings))
    if capabilities.operators is not None:
        passes.append(_operators_pass(spec, engine, capabilities, source))
    if spec.target.startswith("tensorrt"):
        passes += [tensorrt_forms.KERNEL_SHAPES, byte_forms.PASS]
    return passes


def _opset_pass(spec: BuildSpec, capabilities: Capabilities, needed: str, warnings: list[str]) -> Pass:
    supports_cubic = not any(fault.name == "grid-sample-mode" for fault in active_faults(spec, capabilities))
    limit = max(capabilities.highest_opset or 0, _FIRST_OPSETS.get(needed, 0))

    def highest(graph: Graph) -> int:
        if not supports_cubic and find_cubic_modes(graph.model):
            return min(limit, MODES_RENAMED - 1)  # every parser knows "bicubic"; this one lacks "cubic"
        return limit

    def change(graph: Graph) -> list[str]:
        lowered, problems = in_older_opset(graph, highest(graph))
        warnings.extend(problems)
        return replace_model(graph, lowered.model)

    return Pass(f"opset {limit} or older", change, needs=lambda graph: graph.opset > highest(graph))


def _operators_pass(spec: BuildSpec, engine: Engine, capabilities: Capabilities, source: Graph) -> Pass:
    operators = frozenset(capabilities.operators or ())

    def leaves(graph: Graph) -> str:
        if not spec.tensorrt.plugins:
            reader = capabilities.reader
            require_operators(graph.model, operators, reader, str(source.path), engine.versions_that_read)
        return ""

    return Pass(
        f"operators of {capabilities.reader}",
        lambda graph: without_missing(graph.model, operators),
        needs=lambda graph: operators_of(graph) - operators,
        find_problem=leaves,
        comparison_message="compare the rewritten operators",
    )


def fault_passes(fault_names: Collection[str]) -> list[Pass]:
    """Return the passes that work around the known faults `fault_names` of a graph."""
    names: dict[bool, list[str]] = {False: [], True: []}
    for name, faulty in FAULTY_GRAPHS.items():
        if name in fault_names and faulty.rewrite is not None:
            names[faulty.quantized].append(name)
    return [
        Pass(
            f"known faults: {', '.join(faults)}",
            partial(_cure_faults, names=faults),
            comparison_message="compare the workarounds of known faults",
            on_source=not quantized,
        )
        for quantized, faults in names.items()
        if faults
    ]


def _cure_faults(graph: Graph, names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if (cure := FAULTY_GRAPHS[name].rewrite) is not None:
            cure(graph.model)
    return names


def active_faults(spec: BuildSpec, capabilities: Capabilities) -> list[KnownFault]:
    """Return the known faults that occur at the build's precision and number of profiles, if not ignored."""
    ignored = spec.tensorrt.ignore_faults
    computed = {spec.precision, spec.floats if spec.precision == "int8" else spec.precision}
    return [
        fault
        for fault in capabilities.faults
        if not {fault.name, "all"} & {*ignored}
        and (not fault.precisions or computed & {*fault.precisions})
        and fault.profiles <= len(spec.tensorrt.profiles)
    ]


def work_around_faults(
    graph: Graph, source: Graph, spec: BuildSpec, capabilities: Capabilities, progress: Progress
) -> tuple[dict[str, int], list[str], dict[str, Sequence[str]]]:
    """Rewrite nodes that the engine computes wrongly; for nodes without a workaround raise or warn.

    Returns:
        The results of `run_passes`, and fault to the nodes that were rewritten because of it.
    """
    faults = active_faults(spec, capabilities)
    faulty_nodes = {f.name: names for f in faults if (names := FAULTY_GRAPHS[f.name].find(graph.model))}
    counts, warnings = run_passes(fault_passes(faulty_nodes), graph, source, progress)
    worked_around: dict[str, Sequence[str]] = {}
    for fault in faults:
        nodes = FAULTY_GRAPHS[fault.name].find(graph.model) if fault.name in faulty_nodes else []
        if nodes and fault.action != "warn":
            workaround = fault.hint or "write it with other operators in the model"
            reader = capabilities.reader
            problem = f"{source.path}: {reader} computes {', '.join(nodes)} wrongly: {fault}"
            hint = f"{workaround}; `ignore_faults` {fault.name} builds it as it is"
            raise UnsupportedOperator(problem, hint=hint, operator=fault.operator, node=nodes[0])
        if nodes:
            warnings.append(f"known fault {fault}: {', '.join(nodes)}")
        elif fault.name in faulty_nodes:
            worked_around[fault.name] = faulty_nodes[fault.name]
    return counts, warnings, worked_around
