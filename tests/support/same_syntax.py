"""Check that a change touches words alone: `python tests/support/same_syntax.py COMMIT [COMMIT]`.

Compares the Python files of two commits, or of a commit and the working tree. "docs": the syntax trees
without docstrings are equal; "words": they are equal without names and texts; "code": they are not.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

_NAMES = ("id", "attr", "arg", "name", "asname", "rest")


class _WithoutDocstrings(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, [statement for statement in statements if not _is_empty(statement)])
        return node


class _WithoutWords(ast.NodeTransformer):
    """Blank names and texts; keep the expressions of f-strings, in any order, as sentences move them."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in _NAMES:
            if isinstance(getattr(node, field, None), str):
                setattr(node, field, "")
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.generic_visit(node)
        return ast.Constant(
            "".join(sorted(ast.dump(v) for v in node.values if not isinstance(v, ast.Constant)))
        )

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        return ast.Nonlocal(["" for _ in node.names])


def _is_empty(statement: ast.stmt) -> bool:
    """Return whether a statement is `pass` or a docstring."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(statement, ast.Pass) or (
        isinstance(value, ast.Constant) and isinstance(value.value, str)
    )


def change_of(before: str, after: str) -> str:
    """Return "docs", "words" or "code": the most that two versions of a file differ in."""
    trees = [_WithoutDocstrings().visit(ast.parse(text)) for text in (before, after)]
    if ast.dump(trees[0]) == ast.dump(trees[1]):
        return "docs"
    trees = [_WithoutWords().visit(tree) for tree in trees]
    return "words" if ast.dump(trees[0]) == ast.dump(trees[1]) else "code"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def main(before: str, after: str = "") -> None:
    commits = [before, *filter(None, [after])]
    kinds: Counter[str] = Counter()
    for line in _git("diff", "--name-status", "--no-renames", *commits, "--", "*.py").splitlines():
        status, path = line.split("\t")
        if status != "M":
            kind = {"A": "added", "D": "deleted"}[status]
        else:
            text = _git("show", f"{after}:{path}") if after else Path(path).read_text(encoding="utf-8")
            kind = change_of(_git("show", f"{before}:{path}"), text)
        kinds[kind] += 1
        if kind not in ("docs", "words"):
            print(f"{kind:8s} {path}")
    print(dict(kinds))


if __name__ == "__main__":
    main(*sys.argv[1:])
