"""One logger for a process: TensorRT keeps the first one it was given (issue 1475)."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from computed_plan import write_plan
from simulated_builder import simulated_tensorrt
from tensorrt_simulation import Simulation, read_model, rows, values

from qcompile.engines.tensorrt.log import last_error, make_log, setting
from qcompile.engines.tensorrt.runner.runner import TensorRTRunner
from qcompile.errors import InvalidOption, ModelError


def listen(module: Any) -> tuple[Any, list[tuple[str, str]]]:
    """A logger, and what it will be told: (severity, text)."""
    said: list[tuple[str, str]] = []

    class Log(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            said.append((severity.name, message))

    return Log(), said


@pytest.fixture(params=["real", "simulated"])
def module(request: pytest.FixtureRequest) -> Any:
    """TensorRT-RTX, and its stand-in."""
    if request.param == "simulated":
        return simulated_tensorrt("rtx")
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")


def complain(builder: Any) -> None:
    """Let TensorRT log a warning."""
    assert builder.create_builder_config().hardware_compatibility_level is not None


def test_a_second_logger_is_ignored_while_a_builder_lives(module: Any) -> None:
    gc.collect()
    (first, told_first), (second, told_second) = listen(module), listen(module)
    older, newer = module.Builder(first), module.Builder(second)
    assert [text for _, text in told_second if "differs from one already registered" in text]
    said = len(told_first), len(told_second)
    complain(newer)
    del older
    complain(newer)
    assert len(told_second) == said[1]
    assert len([text for _, text in told_first[said[0] :] if "unsupported" in text]) == 2


def test_what_listens_hears_the_same_logger_and_nothing_from_before(module: Any) -> None:
    first = make_log(module)
    builder = module.Builder(first.logger)
    complain(builder)
    second = make_log(module)
    assert second.logger is first.logger
    assert first.warnings
    assert not second.warnings
    complain(module.Builder(second.logger))
    assert first.warnings == second.warnings  # once each, and no word of another logger
    assert len(first.warnings) == 1


def test_the_logger_outlives_those_who_listened(module: Any) -> None:
    logger = make_log(module).logger
    gc.collect()
    builder = module.Builder(logger)
    complain(builder)  # nobody hears it
    assert make_log(module).logger is logger


def test_a_setting_that_was_complained_of_before_is_complained_of_again(module: Any) -> None:
    log = make_log(module)
    builder = module.Builder(log.logger)
    for _ in range(2):
        with (
            pytest.raises(InvalidOption, match=r"`odd`: RTX refuses it: .*unsupported"),
            setting(log, "`odd`", "RTX"),
        ):
            complain(builder)


def test_the_last_errors_are_kept_without_their_source_files_and_warnings_once(module: Any) -> None:
    log, severity = make_log(module), module.ILogger.Severity
    assert last_error(log, "nothing was said") == "nothing was said"
    for index in range(1200):
        log.logger.log(severity.ERROR, f"error {index}")
    assert (len(log.errors), last_error(log, "")) == (1000, "error 1199")
    log.logger.log(severity.INTERNAL_ERROR, "[network.cpp::check::12]: the axis is wrong")
    for level, text in [(severity.WARNING, "slow")] * 2 + [(severity.INFO, "hello")]:
        log.logger.log(level, text)
    assert last_error(log, "") == "the axis is wrong"
    assert log.warnings == ["slow"]


@pytest.mark.parametrize("closed", [0, 1])
def test_of_two_runners_either_may_be_closed_first(closed: int, simulation: Simulation) -> None:
    model = read_model("negate")
    runners = []
    for name in ("a", "b"):
        path = write_plan(
            simulation.folder / f"{name}.engine", model, simulation.version, profiles=[rows(model, 1, 2, 8)]
        )
        runners.append(TensorRTRunner(simulation.adapter, path))
    runners.pop(closed).close()
    (left,) = runners
    x = values(2, 4)
    np.testing.assert_array_equal(left.infer({"x": x})["y"], -x)
    gpu, ordinary = simulation.gpu, simulation.gpu.enter
    gpu.enter = lambda name: name == "execute_async_v3" or ordinary(name)  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="an illegal memory access was encountered"):
        left.infer({"x": x})
    left.close()
