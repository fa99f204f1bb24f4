"""Libraries are silenced, and heard again."""

from __future__ import annotations

import logging
import sys
import threading
import warnings

import pytest

from qcompile.progress import quiet


def test_what_libraries_say_is_dropped_and_heard_again(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for silent in (True, False):
        if silent:
            with quiet(), quiet():
                print("dropped")
                warnings.warn("dropped", stacklevel=1)
                logging.error("dropped")
        else:
            print("heard")
            logging.error("logged")
    assert capsys.readouterr().out == "heard\n"
    assert caplog.messages == ["logged"]


def test_threads_that_overlap_leave_all_as_it_was() -> None:
    before = (sys.stdout, sys.stderr, logging.root.manager.disable, list(warnings.filters))
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with quiet():
            first_is_in.set()
            second_is_in.wait(10)
        first_is_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_in.wait(10)
    with quiet():
        second_is_in.set()
        assert first_is_out.wait(10)
        assert sys.stdout is not before[0]
    thread.join(10)
    assert (sys.stdout, sys.stderr, logging.root.manager.disable, list(warnings.filters)) == before
