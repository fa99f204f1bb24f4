"""Several inferences of one engine: on streams, by runners that share it, and by a bench's clients."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from tensorrt_simulation import PYTORCHS, InterfaceArray, Simulation, assert_negates, values

import qcompile.engines
from qcompile.bench import worker
from qcompile.core.processes.arrays import save_arrays
from qcompile.errors import DataError, InvalidOption, ModelError

PROFILES = [{"x": [[1, 4], [2, 4], [top, 4]]} for top in (8, 8, 16)]


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_all_streams_are_kept_busy_and_outputs_come_in_the_order_of_the_feeds(
    simulation: Simulation, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many runs are enqueued as there are streams before the first one is waited for."""
    gpu, waiting = simulation.gpu, []
    many = [{"x": values(1 + turn % 8, 4, seed=turn)} for turn in range(11)]
    kind = type(next(iter(gpu.streams.values())))
    run_all = kind.run

    def run(stream: Any) -> None:
        waiting.append(sum(bool(found.queue) for found in gpu.streams.values()))
        run_all(stream)

    with simulation.open("negate", profiles=PROFILES, runner={"streams": streams}) as runner:
        for patch in (run_all, run):
            monkeypatch.setattr(kind, "run", patch)
            for feeds, outputs in zip(many, runner.infer_many(many), strict=True):
                np.testing.assert_array_equal(outputs["y"], -feeds["x"])
        monkeypatch.setattr(kind, "run", run_all)
        assert runner.infer_many([]) == []
    assert max(waiting) == streams
    assert len({handle for (handle,) in simulation.told("execute_async_v3")[-11:]}) == streams


def test_inputs_on_the_device_are_waited_for_on_every_stream(newest: Simulation) -> None:
    arrays = [values(3, 4, seed=turn) for turn in range(5)]
    producers = [InterfaceArray(newest.gpu, array) for array in arrays]
    with newest.open("negate", runner={"streams": 2}) as runner:
        found = runner.infer_many([{"x": producer} for producer in producers])
    for array, outputs, producer in zip(arrays, found, producers, strict=True):
        np.testing.assert_array_equal(outputs["y"], -array)
        producer.free()


def test_before_8_6_each_stream_keeps_a_profile_and_gives_it_up_for_shapes_of_none(
    oldest: Simulation,
) -> None:
    with oldest.open("negate", profiles=PROFILES, runner={"streams": 2}) as runner:
        for counts in ([2, 2, 2, 2], [12, 2, 12, 2], [2, 12, 2]):
            many = [{"x": values(count, 4, seed=turn)} for turn, count in enumerate(counts)]
            for feeds, outputs in zip(many, runner.infer_many(many), strict=True):
                np.testing.assert_array_equal(outputs["y"], -feeds["x"])


def test_feeds_that_do_not_fit_stop_it_and_the_runner_goes_on(newest: Simulation) -> None:
    with newest.open("negate", runner={"streams": 2}) as runner:
        with pytest.raises(DataError, match="input 'x' has shape 9x4"):
            runner.infer_many([{"x": values(2, 4)}, {"x": values(2, 4)}, {"x": values(9, 4)}])
        assert_negates(runner, 2)


@pytest.mark.parametrize("first_closed", [0, 1, 2])
def test_runners_share_an_engine_and_the_last_frees_it(newest: Simulation, first_closed: int) -> None:
    runner = newest.open("negate", runner={"cuda_graph": True})
    runners = [runner, runner.share(), runner.share(streams=2)]
    assert newest.gpu.live["engine"] == newest.gpu.live["runtime"] == 1
    for seed, sharing in enumerate(runners):
        assert_negates(sharing, 2, seed=seed)
    assert newest.gpu.live["execution context"] == 4
    runners.insert(0, runners.pop(first_closed))
    for count, sharing in enumerate(runners):
        assert newest.gpu.live["engine"] == 1
        sharing.close()
        sharing.close()
        with pytest.raises(ModelError, match="its runner is closed"):
            sharing.infer({"x": values(2, 4)})
        for other in runners[count + 1 :]:
            assert_negates(other, 3)


@pytest.mark.parametrize("streams", [0, -1])
def test_at_least_one_stream_is_required_and_a_refused_share_leaves_the_engine(
    newest: Simulation, streams: int
) -> None:
    with newest.open("negate") as runner:
        for use in (runner.share, lambda streams: newest.open("negate", runner={"streams": streams})):
            with pytest.raises(InvalidOption, match=f"`streams` {streams}: 1 or more is required"):
                use(streams=streams)
        assert_negates(runner, 2)


def test_before_8_6_each_stream_and_share_needs_a_profile_where_shapes_are_dynamic(
    oldest: Simulation,
) -> None:
    said = r"`streams` 2: before TensorRT 8\.6 each execution context .* profile of its own, .* has 1\n"
    with pytest.raises(InvalidOption, match=said) as caught:
        oldest.open("negate", runner={"streams": 2})
    assert "TensorRT 10" in caught.value.hint
    with oldest.open("negate") as runner:
        assert not runner.can_be_shared
        with pytest.raises(InvalidOption, match="needs an optimization profile of its own") as caught:
            runner.share()
        assert caught.value.hint == "load the engine again"


def test_holders_may_let_go_in_any_thread(newest: Simulation) -> None:
    runner = newest.open("negate")
    others = [runner.share() for _ in range(8)]
    runner.close()
    for thread in [threading.Thread(target=other.close) for other in others]:
        thread.start()
        thread.join()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> worker.WorkerSession:
    """A bench's worker; nobody waits for threads to come to rest."""
    monkeypatch.setattr(worker, "_wait_for_rest", lambda: True)
    return worker.WorkerSession(lambda _: None)


def serve(session: worker.WorkerSession, simulation: Simulation, **options: Any) -> None:
    """Let the worker load and feed an engine."""
    session.runner = simulation.open("negate", runner=options)
    save_arrays(simulation.folder / "feeds.npz", {"x": values(2, 4)})
    session.answer({"do": "feed", "path": str(simulation.folder / "feeds.npz")})


def test_clients_share_one_engine_and_have_contexts_of_their_own(
    session: worker.WorkerSession, newest: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def time_clients(runners: list[Any], feeds: Any, _: float) -> tuple[list[int], int]:
        seen.update(newest.gpu.live, runners=len({id(runner) for runner in runners}))
        for runner in runners:
            np.testing.assert_array_equal(runner.infer(feeds)["y"], -feeds["x"])
        return [1, 2], 3

    monkeypatch.setattr(worker, "time_clients", time_clients)
    serve(session, newest)
    answer = session.answer({"do": "clients", "clients": 4, "seconds": 0.01})
    assert (answer["ns"], answer["wall_ns"]) == ([1, 2], 3)
    counted = {name: seen[name] for name in ("runners", "engine", "runtime", "execution context")}
    assert counted == {"runners": 4, "engine": 1, "runtime": 1, "execution context": 4}
    assert newest.gpu.live["execution context"] == 1
    session.runner.close()


def test_before_8_6_each_client_loads_the_engine_and_in_flight_is_refused(
    session: worker.WorkerSession, oldest: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(session, oldest)
    monkeypatch.setattr(session, "_open", lambda: oldest.open("negate"))
    monkeypatch.setattr(worker, "time_clients", lambda *_: ([oldest.gpu.live["engine"]], 1))
    assert session.answer({"do": "clients", "clients": 3, "seconds": 0.01})["ns"] == [3]
    with pytest.raises(InvalidOption, match="needs an optimization profile of its own"):
        session.answer({"do": "in_flight", "streams": 2, "seconds": 0.01})
    session.runner.close()


def test_a_runner_for_all_threads_is_taken_for_each_client(session: worker.WorkerSession) -> None:
    class Anyones:
        def prepare(self, feeds: Any) -> Any:
            return lambda: seen.add((id(self), threading.get_ident()))

    seen: set[tuple[int, int]] = set()
    session.runner = Anyones()
    session.answer({"do": "clients", "clients": 3, "seconds": 0.0})
    assert len({runner for runner, _ in seen}) == 1


@pytest.mark.parametrize("options", [{}, {"cuda_graph": True}], ids=["plain", "graph"])
def test_inferences_in_flight_are_on_streams_of_one_engine(
    session: worker.WorkerSession, newest: Simulation, options: dict[str, Any]
) -> None:
    def busy() -> int:
        return sum(bool(stream.queue) for stream in newest.gpu.streams.values())

    serve(session, newest, **options)
    with session.runner.in_flight({"x": values(2, 4)}, 3) as inferences:
        assert (newest.gpu.live["engine"], newest.gpu.live["execution context"]) == (1, 4)
        for inference in inferences:
            inference.start()
        assert busy() == 3
        inferences[0].wait()
        assert busy() == 2
    answer = session.answer({"do": "in_flight", "streams": 2, "seconds": 0.01})
    assert len(answer["ns"]) >= 2
    assert answer["wall_ns"] > 0
    assert_negates(session.runner, 2)
    assert newest.gpu.stack == [PYTORCHS]
    session.runner.close()


def test_the_gpus_clock_is_told(session: worker.WorkerSession, newest: Simulation) -> None:
    serve(session, newest)
    answer = session.answer({"do": "gpu_times", "iterations": 2})
    assert (answer["compute_ns"], answer["with_transfers_ns"]) == ([5000, 5000], [7000, 7000])
    session.runner.close()


def test_the_mode_of_a_row_reaches_the_engine(
    session: worker.WorkerSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        qcompile.engines, "load", lambda _, **use: opened.append((use["cuda_graph"], use["device"]))
    )
    for mode in ("eager", "cuda-graph"):
        session.request = {"artifact": "m.engine", "threads": 1, "mode": mode, "device": "cuda:1"}
        session._open()
    assert opened == [(False, "cuda:1"), (True, "cuda:1")]
