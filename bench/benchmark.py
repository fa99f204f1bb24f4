"""`qcompile bench`: measure artifacts against a baseline in separate processes and interleaved rounds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.files import check_output, temporary_folder
from ..core.processes.arrays import save_arrays
from ..core.progress import Progress, silent
from ..engines import gpu as gpus
from ..errors import EngineUnavailable
from ..model.sessions.session import usable_cores
from ..model.sources.archives import trust_files
from ..spec.decode import spec_from_call
from ..spec.measure import BenchOptions, BenchSpec
from ..spec.option import fields_of
from ..spec.tensors import format_shape, samples_in
from ..spec.words import CUDA_GRAPH
from .measure import side_figures
from .measure.artifacts import forms_of, shared_io, timing_feeds
from .measure.recorder import Recorder
from .measure.rounds import StopRule, TimingSeries, measure
from .measure.runnables import WorkerPool, choose_runnables, row_of
from .metrics import accuracy
from .results.environment import Effort, environment, find_nvml, noise, state
from .results.results import BenchInterrupted, Results, earlier_runs, join_results, now, save_results
from .results.row import Row
from .results.statistics import CONFIDENCE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.keywords import BenchKeywords


def benchmark(
    artifacts: Sequence[str] | Mapping[str, str],
    spec: BenchSpec | None = None,
    /,
    *,
    history: str | Path | None = None,
    command: Sequence[str] = (),
    recipe: str | None = None,
    unbuilt: Sequence[Row] = (),
    decided: StopRule | None = None,
    compare_made: bool = False,
    progress: Progress = silent,
    **options: Unpack[BenchKeywords],
) -> Results:
    """Measure artifacts against a baseline.

    Args:
        artifacts: Paths or MODEL arguments, or names to these. A baseline that is not among them is added.
        spec: Options of the measurement.
        history: Results file whose runs become the history; by default the file that `output` replaces.
        command: Command line that repeats this run, for the results file.
        recipe: Text of the recipe that started this run, for the results file.
        unbuilt: Rows of artifacts that could not be built, with the reasons; added unchanged.
        decided: Called after each launch; returns whether to stop. Replaces `precision_target`.
        compare_made: Whether to compare outputs on random input if neither data nor evaluation is set.
        progress: Called at every step.
        options: Fields of `BenchSpec` by name, in place of those of `spec`.

    Returns:
        The results. The row of an artifact that cannot run or fails has the reason instead of figures.

    Raises:
        QCompileError: If the baseline cannot be loaded, or the data does not fit.
        BenchInterrupted: After Ctrl-C, with the results so far; `output` is written.
    """
    spec = spec_from_call(BenchSpec, spec, options)
    if spec.output is not None:
        check_output(spec.output, is_model=False)
    if gpus.is_every_gpu(spec.devices):
        on_one_gpu = partial(
            benchmark, command=command, recipe=recipe, decided=decided, compare_made=compare_made,
            progress=progress,
        )  # fmt: skip
        return measure_every_gpu(on_one_gpu, artifacts, spec, history, unbuilt)
    metric = accuracy.read_metric(spec.metric)  # raises on an unknown name even without evaluation data
    quality = metric if spec.evaluation is not None else None
    numbers = gpus.parse_devices(spec.devices)
    gpu = next((number for number in numbers if number is not None), 0)
    runnables, base = choose_runnables(artifacts, spec, numbers)
    threads = spec.threads or usable_cores()
    with trust_files(spec.trust):
        io = shared_io(runnables, spec.inputs)
    feeds = timing_feeds(io, spec.data, runnables=runnables, batch_size=spec.batch_size)
    sweep_feeds = {
        size: timing_feeds(io, spec.data, runnables=runnables, batch_size=size) for size in spec.batch_sizes
    }
    recorder = Recorder([row_of(runnable) for runnable in runnables], base)
    timed: dict[str, TimingSeries] = {}
    surroundings = {**environment(threads, gpu), "before": state(gpu)}
    interrupt: KeyboardInterrupt | None = None
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(temporary_folder("bench"))
            save_arrays(folder / "feeds.npz", feeds)
            pool = WorkerPool(runnables, recorder, folder / "feeds.npz", spec, progress)
            stack.callback(pool.close)
            launch_s = pool.start()
            if spec.evaluation is not None and quality is not None:
                quality = quality.for_inputs(accuracy.described_inputs(io, runnables))
                quality = accuracy.check_evaluation(pool.workers[base], io, spec.evaluation, quality)
                if quality.note:
                    progress(quality.note)
            timed = pool.timed
            surroundings |= _measure(
                pool, recorder, samples_in(feeds), surroundings, gpu, spec, launch_s=launch_s,
                decided=decided, progress=progress,
            )  # fmt: skip
            workers = pool.workers
            if (spec.evaluation or spec.data) is not None and recorder.is_measured(base):
                progress("compare outputs")
                accuracy.measure_quality(
                    workers, recorder, io, str(spec.evaluation or spec.data), quality, forms_of(runnables),
                    spec.candidates,
                )  # fmt: skip
            elif compare_made and recorder.is_measured(base):
                accuracy.measure_random_input_difference(workers, recorder, feeds, forms_of(runnables))
            if decided is None:  # a caller with a stop rule needs no further figures
                side_figures.measure_gpu_latencies(workers, recorder)
                side_figures.measure_energy(workers, recorder, timed, samples_in(feeds), progress)
            side_figures.sweep_batches(workers, recorder, sweep_feeds, folder, progress)
            concurrency = {"clients": spec.clients, "streams": spec.streams}
            side_figures.sweep_concurrency(workers, recorder, concurrency, samples_in(feeds), progress)
            if spec.layer_times:
                side_figures.measure_layer_times(workers, recorder, progress)
    except KeyboardInterrupt as error:
        if not any(series.round_medians_ms for series in timed.values()):
            raise  # no round was measured
        interrupt = error
        reason = "interrupted before other load on the machine was checked: measure again"
        surroundings = {"after": state(gpu), "noise": {"noisy": True, "reasons": [reason]}} | surroundings
    recorder.conclude(spec.precision_target)
    results = Results(
        baseline=base,
        rows=[*recorder.rows, *unbuilt],
        environment=surroundings,
        settings=_settings(
            spec,
            {"command": list(command), "recipe": recipe},
            threads=threads,
            inputs={name: format_shape(array.shape) for name, array in feeds.items()},
            batch_size=samples_in(feeds),
            data=spec.data or "made input",
            metric=quality.name if quality else None,
            metric_note=quality.note if quality else "",
            confidence=CONFIDENCE,
        ),
        created=now(),
        history=earlier_runs(history or spec.output),
        interrupted=interrupt is not None,
    )
    return _save(results, spec, interrupt)


_NOT_IN_SETTINGS = ("torch_modes", "models", "python", "timeout_s")  # in rows, or without effect on figures
_ORDER = (
    "threads", "inputs", "batch_size", "data", "evaluation", "metric", "metric_note", "precision_target",
    "max_time_s", "confidence",
)  # fmt: skip


def _settings(spec: BenchSpec, about: Mapping[str, Any], **measured: Any) -> dict[str, Any]:
    """Return the settings for the results file: options with the values used, then `about`."""
    options = {option.name: getattr(spec, option.name) for option in fields_of(BenchOptions)}
    values = {"evaluation": spec.evaluation, **options, **measured}
    names = [*_ORDER, *(name for name in options if name not in (*_ORDER, *_NOT_IN_SETTINGS))]
    return {n: list(values[n]) if isinstance(values[n], tuple) else values[n] for n in names} | {**about}


def _measure(
    pool: WorkerPool,
    recorder: Recorder,
    samples: int,
    surroundings: Mapping[str, Any],
    gpu: int,
    options: BenchOptions,
    *,
    launch_s: float,
    decided: StopRule | None,
    progress: Progress,
) -> dict[str, Any]:
    """Run the rounds. Return the machine state before and after them, and the noise between."""
    load_average = surroundings["before"]["load_average_1min"]  # later values include our load
    timed = pool.timed

    def gpu_memory(name: str, pid: int) -> int | None:
        number = gpus.parse_device(recorder[name].device)
        nvml = None if number is None else find_nvml(number)[0]
        return nvml.process_memory_bytes(pid) if nvml else None

    pool.mark_usage()
    before, began, own_cpu_s = state(gpu), time.monotonic(), time.process_time()
    try:
        measure(
            pool.workers, pool.relaunch, recorder.base, timed, options, launch_s=launch_s, decided=decided,
            gpu_memory=gpu_memory, progress=progress,
        )  # fmt: skip
    finally:  # also after Ctrl-C
        recorder.record_timings(timed, samples)
    seconds, after = time.monotonic() - began, state(gpu)
    pool.count_usage()
    for name, worker in pool.workers.items():
        if timed[name].failure is None:
            memory = recorder.attempt(name, partial(worker.ask, "memory"))
            if memory is not None:
                gpu_bytes = gpu_memory(name, worker.pid)
                recorder.change(name, peak_memory_bytes=memory["peak_bytes"], gpu_memory_bytes=gpu_bytes)
    effort = Effort(seconds, pool.cpu_s + time.process_time() - own_cpu_s, pool.switches, pool.cpu_s)
    base_ms = timed[recorder.base].round_medians_ms
    noise_report = noise(before, after, effort, base_ms, governor=surroundings.get("governor"))
    return {"before": before | {"load_average_1min": load_average}, "after": after, "noise": noise_report}


def measure_every_gpu(
    measure: Callable[..., Results],
    artifacts: Sequence[str] | Mapping[str, str],
    spec: BenchSpec,
    history: str | Path | None,
    unbuilt: Sequence[Row],
) -> Results:
    """Measure on every GPU of this machine.

    Artifacts that run on the CPU only are measured once, with the first GPU; the baseline with each GPU.
    """
    count = len(gpus.find_gpus())
    if not count:
        raise EngineUnavailable(
            f"`devices` all: {gpus.why_no_gpu() or 'there is no GPU'}",
            hint="run it on a machine with an NVIDIA GPU, or give `devices` cpu",
            engine="cuda",
        )
    parts: dict[str, Results] = {}
    interrupt: BenchInterrupted | None = None
    part_spec = replace(spec, output=None)
    for number in range(count):
        device = gpus.device_text(number)
        try:
            parts[device] = measure(artifacts, replace(part_spec, devices=(device,)), unbuilt=unbuilt)
        except BenchInterrupted as error:
            parts[device], interrupt = error.results, error
            break
        first_gpu_only = {*(text.partition("=")[0] for text in spec.models), *(row.name for row in unbuilt)}
        modes = ("eager",) if spec.cuda_graph else ("eager", CUDA_GRAPH)  # excludes rows added per mode
        artifacts = {
            row.name: row.artifact
            for row in parts[device].rows
            if row.mode in modes
            and row.name not in first_gpu_only
            and (row.device != "cpu" or row.name == parts[device].baseline)
        }
        part_spec, unbuilt = replace(part_spec, baseline=parts[device].baseline), ()
    return _save(join_results(parts, history=earlier_runs(history or spec.output)), spec, interrupt)


def _save(results: Results, spec: BenchSpec, interrupt: KeyboardInterrupt | None) -> Results:
    if spec.output is not None:
        save_results(results, spec.output)
    if interrupt is not None:
        raise BenchInterrupted(results) from interrupt
    return results
