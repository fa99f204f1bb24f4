"""Several runners of one engine: weights once, contexts for each, freed by the last that closes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tensorrt_simulation import PYTORCHS, Simulation, values

from qcompile.errors import InvalidOption, ModelError


@pytest.mark.parametrize("first_closed", [0, 1, 2])
def test_runners_share_an_engine_and_the_last_frees_it(newest: Simulation, first_closed: int) -> None:
    runner = newest.open("negate", runner={"cuda_graph": True})
    runners = [runner, runner.share(), runner.share(streams=2)]
    assert newest.gpu.live["engine"] == newest.gpu.live["runtime"] == 1
    for seed, one in enumerate(runners):
        x = values(2, 4, seed=seed)
        np.testing.assert_array_equal(one.infer({"x": x})["y"], -x)
    assert newest.gpu.live["execution context"] == 4
    runners.insert(0, runners.pop(first_closed))
    for count, one in enumerate(runners):
        assert newest.gpu.live["engine"] == 1
        one.close()
        one.close()
        with pytest.raises(ModelError, match="its runner is closed"):
            one.infer({"x": values(2, 4)})
        for other in runners[count + 1 :]:
            np.testing.assert_array_equal(other.infer({"x": values(3, 4)})["y"], -values(3, 4))
    assert newest.gpu.is_clean
    assert newest.gpu.stack == [PYTORCHS]


def test_a_shared_runner_that_cannot_be_made_leaves_the_engine(newest: Simulation) -> None:
    with newest.open("negate") as runner:
        with pytest.raises(InvalidOption, match="`streams` 0: 1 or more"):
            runner.share(streams=0)
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))
    assert newest.gpu.is_clean


def test_before_8_6_it_is_refused_where_shapes_are_dynamic(oldest: Simulation) -> None:
    with oldest.open("negate") as runner:
        assert not runner.can_be_shared
        with pytest.raises(InvalidOption, match="needs an optimization profile of its own") as caught:
            runner.share()
        assert caught.value.hint == "load the engine again"


def test_holders_may_let_go_in_any_thread(newest: Simulation) -> None:
    runner = newest.open("negate")
    others = [runner.share() for _ in range(8)]
    runner.close()
    threads = [threading.Thread(target=other.close) for other in others]
    for thread in threads:
        thread.start()
        thread.join()
    assert newest.gpu.is_clean
