"""`docs/reference/python.md`: every public function and class, from the source itself.

Signatures are as they are written in the source, and so are the sentences: nothing depends on the version of
Python that runs this.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import errors
from .docstrings import Entry, paragraphs, sections_of
from .public_names import Source, public, results, taken

_LONGEST = 100
_ABOUT = """\
The verbs of the [command line](commands.md) are functions of `qcompile`, and take the same options.
Importing `qcompile` loads no runtime.

```python
model = qcompile.export("model.py:build", "model.onnx", inputs=["x:[batch,3,224,224]"])
ranges = qcompile.calibrate(model.path, "data.npz", "model.ranges")
int8 = qcompile.build(model.path, "int8.onnx", target="onnxruntime", precision="int8", ranges=ranges.path)
print(int8.manifest.proof["layers_by_precision"])
with qcompile.load(int8.path) as runner:
    outputs = runner.infer({"x": images})
```

Parameters after `*` are given by name. `progress=` takes a function that is told of every step: its name, how
much is done, how much there is. By default nothing is told. Names that this page does not have are no part of
the interface ([compatibility](../compatibility.md))."""
_OPAQUE = ("ClusterExecutor",)
"""Classes that are passed on, and nothing else."""
_ELSEWHERE = {
    "benchmark": "bench",
    "package_ep_context": "package ep-context",
    "package_triton": "package triton",
}
"""Functions whose commands have other names."""
_KEYWORDS = "As keyword arguments; the types are those of the [recipe](recipe.md)."
"""What stands before the table of `**options`."""


def python_page(note: str, tables: Mapping[str, Sequence[str]], commands: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the page.

    Args:
        note: First line.
        tables: Function to the table of its `**options`, and class to that of its options.
        commands: Function to the anchor of the command that does the same.
    """
    yield from (note, "# Python", "", _ABOUT, "", "## Functions")
    for name, source in public().items():
        if isinstance(source.node, ast.FunctionDef):
            anchor = commands.get(_ELSEWHERE.get(name, name), "")
            yield from _function(name, source, tables.get(name, ()), anchor)
    yield from ("", "## Classes")
    for name, source in public().items():
        if isinstance(source.node, ast.ClassDef):
            yield from _class(name, source, tables.get(name, ()))
    yield from ("", "## What functions take", "", "A version may move these classes.")
    for name, source in taken().items():
        yield from _class(name, source, tables.get(name, ()), home=_home(name, source.module))
    yield from ("", "## What functions return", "", "These classes have no name in `qcompile`.")
    for name, source in results().items():
        if isinstance(source.node, ast.ClassDef):
            yield from _class(name, source)
    yield from _errors()


def _function(name: str, source: Source, table: Sequence[str], command: str) -> Iterator[str]:
    assert isinstance(source.node, ast.FunctionDef)
    shown = signature(f"qcompile.{name}", source, source.node)
    if any(source.text(one).endswith("contextmanager") for one in source.node.decorator_list):
        shown = f"with {shown.replace(' -> Iterator[', ' -> ContextManager[')}"
    yield from ("", f"### `{name}`", "", "```python", shown, "```")
    yield from ("", *_described(source.doc))
    if table:
        yield from ("", "**Options**", "", _KEYWORDS, "", *table)
    if command:
        verb = _ELSEWHERE.get(name, name)
        yield from ("", f"On the command line: [`qcompile {verb}`](commands.md#{command}).")


def _home(name: str, module: Path) -> str:
    """Return the package that a class is imported from, or its module where the package has not its name."""
    parts = ["qcompile", *module.with_suffix("").parts]
    package = importlib.import_module(".".join(parts[:-1]))
    return ".".join(parts[:-1] if hasattr(package, name) and len(parts) > 2 else parts)


def _class(name: str, source: Source, table: Sequence[str] = (), home: str = "") -> Iterator[str]:
    assert isinstance(source.node, ast.ClassDef)
    yield from ("", f"### `{name}`", "")
    if home:
        yield from ("```python", f"from {home} import {name}", "```", "")
    if name in _OPAQUE:
        yield "\n\n".join(paragraphs(sections_of(source.doc)[0]))
        return
    yield from _described(source.doc, {} if table else _fields(source))
    if table:
        yield from ("", "| name | type | default | |", *table[1:])
    members = [_member(source, node) for node in source.node.body]
    if any(members):
        yield from ("", "| method or property | |", "|---|---|", *filter(None, members))


def _fields(source: Source) -> dict[str, str]:
    """Return each field of a class to its type and default, as far as they are plain."""
    assert isinstance(source.node, ast.ClassDef)
    found = {}
    for node in source.node.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        kind = source.text(node.annotation)
        if not node.target.id.startswith("_") and "option(" not in kind:
            if node.value is not None and not isinstance(node.value, ast.Call):
                kind = f"{kind} = {_default(source, node.value)}"
            found[node.target.id] = kind
    return found


def _member(source: Source, node: ast.stmt) -> str:
    """Return the row of a public method or property."""
    if not isinstance(node, ast.FunctionDef) or (node.name.startswith("_") and node.name != "__call__"):
        return ""
    sentence = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    marks = [source.text(one) for one in node.decorator_list]
    if any(mark in ("property", "cached_property", "functools.cached_property") for mark in marks):
        shown = node.name
    else:
        shown = signature(node.name, source, node, method="staticmethod" not in marks)
        shown = " ".join(shown.split()).replace("( ", "(").replace(", )", ")")
    shown = shown.replace("|", "\\|")
    return f"| `{shown}` | {sentence} |"


def signature(name: str, source: Source, node: ast.FunctionDef, *, method: bool = False) -> str:
    """Return how a function is called, on one line or with one parameter on each."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + given.defaults
    parts = [_parameter(source, one, default) for one, default in zip(plain, defaults, strict=True)]
    if given.posonlyargs:
        parts.insert(len(given.posonlyargs), "/")
    if method:
        parts = parts[1:]
    if given.vararg:
        parts.append("*" + _parameter(source, given.vararg, None))
    elif given.kwonlyargs:
        parts.append("*")
    parts += [
        _parameter(source, one, default)
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg:
        parts.append("**" + _parameter(source, given.kwarg, None))
    returned = f" -> {source.text(node.returns)}" if node.returns is not None else ""
    line = f"{name}({', '.join(parts)}){returned}"
    if len(line) <= _LONGEST:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returned}"])


def _parameter(source: Source, one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {source.text(one.annotation)}" if one.annotation is not None else ""
    if default is None:
        return one.arg + kind
    shown = _default(source, default)
    return f"{one.arg}{kind} = {shown}" if kind else f"{one.arg}={shown}"


def _default(source: Source, default: ast.expr) -> str:
    shown = source.text(default)
    return _constant(shown, source.module) if isinstance(default, ast.Name) and shown.isupper() else shown


def _constant(name: str, module: Path) -> str:
    """Return the value of a constant as a caller would write it."""
    parts = [*module.with_suffix("").parts]
    value = getattr(importlib.import_module(".".join(["qcompile", *parts])), name)
    return repr(value).replace("'", '"')


def _described(doc: str, fields: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a docstring's paragraphs, and its sections as lists; those of a class with its fields' types."""
    fields = dict(fields or {})
    body, sections = sections_of(doc)
    yield "\n\n".join(paragraphs(body))
    for section in sections:
        yield from ("", f"**{section.title}**", "")
        if section.entries:
            yield from (_entry(entry, fields) for entry in section.entries)
        else:
            yield section.text
    if fields:  # whose names say enough
        yield from ("", *(f"- `{name}` (`{kind}`)" for name, kind in fields.items()))


def _entry(entry: Entry, fields: dict[str, str]) -> str:
    kinds = {fields.pop(name, "") for name in entry.names} - {""}
    kind = f" (`{kinds.pop()}`)" if len(kinds) == 1 else ""
    return f"- {', '.join(f'`{name}`' for name in entry.names)}{kind}: {entry.text}"


def _errors() -> Iterator[str]:
    yield from ("", "## Errors", "")
    yield "These are classes of `qcompile.errors`. Each has a `message`, a `hint`, and `data`."
    yield from ("", "| class | is a | raised for |", "|---|---|---|")
    classes: list[tuple[str, Any]] = [
        (name, one)
        for name, one in vars(errors).items()
        if inspect.isclass(one) and one.__module__ == errors.__name__
    ]
    for name, one in classes:
        bases = ", ".join(f"`{base.__name__}`" for base in one.__bases__)
        sentence = " ".join((inspect.getdoc(one) or "").partition("\n\n")[0].split())
        yield f"| `{name}` | {bases} | {sentence} |"
