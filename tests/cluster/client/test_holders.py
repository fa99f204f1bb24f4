"""Which workers hold which files, as a client remembers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.cluster.client import holders as module
from qcompile.cluster.client.holders import Holders

WORKERS = ("tcp://a:1", "tcp://b:1", "tcp://c:1")
DIGESTS = tuple(f"sha256:{number:064x}" for number in range(4))


class Sent(Holders):
    """Holders whose files go nowhere; what would be sent is noted."""

    def __init__(self) -> None:
        super().__init__(None)
        self.sent: list[tuple[str, tuple[str, ...]]] = []

    def push(self, address: str, files: Any) -> None:
        self.sent.append((address, tuple(files)))


def files(*digests: str) -> dict[str, Path]:
    return {digest: Path("/data") / digest for digest in digests}


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(WORKERS), st.sets(st.sampled_from(DIGESTS))), max_size=20
    ),
    st.sets(st.sampled_from(DIGESTS)),
    st.sets(st.sampled_from(WORKERS)),
)
def test_those_that_hold_all_are_those_that_were_noted_with_each(
    told: list[tuple[bool, str, set[str]]], asked: set[str], alive: set[str]
) -> None:
    holders, expected = Holders(None), {digest: set[str]() for digest in DIGESTS}
    for is_noted, address, digests in told:
        if is_noted:
            holders.note(address, digests)
        else:
            holders.forget(digests)
        for digest in digests:
            expected[digest] = {*expected[digest], address} if is_noted else set()
    found = holders.holding(asked, alive)
    everywhere = [one for one in sorted(alive) if all(one in expected[digest] for digest in asked)]
    assert found == (tuple(everywhere) if asked else ())


def test_a_file_is_sent_once_to_the_worker_that_has_most_of_them() -> None:
    holders = Sent()
    holders.note(WORKERS[1], DIGESTS[:2])
    assert holders.bring(files(*DIGESTS[:3]), WORKERS, WORKERS) == (WORKERS[1],)
    assert holders.sent == [(WORKERS[1], DIGESTS[:3])]
    assert holders.bring(files(*DIGESTS[:3]), WORKERS, WORKERS[:1]) == (WORKERS[1],)
    assert len(holders.sent) == 1, "whoever needs them asks that worker"


def test_files_of_a_worker_that_is_gone_are_sent_again() -> None:
    holders = Sent()
    holders.bring(files(DIGESTS[0]), WORKERS, WORKERS)
    alive = WORKERS[1:]
    assert holders.bring(files(DIGESTS[0]), alive, alive) == (WORKERS[1],)
    assert [address for address, _ in holders.sent] == [WORKERS[0], WORKERS[1]]


def test_a_list_stands_for_all_that_it_lists() -> None:
    holders = Sent()
    assert holders.bring(files(*DIGESTS), WORKERS, WORKERS, list_of_all=DIGESTS[3]) == (WORKERS[0],)
    assert holders.bring(files(*DIGESTS), WORKERS, WORKERS, list_of_all=DIGESTS[3]) == (WORKERS[0],)
    assert holders.sent == [(WORKERS[0], DIGESTS)]
    assert holders.holding([DIGESTS[0]], WORKERS) == ()  # a million are not remembered one by one


def test_nothing_is_brought_where_nothing_is_needed() -> None:
    holders = Sent()
    assert holders.bring({}, WORKERS, WORKERS) == ()
    assert not holders.sent


def test_a_worker_that_could_not_take_them_is_not_remembered() -> None:
    class Full(Holders):
        def push(self, address: str, files: Any) -> None:
            raise OSError("no room")

    holders = Full(None)
    with pytest.raises(OSError, match="no room"):
        holders.bring(files(DIGESTS[0]), WORKERS, WORKERS)
    assert holders.holding([DIGESTS[0]], WORKERS) == ()


def test_the_files_that_were_named_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    holders = Holders(None)
    holders.note(WORKERS[0], DIGESTS[:2])
    holders.note(WORKERS[0], DIGESTS[:1])
    holders.note(WORKERS[0], DIGESTS[2:3])
    known = [digest for digest in DIGESTS if holders.holding([digest], WORKERS)]
    assert known == [DIGESTS[0], DIGESTS[2]]
