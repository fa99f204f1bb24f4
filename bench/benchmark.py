"""`qcompile bench`: artifacts against a baseline, each in its own process, in interleaved rounds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..engines.gpu import device_text, find_gpus, is_every_gpu, parse_device, parse_devices, why_no_gpu
from ..errors import EngineUnavailable, InvalidOption
from ..files import temporary_folder
from ..model.archives import trusting
from ..model.session import usable_cores
from ..progress import Progress, silent
from ..spec.words import AUTO, CUDA_GRAPH
from ..tensors import format_shape, samples_in
from .measuring.environment import Effort, environment, noise, state
from .measuring.gpu_metrics import measure_energy, measure_gpu_latencies, measure_layer_times
from .measuring.nvml import process_memory_bytes
from .measuring.rounds import Decided, TimingSeries, measure
from .measuring.sweep import check_counts, sweep_at_once, sweep_batches
from .metrics.accuracy import read_metric
from .metrics.quality import check_evaluation, described_inputs, measure_made_difference, measure_quality
from .outputs import save_feeds, shared_io, timing_feeds
from .recorder import Recorder
from .results.results import BenchInterrupted, Results, earlier_runs, join_results, now, save_results
from .results.row import Row
from .runnables import choose_runnables, row_of
from .statistics.speedup import CONFIDENCE
from .workers.pool import WorkerPool
from .workers.process import DEFAULT_TIMEOUT_S, Worker, parse_interpreters

DEFAULT_PRECISION_TARGET = 0.01
DEFAULT_MAX_TIME_S = 60.0


def benchmark(
    artifacts: Sequence[str] | Mapping[str, str],
    *,
    baseline: str,
    output: str | Path | None = None,
    history: str | Path | None = None,
    data: str | None = None,
    inputs: Sequence[str] = (),
    batch_size: int | None = None,
    threads: int = 0,
    evaluation: str | None = None,
    metric: str = AUTO,
    precision_target: float = DEFAULT_PRECISION_TARGET,
    max_time_s: float = DEFAULT_MAX_TIME_S,
    batch_sizes: Sequence[int] = (),
    clients: Sequence[int] = (),
    streams: Sequence[int] = (),
    cuda_graph: bool | None = None,
    layer_times: bool = False,
    torch_modes: Sequence[str] = (),
    models: Mapping[str, str] | None = None,
    devices: Sequence[str] = (),
    pythons: Sequence[str] = (),
    timeout_s: float = DEFAULT_TIMEOUT_S,
    trust: bool = False,
    command: Sequence[str] = (),
    recipe: str | None = None,
    unbuilt: Sequence[Row] = (),
    decided: Decided | None = None,
    compare_made: bool = False,
    progress: Progress = silent,
) -> Results:
    """Measure artifacts against a baseline.

    Args:
        artifacts: Paths or MODEL spellings, or name to them.
        baseline: One of them by name or spelling, or another MODEL.
        output: results.json to write.
        history: Results whose runs become the history of these; by default those that `output` replaces.
        data: Samples whose first batch is timed; made input otherwise.
        inputs: `NAME:SHAPE[:DTYPE]` where no artifact declares its inputs.
        batch_size: Samples per call, where the model leaves it open.
        threads: The same for every artifact; 0 takes every core this process may use.
        evaluation: Labelled samples for accuracy and output differences.
        metric: What accuracy is, such as top1, map or file.py:function; auto takes what suits the labels.
        precision_target: Stop when the interval of every speed-up is narrower than this share.
        max_time_s: Begin no round after this, but the first eight; launches behind the first are contained.
        batch_sizes: Measure a curve over these too.
        clients: Measure a curve over so many clients at once too.
        streams: Measure the throughput of so many inferences in flight, of what runs on a GPU, too.
        cuda_graph: Measure every engine of TensorRT with CUDA graphs in a row of its own (True), or without
            them alone (False). By default it has one row, with them where an inference can be captured.
        layer_times: Ask the runtimes for the time of each layer, too, after everything else.
        torch_modes: Run every PyTorch MODEL among the artifacts in these modes too: trace, script, freeze,
            compile, half, autocast.
        models: Name to a PyTorch MODEL that is measured as it is, such as one that torch.ao has quantized.
        devices: Where PyTorch and ONNX Runtime run: "cpu", "cuda", "cuda:1". With both, each is measured on
            both. The processor by default; TensorRT's engines run on the GPU named here, or on the first.
            "all" measures every GPU of the machine for itself, one after the other.
        pythons: `ENGINE=INTERPRETER` for engines whose workers run elsewhere.
        timeout_s: Give a worker up that does not answer for so long.
        trust: Run files that are not what their manifests say, and engines without one, all the same.
        command: Words that repeat this run, for the results.
        recipe: Text of the recipe it belongs to, for the results.
        unbuilt: Rows of artifacts that could not be built, with their reasons; they are added as they are.
        decided: Asked at the end of every launch whether to stop, in place of `precision_target`.
        compare_made: Compare outputs on the made input, where there is neither data nor evaluation.
        progress: Told of every step.

    Returns:
        The results; an artifact that cannot run or fails has its reason, the others their numbers.

    Raises:
        QCompileError: If the baseline cannot be loaded, or the data does not fit.
        BenchInterrupted: After Ctrl-C, with what was measured until then; `output` is written.
    """
    if is_every_gpu(devices):
        return measure_every_gpu(benchmark, locals())
    scored = read_metric(metric)  # a wrong one is refused even where nothing is evaluated
    quality = scored if evaluation is not None else None
    if not 0 < precision_target < 1 or max_time_s <= 0 or timeout_s <= 0:
        raise InvalidOption(
            "`precision_target` must lie between 0 and 1; `max_time_s` and `timeout_s` must be above 0"
        )
    check_counts(batch_sizes, "`batch_sizes`")
    check_counts(clients, "`clients`")
    check_counts(streams, "`streams`")
    numbers = parse_devices(devices)
    gpu = next((number for number in numbers if number is not None), 0)
    runnables, base = choose_runnables(
        artifacts, baseline, trust=trust, pythons=parse_interpreters(pythons), torch_modes=torch_modes,
        models=models, devices=numbers, cuda_graph=cuda_graph, in_flight=bool(streams),
    )  # fmt: skip
    threads = threads or usable_cores()
    with trusting(trust):
        io = shared_io(runnables, inputs)
    feeds = timing_feeds(io, data, runnables=runnables, batch_size=batch_size)
    swept = {size: timing_feeds(io, data, runnables=runnables, batch_size=size) for size in batch_sizes}
    recorder = Recorder([row_of(runnable) for runnable in runnables], base)
    timed: dict[str, TimingSeries] = {}
    surroundings = {**environment(threads, gpu), "before": state(gpu)}
    stopped: KeyboardInterrupt | None = None
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(temporary_folder("bench"))
            save_feeds(feeds, folder / "feeds.npz")
            pool = stack.enter_context(
                WorkerPool(runnables, recorder, folder / "feeds.npz", threads=threads, timeout_s=timeout_s,
                           progress=progress)
            )  # fmt: skip
            launch_s = pool.start()
            if evaluation is not None and quality is not None:
                quality = quality.for_inputs(described_inputs(io, runnables))
                quality = check_evaluation(pool.workers[base], io, evaluation, quality)
                if quality.note:
                    progress(quality.note)
            timed = pool.timed
            surroundings |= _measure(
                pool, recorder, samples_in(feeds), surroundings, gpu, launch_s=launch_s,
                max_time_s=max_time_s, precision_target=precision_target, decided=decided,
                progress=progress,
            )  # fmt: skip
            workers = pool.workers
            if (evaluation or data) is not None and recorder.is_measured(base):
                progress("compare outputs")
                measure_quality(workers, recorder, io, str(evaluation or data), quality)
            elif compare_made and recorder.is_measured(base):
                measure_made_difference(workers, recorder, feeds)
            if decided is None:  # who has a rule of his own wants its answer, not every figure
                measure_gpu_latencies(workers, recorder)
                measure_energy(workers, recorder, timed, samples_in(feeds), progress)
            sweep_batches(workers, recorder, swept, folder, progress)
            if swept and (clients or streams or layer_times):
                _feed_again(workers, recorder, folder / "feeds.npz")
            at_once = {"clients": clients, "streams": streams}
            sweep_at_once(workers, recorder, at_once, samples_in(feeds), progress)
            if layer_times:
                measure_layer_times(workers, recorder, progress)
    except KeyboardInterrupt as error:
        if not any(one.round_medians_ms for one in timed.values()):
            raise  # nothing to keep
        stopped = error
        unknown = "it was interrupted before anyone looked what else ran: measure again"
        surroundings = {"after": state(gpu), "noise": {"noisy": True, "reasons": [unknown]}} | surroundings
    recorder.conclude(precision_target)
    results = Results(
        base,
        [*recorder.rows, *unbuilt],
        surroundings,
        {
            "threads": threads,
            "inputs": {name: format_shape(array.shape) for name, array in feeds.items()},
            "batch_size": samples_in(feeds),
            "data": data or "made input",
            "evaluation": evaluation,
            "metric": quality.name if quality else None,
            "metric_note": quality.note if quality else "",
            "precision_target": precision_target,
            "max_time_s": max_time_s,
            "confidence": CONFIDENCE,
            "batch_sizes": list(batch_sizes),
            "clients": list(clients),
            "streams": list(streams),
            "cuda_graph": cuda_graph,
            "layer_times": layer_times,
            "devices": list(devices),
            "command": list(command),
            "recipe": recipe,
        },
        created=now(),
        history=earlier_runs(history or output),
        interrupted=stopped is not None,
    )
    if output is not None:
        save_results(results, Path(output))
    if stopped is not None:
        raise BenchInterrupted(results) from stopped
    return results


def _measure(
    pool: WorkerPool,
    recorder: Recorder,
    samples: int,
    surroundings: Mapping[str, Any],
    gpu: int,
    *,
    launch_s: float,
    max_time_s: float,
    precision_target: float,
    decided: Decided | None,
    progress: Progress,
) -> dict[str, Any]:
    """Rounds, and what they and others did to the machine meanwhile; returns `before`, `after`, `noise`."""
    load_average = surroundings["before"]["load_average_1min"]  # ours is in it from now on
    timed = pool.timed
    pool.mark_usage()
    before, began, own_s = state(gpu), time.monotonic(), time.process_time()
    try:
        measure(
            pool.workers,
            pool.relaunch,
            recorder.base,
            timed,
            launch_s=launch_s,
            max_time_s=max_time_s,
            precision_target=precision_target,
            decided=decided,
            progress=progress,
        )
    finally:  # also when it is interrupted
        recorder.timed(timed, samples)
    seconds, after = time.monotonic() - began, state(gpu)
    pool.count_usage()
    for name, worker in pool.workers.items():
        if timed[name].failure is None:
            memory = recorder.attempt(name, partial(_memory, worker, pool.device(name)))
            if memory is not None:
                recorder.change(name, **memory)
    effort = Effort(seconds, pool.cpu_s + time.process_time() - own_s, pool.switches, pool.cpu_s)
    base_ms = timed[recorder.base].round_medians_ms
    judged = noise(before, after, effort, base_ms, governor=surroundings.get("governor"))
    return {"before": before | {"load_average_1min": load_average}, "after": after, "noise": judged}


def _memory(worker: Worker, device: str) -> dict[str, int | None]:
    gpu = parse_device(device)
    on_gpu = None if gpu is None else process_memory_bytes(worker.pid, gpu)
    return {"peak_memory_bytes": worker.ask("memory")["peak_bytes"], "gpu_memory_bytes": on_gpu}


def _feed_again(workers: Mapping[str, Worker], recorder: Recorder, path: Path) -> None:
    for name, worker in workers.items():
        if recorder.can_be_asked(name):
            recorder.attempt(name, partial(worker.ask, "feed", path=str(path)))


def measure_every_gpu(measure: Callable[..., Results], options: Mapping[str, Any]) -> Results:
    """Measure on every GPU of this machine.

    What runs on the processor alone is measured once, beside the first GPU; the baseline beside each.
    """
    gpus = find_gpus()
    if not gpus:
        raise EngineUnavailable(
            f"`devices` all: {why_no_gpu() or 'there is no GPU'}",
            hint="run it on a machine with an NVIDIA GPU, or give `devices` cpu",
            engine="cuda",
        )
    output, history = options["output"], options["history"]
    asked = dict(options) | {"output": None, "history": None}
    parts: dict[str, Results] = {}
    stopped: BenchInterrupted | None = None
    for number in range(len(gpus)):
        device = device_text(number)
        try:
            parts[device] = measure(**asked | {"devices": (device,)})
        except BenchInterrupted as interrupted:
            parts[device], stopped = interrupted.results, interrupted
            break
        asked |= _on_the_others(parts[device], asked)
    results = join_results(parts, history=earlier_runs(history or output))
    if output is not None:
        save_results(results, Path(output))
    if stopped is not None:
        raise BenchInterrupted(results) from stopped
    return results


def _on_the_others(first: Results, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for further GPUs: what ran on the first, and the baseline."""
    alone = asked["models"] or {}
    modes = ("eager",) if asked["cuda_graph"] else ("eager", CUDA_GRAPH)  # without rows that are added
    kept = {
        row.name: row.artifact
        for row in first.rows
        if row.mode in modes
        and row.name not in alone
        and (row.device != "cpu" or row.name == first.baseline)
        and row.name not in {one.name for one in asked["unbuilt"]}
    }
    return {"artifacts": kept, "baseline": first.baseline, "unbuilt": ()}
