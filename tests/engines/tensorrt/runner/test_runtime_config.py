"""TensorRT-RTX's runtime configuration: its own CUDA graphs, and compiled kernels kept beside the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulated_cuda import SimulatedGpu
from tensorrt_simulation import Simulation, make_adapter, values

from qcompile.engines.tensorrt.runner.loaded_engine import SUFFIX
from qcompile.errors import ModelError

CACHE = {"runtime_cache": True}


@pytest.fixture
def rtx(gpu: SimulatedGpu, tmp_path: Path) -> Simulation:
    """TensorRT-RTX."""
    return Simulation("rtx", gpu, make_adapter("rtx", gpu), tmp_path)


def run(simulation: Simulation, **options: object) -> tuple[str, ...]:
    """Load, run at two shapes, close, and return the notes."""
    with simulation.open("negate", runner=dict(options)) as runner:
        for count in (2, 3, 2):
            x = values(count, 4)
            np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
        return tuple(runner.notes)


def cache_of(simulation: Simulation) -> Path:
    """Where the runtime cache lies."""
    return simulation.folder / f"m.engine{SUFFIX}"


def test_it_captures_by_itself_in_one_context_for_all_shapes(rtx: Simulation) -> None:
    with rtx.open("negate", runner={"cuda_graph": True}) as runner:
        for turn in range(4):
            for count in (2, 3, 4, 5, 6):
                x = values(count, 4, seed=turn)
                np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
        assert rtx.gpu.live["execution context"] == 1
        assert rtx.gpu.made["executable graph"] == 0  # nothing is captured from outside
        assert (rtx.gpu.made["RTX capture"], rtx.gpu.made["RTX replay"]) == (5, 10)
        assert "execute_async_v3 with CUDA graphs by TensorRT-RTX" in runner.contains


def test_without_graphs_it_captures_nothing_and_compiles_before_it_runs(rtx: Simulation) -> None:
    run(rtx)
    assert rtx.gpu.made["RTX capture"] == 0
    written = [call for call in rtx.adapter.module.recorded_calls if call.written]
    assert [call.args[0].name for call in written if "specialization" in call.member] == ["EAGER"]
    assert not cache_of(rtx).exists()


def test_a_strategy_that_is_not_taken_is_an_error(rtx: Simulation) -> None:
    ordinary = rtx.gpu.enter
    rtx.gpu.enter = lambda name: name == "cuda_graph_strategy" or ordinary(name)  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="takes no CUDA graphs here") as caught:
        rtx.open("negate", runner={"cuda_graph": True})
    assert caught.value.hint == "leave cuda_graph off"
    assert rtx.gpu.is_clean


def test_the_next_process_compiles_nothing(rtx: Simulation) -> None:
    assert run(rtx, **CACHE) == ()
    assert rtx.gpu.made["compiled kernel"] == 2
    content = cache_of(rtx).read_bytes()
    assert [text.split(";")[0] for text in run(rtx, **CACHE)] == [
        "kernels are those of m.engine.runtime_cache"
    ]
    assert rtx.gpu.made["compiled kernel"] == 2
    assert cache_of(rtx).read_bytes() == content
    assert rtx.gpu.is_clean


def test_what_is_compiled_later_is_added(rtx: Simulation) -> None:
    run(rtx, **CACHE)
    with rtx.open("negate", runner=CACHE) as runner:
        runner.infer({"x": values(7, 4)})
    before = rtx.gpu.made["compiled kernel"]
    with rtx.open("negate", runner=CACHE) as runner:
        for count in (2, 3, 7):
            runner.infer({"x": values(count, 4)})
    assert rtx.gpu.made["compiled kernel"] == before == 3


def test_a_cache_that_cannot_be_used_is_told_and_replaced(rtx: Simulation) -> None:
    run(rtx, **CACHE)
    good = cache_of(rtx).read_bytes()
    for damaged in (good[:-3], b"", b"nothing of ours", good.replace(b"1.7.1", b"1.6.0"), good[:30]):
        cache_of(rtx).write_bytes(damaged)
        (note,) = run(rtx, **CACHE)
        assert "is not used: it is of another engine or version, or damaged" in note
        assert cache_of(rtx).read_bytes() == good
    rtx.gpu.name = "another GPU"
    (note,) = run(rtx, **CACHE)
    assert "TensorRT-RTX refuses it, as of another GPU or driver" in note
    rtx.gpu.name = "a GPU"
    (note,) = run(rtx, **CACHE)
    assert "another GPU" in note


def test_the_cache_of_another_engine_is_not_used(rtx: Simulation) -> None:
    run(rtx, **CACHE)
    with rtx.open("negate_bf16", runner=CACHE) as runner:  # built to the same file since
        assert "of another engine" in runner.notes[0]


def test_a_folder_that_takes_no_file_is_no_error(rtx: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("qcompile.files.temporary.tempfile.mkdtemp", refuse)
    assert run(rtx, **CACHE) == ()
    assert not cache_of(rtx).exists()
    assert rtx.gpu.is_clean


def test_nothing_is_left_of_a_cache_that_was_not_written_whole(
    rtx: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, _: bytes) -> int:
        self.open("wb").close()
        raise OSError(28, "No space left on device")

    path = rtx.plan("negate")
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(rtx, "plan", lambda *_, **__: path)
    run(rtx, **CACHE)
    assert [item.name for item in rtx.folder.iterdir()] == ["m.engine"]


def test_other_tensorrts_have_neither(newest: Simulation) -> None:
    assert run(newest, **CACHE) == ()
    assert not cache_of(newest).exists()
    assert not newest.told("create_runtime_config")


def test_before_1_2_it_is_captured_as_other_tensorrts_are(rtx: Simulation) -> None:
    # Release notes 1.2 of TensorRT-RTX: its own CUDA graphs are new there.
    del rtx.adapter.module.CudaGraphStrategy
    with rtx.open("negate", runner={"cuda_graph": True}) as runner:
        for turn in range(3):
            x = values(2, 4, seed=turn)
            np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
        assert rtx.gpu.made["executable graph"] == 1
        assert "a CUDA graph of execute_async_v3" in runner.contains
