"""Check the graph of a `.pt2`: the operators it calls and the integers it computes with.

PyTorch evaluates the expressions of its sizes (`sympy.sympify`, which is `eval`), and looks the targets of
its nodes up by name in `torch`, where `torch.os.system` is found, too.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from typing import Any

from .file_operators import is_file_operator

_SYMBOL = re.compile(r"Symbol\('[A-Za-z_]\w*'(, \w+=(True|False))*\)")
_EXPRESSION = re.compile(r"[\w\s+\-*/%(),<>=&|~!]|(?<=\d)\.|\.(?=\d)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_TARGETS = (
    re.compile(r"torch\.ops\.(?!_)\w+\.(?!__)\w+(\.(?!__)\w+)?"),
    re.compile(r"torch\._?sym_\w+"),
    re.compile(r"torch\.fx\.experimental\.symbolic_shapes\.\w+"),
    re.compile(r"_operator\.(?!_|attrgetter|methodcaller|itemgetter|call)\w+"),
    re.compile(r"math\.(?!_)\w+"),
    re.compile(r"#.*", re.DOTALL),  # of a registry: what is loaded has registered it
)
_LOOKED_UP = ("torch", "_operator", "math")
_FUNCTIONS = frozenset(
    "Max Min Mod Eq Ne Lt Le Gt Ge And Or Not Pow Mul Add Abs Rational Integer Float Piecewise True False "
    "true false oo int_oo floor ceiling sqrt zoo nan".split()
)


def foreign_code(program: Any) -> str:
    """Return what in a program's JSON is no operator and no size; empty where all is."""
    for key, value in _texts(program):
        if key == "expr_str" and not _is_size(value):
            return f"the expression {value[:80]!r}"
        if key == "target" and not _is_operator(value):
            return f"a call of {value[:80]!r}"
    return ""


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """Every text of a nested value, with the key it is under."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            for key, inner in item.items():
                if isinstance(inner, str):
                    yield key, inner
                else:
                    waiting.append(inner)
        elif isinstance(item, list):
            waiting += item


def _is_operator(target: str) -> bool:
    """Whether a target is one; names that PyTorch does not look up are those of inputs and parameters."""
    if is_file_operator(target):
        return False
    if not target.startswith((*_LOOKED_UP, "#")):
        return True
    return any(pattern.fullmatch(target) for pattern in _TARGETS) or not target.startswith(
        tuple(f"{name}." for name in _LOOKED_UP)
    )


def _is_size(expression: str) -> bool:
    expression = _SYMBOL.sub("1", expression)
    if _EXPRESSION.sub("", expression):
        return False
    import sympy
    from torch.utils._sympy import functions

    own = {name for name, item in vars(functions).items() if isinstance(item, type)}
    return all(
        name in _FUNCTIONS
        or name in own
        or not (hasattr(sympy, name) or hasattr(builtins, name) or "__" in name)
        for name in _NAME.findall(expression)
    )
