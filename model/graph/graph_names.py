"""Names in an ONNX graph: new unique names, names for unnamed nodes, and temporary aliases."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from functools import cached_property

from .. import onnx
from .onnx_checks import every_graph, subgraphs


class Names:
    """The names of a graph and its subgraphs, to make unique new ones.

    Names that other code adds to the graph later are not seen: create an object for each rewrite.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.taken = {name for inner in every_graph(graph) for name in _names(inner)}

    @cached_property
    def _stems(self) -> set[str]:
        return {name[: place.start()] for name in self.taken for place in re.finditer("/", name)}

    def fresh(self, base: str) -> str:
        """Return a name like `base` that no tensor or node has, and reserve it."""
        return _unique(base, self.taken)

    def stem(self, base: str) -> str:
        """Return and reserve a prefix like `base`; no present name begins with this prefix and a slash."""
        return _unique(base, self._stems)


def _unique(base: str, taken: set[str]) -> str:
    names = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


def _names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of a graph, without those of its subgraphs."""
    names = {sparse.values.name for sparse in graph.sparse_initializer}
    names |= {value.name for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer)}
    return names.union(*((node.name, *node.input, *node.output) for node in graph.node))


def name_nodes(graph: onnx.GraphProto) -> bool:
    """Rename each node without a name or with the name of an earlier node; return whether a name changed."""
    taken = {node.name for node in graph.node}
    seen = {""}
    changed = False
    for number, node in enumerate(graph.node):
        if node.name in seen:
            output = node.output[0] if node.output else number
            node.name = _unique(node.name or f"{node.op_type}_{output}", taken)
            changed = True
        seen.add(node.name)
    return changed


def rename_inputs(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename inputs of all nodes of a graph and its subgraphs; `names` maps old names to new ones."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = names[name]
        for inner in subgraphs(node):
            rename_inputs(inner, names)


_ALIAS = re.compile(r"<(\d+)>")


class Aliases:
    """Aliases for the names of a model while a library edits it: `<0>`, `<1>`, ...

    No alias begins or ends another, so a name that a library derives from an alias (`<0>_scale`) equals no
    alias. `of` maps each name to its alias.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        names = sorted({name for inner in every_graph(model.graph) for name in _names(inner)} - {""})
        self.of = {name: f"<{number}>" for number, name in enumerate(names)}
        self._names, self._taken = names, set(names)
        self._derived: dict[str, str] = {}
        _rename(model.graph, lambda name: self.of.get(name, name))

    def undo(self, model: onnx.ModelProto) -> None:
        """Restore the original names, also inside of derived names, which are made unique."""
        _rename(model.graph, self._original)

    def text(self, words: str) -> str:
        """Return a message of the library with names in place of aliases."""
        return _ALIAS.sub(lambda match: self._names[int(match[1])], words)

    def _original(self, name: str) -> str:
        if _ALIAS.fullmatch(name) or not name:
            return self.text(name)
        if name not in self._derived:
            self._derived[name] = _unique(self.text(name), self._taken)
        return self._derived[name]


def _rename(graph: onnx.GraphProto, change: Callable[[str], str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = change(value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = change(sparse.values.name)
    for node in graph.node:
        if node.name:
            node.name = change(node.name)
        for names in (node.input, node.output):
            names[:] = [change(name) for name in names]
        for inner in subgraphs(node):
            _rename(inner, change)
