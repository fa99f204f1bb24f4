"""Names in an ONNX graph: new ones that nothing has, names for nodes that lack one, and stand-ins for all."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from functools import cached_property

from .. import onnx
from .onnx_checks import every_graph, subgraphs


class Names:
    """The names of a graph and of those inside it, to make others.

    Names that are added to the graph in another way are not seen: make an object for each rewrite.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.taken = {name for inner in every_graph(graph) for name in _names(inner)}

    @cached_property
    def _stems(self) -> set[str]:
        return {name[: place.start()] for name in self.taken for place in re.finditer("/", name)}

    def fresh(self, base: str) -> str:
        """Return a name like `base` that no tensor or node has, and take it."""
        return _free(base, self.taken)

    def stem(self, base: str) -> str:
        """Return a text like `base`, for a family of names: none begins with it and a slash. Take it."""
        return _free(base, self._stems)


def _free(base: str, taken: set[str]) -> str:
    names = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


def _names(graph: onnx.GraphProto) -> set[str]:
    """The names of a graph, without those of the graphs inside its nodes."""
    names = {sparse.values.name for sparse in graph.sparse_initializer}
    names |= {value.name for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer)}
    return names.union(*((node.name, *node.input, *node.output) for node in graph.node))


def name_nodes(graph: onnx.GraphProto) -> bool:
    """Give each node that has no name, or one taken in front of it, another; return whether any got one."""
    taken = {node.name for node in graph.node}
    seen = {""}
    changed = False
    for number, node in enumerate(graph.node):
        if node.name in seen:
            output = node.output[0] if node.output else number
            node.name = _free(node.name or f"{node.op_type}_{output}", taken)
            changed = True
        seen.add(node.name)
    return changed


def rename_inputs(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Let every node of a graph and of its subgraphs read other names."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = names[name]
        for inner in subgraphs(node):
            rename_inputs(inner, names)


_ALIAS = re.compile(r"<(\d+)>")


class Aliases:
    """Stand-ins for the names of a model, while a library edits it: `<0>`, `<1>`, ...

    None begins or ends another, so that names that a library makes of them (`<0>_scale`) meet no name of
    the model. `of` has the stand-in of each name.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        names = sorted({name for inner in every_graph(model.graph) for name in _names(inner)} - {""})
        self.of = {name: f"<{number}>" for number, name in enumerate(names)}
        self._names, self._taken = names, set(names)
        self._made: dict[str, str] = {}
        _rename(model.graph, lambda name: self.of.get(name, name))

    def undo(self, model: onnx.ModelProto) -> None:
        """Give a model its names back; names that the library made are spelled with them, and are unique."""
        _rename(model.graph, self._original)

    def text(self, words: str) -> str:
        """Return words of the library with the names of the model."""
        return _ALIAS.sub(lambda match: self._names[int(match[1])], words)

    def _original(self, name: str) -> str:
        if _ALIAS.fullmatch(name) or not name:
            return self.text(name)
        if name not in self._made:
            self._made[name] = _free(self.text(name), self._taken)
        return self._made[name]


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
