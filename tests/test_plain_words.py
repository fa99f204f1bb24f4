"""The language of the product: words that stand for a noun, long sentences and empty names have a budget.

The patterns find clauses that stand for a noun ("what it reads" for "its inputs"), things that talk ("the
file says") and verbs of no content ("is kept"). A word may be right where it stands: the budget is a rate.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from same_syntax import change_of

import qcompile

ROOT = Path(qcompile.__file__).parent
ROOMS = "cli pipeline bench building compiler engines calibration data model core spec".split()
PATTERNS = re.compile(
    r"\b(?:[Ww]hat|ask(?:s|ed)?|told|tells?|telling|said|says?|(?:is|are|was|were) there|so (?:many|much)|own"
    r"|[Ss]uch|(?:is|are|has|have|holds?) (?:none|nothing|no)|stays?|kept|keeps?"
    r"|ones? (?:that|of|which|who|with|for)|whose|thereof|therein|wherein|thereby)\b"
)
MOST_PER_1000, MOST_IN_A_FILE = 6, 15
FILLERS = frozenset(
    "one told asked given made own found kept chosen said known held others again here there rest left"
    .split()
)  # fmt: skip


def prose(text: str) -> str:
    """Return the docstrings and comments of a Python file, each once."""
    tree = ast.parse(text)
    strings = [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    comments = [
        token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    return "\n".join(dict.fromkeys(strings + comments))


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")]
    return [page for page in found if page.name != "CHANGELOG.md"]


def page_prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)


def rate(texts: list[str]) -> float:
    """Return the private words in 1,000 words."""
    words = sum(len(text.split()) for text in texts)
    return 1000 * sum(len(PATTERNS.findall(text)) for text in texts) / max(words, 1)


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page, without its tables, headings and code."""
    lines = [line for line in page_prose(page).splitlines() if not line.lstrip().startswith(("|", "#"))]
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", "\n".join(lines)):
        yield from (text for text in re.split(r"(?<=[.:;!?])\s+", paragraph) if len(text.split()) > 2)


def test_the_patterns_find_clauses_that_stand_for_a_noun() -> None:
    assert rate(["What nothing reads any more goes, and one that is kept says so"]) == pytest.approx(
        1000 * 4 / 13
    )
    assert rate(["Remove nodes whose outputs have no consumer"]) == pytest.approx(1000 * 2 / 7)
    assert rate(["Return the measured cost, or None if the record has a different key"]) == 0


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_and_comments_are_in_plain_words(room: str) -> None:
    texts = {path: prose(path.read_text(encoding="utf-8")) for path in modules(room)}
    assert texts
    assert rate(list(texts.values())) <= MOST_PER_1000
    long_texts = {path: text for path, text in texts.items() if len(text.split()) >= 60}
    assert [path for path, text in long_texts.items() if rate([text]) > MOST_IN_A_FILE] == []


def test_documents_are_in_plain_words_and_short_sentences() -> None:
    texts = {page: page_prose(page) for page in pages()}
    assert rate(list(texts.values())) <= MOST_PER_1000
    assert [page for page, text in texts.items() if rate([text]) > MOST_IN_A_FILE] == []
    for page in texts:
        lengths = [len(text.split()) for text in sentences(page)]
        assert sum(lengths) / max(len(lengths), 1) <= 25, page


def test_names_hold_few_fillers() -> None:
    names: Counter[str] = Counter()
    for room in ROOMS:
        for path in modules(room):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names[node.id] += 1
                elif isinstance(node, ast.arg):
                    names[node.arg] += 1
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    names[node.name] += 1
    fillers = {name: count for name, count in names.items() if name in FILLERS}
    assert sum(fillers.values()) <= 0.003 * names.total(), fillers


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (
            'def f(x):\n    """Old."""\n    return x',
            'def f(x):\n    """New."""\n    # why\n    return x',
            "docs",
        ),
        ('raise E(f"{a} of {b}")', 'raise E(f"{b}: {a}")', "words"),
        ("def told(x): return x.one", "def reply(x): return x.first", "words"),
        ("def f(x): return x + 1", "def f(x): return x + 2", "code"),
        ('raise E(f"{a}")', 'raise E(f"{a} {b}")', "code"),
    ],
)
def test_a_change_of_words_leaves_the_syntax_tree(before: str, after: str, change: str) -> None:
    assert change_of(before, after) == change
