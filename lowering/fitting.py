"""Fit a graph to the reader of its engine, which decides by version what it reads, and reads rightly.

    graph ─ types of inputs, outputs ─ forms that it lacks ─ opset ─ operators that it lacks ─ known faults ─▶

What was rewritten for the last two is compared with what it was, in ONNX Runtime, at 80 dB. What is rewritten
in a quantized graph alone is compared there, at 30 dB, as a value between two integers may go either way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UnsupportedOperator
from ..files import temporary_folder
from ..progress import Progress, silent

if TYPE_CHECKING:
    import onnx

    from ..engines.capabilities import Capabilities
    from ..engines.faults import KnownFault
    from ..spec.artifacts import BuildSpec

_OPSETS_OF_TYPES = {"bf16": 22, "int4": 21}
"""Opsets from which ONNX has a type for the operators that need it; parsers that list the type read it."""
_OLDER_MODES = 19  # the last opset in which GridSample's modes have the names that all parsers know
_EVERY = "all"


@dataclass(frozen=True)
class Fitted:
    """A graph that a reader takes.

    Attributes:
        path: The file: the one that was given where nothing had to change.
        worked_around: Known fault to the names of the nodes that were rewritten because of it.
        warnings: What the user should know.
    """

    path: Path
    worked_around: Mapping[str, Sequence[str]] = field(default_factory=dict)
    warnings: Sequence[str] = ()


class Fitting:
    """What fits the graphs of one build.

    Args:
        model: The user's float model, on which rewrites are compared.
        spec: What is built.
        capabilities: Of its engine.
        needed: The precision of the graph.
        path: ONNX file to write.
        progress: Told of every step.
    """

    def __init__(
        self,
        model: Path,
        spec: BuildSpec,
        capabilities: Capabilities,
        needed: str,
        path: Path,
        progress: Progress = silent,
    ) -> None:
        self.model, self.spec, self.capabilities, self.needed = model, spec, capabilities, needed
        self.path, self.progress = path, progress
        self.warnings: list[str] = []

    def fit(self, graph: Path) -> Fitted:
        """Write a graph that the reader takes.

        Raises:
            UnsupportedOperator: Naming a node that it does not take, or would compute wrongly.
            ModelError: If a rewrite computes something else.
        """
        from ..compiler.opset.plain_forms import with_kernel_shapes

        self.warnings = []
        graph = self._with_io_types(graph)
        graph = self._without_lacking(graph)
        graph = self._with_kernel_shapes(graph)
        graph = self._in_older_opset(graph)
        graph = self._without_missing(graph)
        graph = with_kernel_shapes(graph, self.path, self.spec.target)
        self._tell_of_foreign(graph)
        return self._without_faults(graph)

    def _tell_of_foreign(self, graph: Path) -> None:
        """Say which of TensorRT's operators are left, with which nothing but TensorRT can be compared."""
        from ..compiler.opset.trt_operators import find_trt_operators
        from ..model.weightless import read_weightless

        if left := find_trt_operators(read_weightless(graph).model):
            self.warnings.append(
                f"ONNX Runtime has no {', '.join(left)}: what the engine computes cannot be compared with it"
            )

    def _with_io_types(self, graph: Path) -> Path:
        from ..compiler.io_types import set_io_types
        from ..model.onnx_file import load_onnx

        types = {name: dtype for name, (dtype, _) in self.spec.tensorrt.tensor_formats.items() if dtype}
        return self._saved(set_io_types(load_onnx(graph), types)) if types else graph

    def _without_lacking(self, graph: Path) -> Path:
        """Write forms of operators that the reader lacks in others, where they can be."""
        from ..compiler.opset.dft import dft_to_products
        from ..compiler.opset.plain_forms import (
            einsums_in_lower_case,
            eyes_to_ranges,
            folds_to_transposes,
            scatter_adds_to_products,
        )
        from ..model.onnx_file import load_onnx

        rewrites = {
            "Col2Im": folds_to_transposes, "DFT": dft_to_products, "Einsum": einsums_in_lower_case,
            "EyeLike": eyes_to_ranges, "ScatterND": scatter_adds_to_products,
        }  # fmt: skip
        held = _operators(graph) & {*self.capabilities.lacks}
        if not held:
            return graph
        model = load_onnx(graph)
        if not [name for operator in sorted(held) for name in rewrites[operator](model)]:
            return graph
        return self._saved(model)

    def _with_kernel_shapes(self, graph: Path) -> Path:
        """Say the kernel_shape of quantized convolutions, which TensorRT's parser needs."""
        from ..compiler.opset.plain_forms import with_kernel_shapes

        return with_kernel_shapes(graph, self.path, self.spec.target)

    def _in_older_opset(self, graph: Path) -> Path:
        from ..compiler.opset.fit import fit_opset
        from ..compiler.opset.grid_samples import find_cubic_modes
        from ..model.onnx_file import load_onnx, opset

        highest = self.capabilities.highest_opset
        if highest is None:
            return graph
        model = load_onnx(graph, external_data=False)
        highest = max(highest, _OPSETS_OF_TYPES.get(self.needed, 0))
        ignored = not any(fault.name == "grid-sample-mode" for fault in self._faults())
        if not ignored and find_cubic_modes(model):
            highest = min(highest, _OLDER_MODES)  # no other name says cubic to every parser
        if opset(model) > highest:
            lowered = fit_opset(graph, self.path, highest, progress=self.progress)
            self.warnings += lowered.manifest.warnings
            return self.path
        return graph

    def _without_missing(self, graph: Path) -> Path:
        """Write operators that the version lacks in others, or refuse them by name."""
        from ..compiler.opset.lower import require_operators, without_missing
        from ..model.onnx_file import load_onnx
        from ..model.weightless import read_weightless

        known = self.capabilities.operators
        if known is None:
            return graph
        operators = frozenset(known)
        if _operators(graph) - operators:
            model = load_onnx(graph)
            replaced = without_missing(model, operators)
            if replaced:
                self.progress("compare what was written in other operators")
                self.warnings += self._compare(lambda one: without_missing(one, operators))
                graph = self._saved(model)
        if not self.spec.tensorrt.plugins:
            light = read_weightless(graph).model
            require_operators(light, operators, self.capabilities.reader, str(self.model))
        return graph

    def _without_faults(self, graph: Path) -> Fitted:
        """Rewrite what the engine is known to compute wrongly, refuse it, or warn of it.

        Raises:
            UnsupportedOperator: Naming the fault, its reports and the nodes.
        """
        from ..compiler.opset.cures import FAULTY_GRAPHS
        from ..model.onnx_file import load_onnx
        from ..model.weightless import read_weightless

        faults, cured = self._faults(), dict[str, Sequence[str]]()
        light = read_weightless(graph).model
        found = {fault.name: names for fault in faults if (names := FAULTY_GRAPHS[fault.name].find(light))}
        if not found:
            return Fitted(graph, warnings=self.warnings)
        cures = [name for name in FAULTY_GRAPHS if name in found and FAULTY_GRAPHS[name].cure]
        for quantized in (False, True):
            names = [name for name in cures if FAULTY_GRAPHS[name].quantized == quantized]
            if not names:
                continue
            self.progress("compare what known faults made different")
            change = partial(cure, names=names)
            self.warnings += self._compare(change, graph if quantized else self.model)
            light = load_onnx(graph)
            change(light)
            graph = self._saved(light)
        for fault in faults:
            left = FAULTY_GRAPHS[fault.name].find(light) if fault.name in found else []
            if left and fault.action != "warn":
                raise self._refusal(fault, left)
            if left:
                self.warnings.append(f"known fault {fault}: {', '.join(left)}")
            elif fault.name in found:
                cured[fault.name] = found[fault.name]
        return Fitted(graph, cured, list(dict.fromkeys(self.warnings)))

    def _faults(self) -> list[KnownFault]:
        """Those of this version and precision that are not ignored."""
        ignored, spec = self.spec.tensorrt.ignore_faults, self.spec
        computed = {spec.precision, spec.floats if spec.precision == "int8" else spec.precision}
        return [
            fault
            for fault in self.capabilities.faults
            if not {fault.name, _EVERY} & {*ignored}
            and (not fault.precisions or computed & {*fault.precisions})
            and fault.profiles <= len(spec.tensorrt.profiles)
        ]

    def _refusal(self, fault: KnownFault, nodes: Sequence[str]) -> UnsupportedOperator:
        way = fault.hint or "write it with other operators in the model"
        return UnsupportedOperator(
            f"{self.model}: {self.capabilities.reader} computes {', '.join(nodes)} wrongly: {fault}",
            hint=f"{way}; `ignore_faults` {fault.name} builds it as it is",
            operator=fault.operator,
            node=nodes[0],
        )

    def _compare(self, change: Change, path: Path | None = None) -> list[str]:
        """Compare a file, by default the float model, with what a change makes of it.

        Returns:
            What could not be compared.

        Raises:
            ModelError: If it computes something else.
        """
        from ..compiler.opset.fit import rewritten_outputs
        from ..model.onnx_file import load_onnx, save_onnx

        path = path or self.model
        model = load_onnx(path)
        change(model)
        with temporary_folder("rewrite") as folder:
            changed = folder / path.name
            save_onnx(model, changed)
            return rewritten_outputs(path, changed)

    def _saved(self, model: onnx.ModelProto) -> Path:
        from ..model.onnx_file import save_onnx

        save_onnx(model, self.path)
        return self.path


if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[onnx.ModelProto], object]


def cure(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Rewrite what shows these known faults, in place."""
    from ..compiler.opset.cures import FAULTY_GRAPHS

    for name, faulty in FAULTY_GRAPHS.items():
        if name in names and faulty.cure is not None:
            faulty.cure(model)


def _operators(graph: Path) -> set[str]:
    """All operators of ONNX in a file, those inside nodes included."""
    from ..model.graph import ONNX_DOMAINS, every_graph
    from ..model.weightless import read_weightless

    graphs = every_graph(read_weightless(graph).model.graph)
    return {node.op_type for inner in graphs for node in inner.node if node.domain in ONNX_DOMAINS}
