"""A scheduler does not keep a group and a span of every task; without `Groups` it does."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from clusters import running_cluster

from qcompile.cluster.client import groups as kept_groups
from qcompile.cluster.client.groups import Groups

TASKS = 20
CLEARED_EVERY = 5


def test_tasks_of_one_kind_share_a_group_that_stays_and_leave_no_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_groups, "_CLEARED_EVERY", CLEARED_EVERY)
    with running_cluster(tmp_path, workers=1, plain=True) as cluster, cluster.client() as client:

        def submit() -> None:
            key = f"qcompile-build-{uuid.uuid4().hex}"
            future = client.submit(len, b"four", key=key, pure=False)
            assert future.result(60) == 4
            future.release()

        def spans(dask_scheduler: Any) -> int:
            return len(dask_scheduler.extensions["spans"].spans)

        def noted(dask_scheduler: Any) -> int:
            there = dask_scheduler.extensions["spans"].spans.values()
            return sum(len(span._metadata["collections"]) for span in there if span._metadata)

        groups = Groups(client)
        groups.keep("build")
        for _ in range(TASKS):
            groups.keep("build")
            submit()
        assert client.run_on_scheduler(spans) <= 2
        before = client.run_on_scheduler(noted)
        assert before <= CLEARED_EVERY + 1
        groups.close()
        for _ in range(TASKS):
            submit()
        assert client.run_on_scheduler(noted) == before + TASKS, "Dask notes each task"
