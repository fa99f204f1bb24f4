"""What a bench asks of an engine on a GPU: clients, inferences in flight, and the GPU's clock."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorrt_simulation import PYTORCHS, Simulation, values

from qcompile.bench import worker
from qcompile.bench.workers.arrays import save_arrays
from qcompile.errors import InvalidOption


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for threads to come to rest."""
    monkeypatch.setattr(worker, "_wait_for_rest", lambda: True)


def serve(simulation: Simulation, folder: Path, **options: Any) -> worker.WorkerSession:
    """A worker that has loaded and fed an engine."""
    session = worker.WorkerSession(lambda _: None)
    session.runner = simulation.open("negate", runner=options)
    save_arrays(folder / "feeds.npz", {"x": values(2, 4)})
    session.answer({"do": "feed", "path": str(folder / "feeds.npz")})
    return session


def test_clients_share_one_engine_and_have_contexts_of_their_own(
    newest: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qcompile.bench.measuring import concurrent

    seen: dict[str, Any] = {}

    def time_clients(runners: list[Any], feeds: Any, _: float) -> tuple[list[int], int]:
        seen.update(runners=len({id(one) for one in runners}), live=newest.gpu.live.copy())
        for one in runners:
            np.testing.assert_array_equal(one.infer(feeds)["y"], -feeds["x"])
        return [1, 2], 3

    monkeypatch.setattr(concurrent, "time_clients", time_clients)
    session = serve(newest, tmp_path)
    answer = session.answer({"do": "clients", "clients": 4, "seconds": 0.01})
    assert (answer["ns"], answer["wall_ns"]) == ([1, 2], 3)
    assert seen["runners"] == 4
    live = seen["live"]
    assert (live["engine"], live["runtime"], live["execution context"]) == (1, 1, 4)
    assert newest.gpu.live["execution context"] == 1
    session.runner.close()
    assert newest.gpu.is_clean


def test_before_8_6_each_client_loads_the_engine(
    oldest: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qcompile.bench.measuring import concurrent

    session = serve(oldest, tmp_path)
    monkeypatch.setattr(session, "_open", lambda: oldest.open("negate"))
    monkeypatch.setattr(concurrent, "time_clients", lambda *_: ([oldest.gpu.live["engine"]], 1))
    assert session.answer({"do": "clients", "clients": 3, "seconds": 0.01})["ns"] == [3]
    session.runner.close()
    assert oldest.gpu.is_clean


def test_a_runner_for_all_threads_is_taken_for_each_client() -> None:
    class Anyones:
        def prepare(self, feeds: Any) -> Any:
            return lambda: seen.add((id(self), threading.get_ident()))

    seen: set[tuple[int, int]] = set()
    session = worker.WorkerSession(lambda _: None)
    session.runner = Anyones()
    session.answer({"do": "clients", "clients": 3, "seconds": 0.0})
    assert len({runner for runner, _ in seen}) == 1


@pytest.mark.parametrize("options", [{}, {"cuda_graph": True}], ids=["plain", "graph"])
def test_inferences_in_flight_are_on_streams_of_one_engine(
    newest: Simulation, tmp_path: Path, options: dict[str, Any]
) -> None:
    session = serve(newest, tmp_path, **options)
    x = values(2, 4)
    with session.runner.in_flight({"x": x}, 3) as inferences:
        assert newest.gpu.live["engine"] == 1
        assert newest.gpu.live["execution context"] == 4
        for one in inferences:
            one.start()
        busy = [stream for stream in newest.gpu.streams.values() if stream.queue]
        assert len(busy) == 3
        inferences[0].wait()
        assert len([stream for stream in newest.gpu.streams.values() if stream.queue]) == 2
    answer = session.answer({"do": "in_flight", "streams": 2, "seconds": 0.01})
    assert len(answer["ns"]) >= 2
    assert answer["wall_ns"] > 0
    np.testing.assert_array_equal(session.runner.infer({"x": x})["y"], -x)
    assert newest.gpu.stack == [PYTORCHS]
    session.runner.close()
    assert newest.gpu.is_clean


def test_before_8_6_in_flight_is_refused_with_the_reason(oldest: Simulation, tmp_path: Path) -> None:
    session = serve(oldest, tmp_path)
    with pytest.raises(InvalidOption, match="needs an optimization profile of its own"):
        session.answer({"do": "in_flight", "streams": 2, "seconds": 0.01})
    session.runner.close()
    assert oldest.gpu.is_clean


def test_the_gpus_clock_is_told(newest: Simulation, tmp_path: Path) -> None:
    session = serve(newest, tmp_path)
    answer = session.answer({"do": "gpu_times", "iterations": 2})
    assert answer["compute_ns"] == [5000, 5000]
    assert answer["with_transfers_ns"] == [7000, 7000]
    session.runner.close()


@pytest.mark.parametrize("graph", [False, True])
def test_on_the_device_a_call_copies_nothing(newest: Simulation, graph: bool) -> None:
    x = values(2, 4)
    with newest.open("negate", runner={"cuda_graph": graph}) as runner:
        run = runner.prepare({"x": x}, on_device=True)
        run()
        before = newest.gpu.clock_ns
        for _ in range(3):
            outputs = run()
        assert newest.gpu.clock_ns - before == 3 * 5000  # kernels alone
        np.testing.assert_array_equal(outputs["y"].copy_to_host(), -x)
        runner.infer({"x": values(5, 4)})  # something else in between
        np.testing.assert_array_equal(run()["y"].copy_to_host(), -x)
        del outputs
    assert newest.gpu.is_clean


def test_the_mode_of_a_row_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    import qcompile.engines

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(qcompile.engines, "load", lambda _, **given: asked.append(given))
    session = worker.WorkerSession(lambda _: None)
    for mode in ("eager", "cuda-graph"):
        session.request = {"artifact": "m.engine", "threads": 1, "mode": mode, "device": "cuda:1"}
        session._open()
    assert [(given["cuda_graph"], given["device"]) for given in asked] == [
        (False, "cuda:1"),
        (True, "cuda:1"),
    ]
