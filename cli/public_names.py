"""The public classes and functions of `qcompile` as they stand in the source."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

import qcompile

PACKAGE = Path(__file__).parents[1]
_TAKEN = ("Budget", "Limits", "ModelIO", "Progress", "StageListener", "TensorInfo", "Tolerances")
"""Classes that are made to be given to a function."""


@dataclass(frozen=True)
class Source:
    """A class or function where it is defined.

    Attributes:
        module: Its path in the package, such as `pipeline/run.py`.
        node: What the parser made of it.
    """

    module: Path
    node: ast.FunctionDef | ast.ClassDef

    @property
    def doc(self) -> str:
        """Its docstring, without indentation."""
        return ast.get_docstring(self.node) or ""

    def text(self, node: ast.AST) -> str:
        """The words of a part, on one line."""
        found = ast.get_source_segment(_source(self.module), node)
        return " ".join((found or ast.unparse(node)).split())


@functools.cache
def _source(module: Path) -> str:
    return (PACKAGE / module).read_text(encoding="utf-8")


@functools.cache
def _tree(module: Path) -> ast.Module:
    return ast.parse(_source(module))


def find(name: str, module: Path) -> Source | None:
    """Return the class or function that a name of a module stands for; None if it is not of the package."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return Source(module, node)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            if [getattr(one, "id", "") for one in node.targets] == [name]:
                return find(node.value.id, module)  # another name for it
        elif isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name and (place := _place(module, node)):
                    return find(alias.name, place)
    return None


def _place(module: Path, node: ast.ImportFrom) -> Path | None:
    folder = module.parent
    for _ in range(node.level - 1):
        folder = folder.parent
    folder = folder.joinpath(*(node.module or "").split(".")) if node.module else folder
    for place in (folder.with_suffix(".py"), folder / "__init__.py"):
        if (PACKAGE / place).is_file() and place.name != ".py":
            return place
    return None


def public() -> dict[str, Source]:
    """Return the names of `qcompile.__all__` that are classes or functions, and where they are."""
    found = {name: find(name, Path("__init__.py")) for name in qcompile.__all__ if name != "__version__"}
    return {name: source for name, source in sorted(found.items()) if source is not None}


def results() -> dict[str, Source]:
    """Return the classes that public functions return and `qcompile` does not name."""
    names = public()
    found: dict[str, Source] = {}
    for source in names.values():
        if isinstance(source.node, ast.FunctionDef) and source.node.returns is not None:
            for part in ast.walk(source.node.returns):
                if isinstance(part, ast.Name) and part.id not in names and part.id not in found:
                    made = find(part.id, source.module)
                    if made is not None:
                        found[part.id] = made
    return dict(sorted(found.items()))


def taken() -> dict[str, Source]:
    """Return the classes of arguments that `qcompile` does not name."""
    found: dict[str, Source] = {}
    for source in public().values():
        if not isinstance(source.node, ast.FunctionDef):
            continue
        for part in ast.walk(source.node.args):
            if isinstance(part, ast.Name) and part.id in _TAKEN and part.id not in found:
                made = find(part.id, source.module)
                assert made is not None, part.id
                found[part.id] = made
    return dict(sorted(found.items()))
