"""A scheduler does not keep a group and a span of every task; without `Groups` it does."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from clusters import running_cluster

from qcompile.cluster.client.groups import Groups

TASKS = 20


def test_tasks_of_one_kind_share_a_group_that_stays(tmp_path: Path) -> None:
    with running_cluster(tmp_path, workers=1, plain=True) as cluster, cluster.client() as client:

        def submit() -> None:
            key = f"qcompile-build-{uuid.uuid4().hex}"
            future = client.submit(len, b"four", key=key, pure=False)
            assert future.result(60) == 4
            future.release()

        def spans(dask_scheduler: Any) -> int:
            return len(dask_scheduler.extensions["spans"].spans)

        groups = Groups(client)
        groups.keep("build")
        for _ in range(TASKS):
            groups.keep("build")
            submit()
        assert client.run_on_scheduler(spans) <= 2
        groups.close()
