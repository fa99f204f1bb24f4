"""Tables on narrow terminals: columns are left out, and no figure is cut."""

from __future__ import annotations

import pytest
from rich.console import Console

from qcompile.cli.tables import add_row, make_table
from qcompile.cli.terminal_table import TerminalTable

FIGURES = ("1,234.5", "10.91×\n[5.18, 22.97]", "99.40%", "1.10 MB")
NAME = "/model/layer1/layer1.0/conv1/Conv_output_0_quantized"
REASON = "TensorRT finds no driver (libcuda.so.1 is missing)"


def table(*, compact: bool = False) -> TerminalTable:
    titles = ("layer", "latency", "speed-up", "accuracy", "size", "why")
    made = make_table("title", *titles, spare=("accuracy",), compact=compact)
    add_row(made, NAME, *FIGURES, REASON)
    add_row(made, "b", "1", "2", "3", "4", "")
    return made


def shown(made: TerminalTable, width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(made)
    return captured.get()


def omitted_columns(text: str) -> str:
    return " ".join(text.split()).partition("too few for ")[2].partition(";")[0]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("width", range(30, 200, 7))
def test_every_column_that_is_shown_is_whole(width: int, compact: bool) -> None:
    text = shown(table(compact=compact), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    omitted = omitted_columns(text).split(", ")
    titles = ("latency", "speed-up", "accuracy", "size")
    for title, figure in zip(titles, FIGURES, strict=True):
        for part in figure.split("\n"):
            assert (part in text) is (title not in omitted), (title, text)


def test_spare_columns_go_first_and_then_those_on_the_right() -> None:
    left_out = dict.fromkeys(omitted_columns(shown(table(), width)) for width in range(200, 30, -1))
    assert [*left_out][1:4] == ["accuracy", "accuracy, why", "accuracy, size, why"]


def test_words_wrap_before_a_column_is_left_out() -> None:
    text = shown(table(), 110)
    assert "too few" not in text
    assert "(libcuda.so.1" in text
    assert NAME not in text  # longer than a third of the line
    joined = "".join(line.split("│")[1].strip() for line in text.splitlines() if line.count("│") > 5)
    assert NAME in joined
