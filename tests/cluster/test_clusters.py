"""The harness itself: real processes, that end whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

from clusters import running_cluster


@pytest.mark.slow  # of the support of other tests, which kill and restart, too
def test_workers_are_killed_and_the_scheduler_comes_back_on_its_port(tmp_path: Path) -> None:
    with running_cluster(tmp_path, workers=1, plain=True) as cluster:
        with cluster.client() as client:
            assert client.submit(sum, [1, 2]).result(60) == 3
        cluster.workers["w1"].kill()
        address = cluster.address
        cluster.scheduler.kill()
        cluster.start_scheduler()
        assert cluster.address == address
        assert [one.pid for one in cluster.left()] == [cluster.scheduler.pid]
    assert cluster.left() == []
