"""Options of measuring and judging: `bench`, `diff`, `report`, `gate`, `[bench]` of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from .artifacts import Rules
from .decode import Checked, Refused
from .option import argument, fields_of, option
from .words import (
    AUTO,
    BASELINE,
    METRIC,
    METRIC_PATTERN,
    Count,
    Counts,
    File,
    InputShapes,
    MaxTime,
    Metric,
    NamedModel,
    Natural,
    Points,
    Positive,
    Samples,
    Texts,
    TorchMode,
)

Inputs = Annotated[InputShapes, "Input that no artifact declares."]
Trust = Annotated[
    bool, "Run files without a matching manifest, and .pt2 and TorchScript files, which may run code."
]
Evaluation = Annotated[Samples, "Labelled samples for accuracy and output difference."]
MetricName = Annotated[
    str, f"Accuracy metric: {METRIC}.", option(METRIC, pattern=METRIC_PATTERN, names="metric")
]

MaxDrop = Annotated[
    float, "Largest drop in accuracy, in points, or in the metric's own unit.", option("POINTS", ge=0)
]
Pythons = Annotated[
    Texts, "Python interpreter of an engine's workers.", option("ENGINE=INTERPRETER", names="interpreter")
]
Timeout = Annotated[
    float,
    "Time without an answer after which a worker counts as failed, in seconds.",
    option("--timeout SECONDS", gt=0),
]
"""Shared, as those above, by every verb that measures in worker processes."""


class Budget(Checked):
    """Limits of an artifact to be recommended; an unset limit allows any value."""

    max_drop: Annotated[
        Points,
        "Largest drop in accuracy of a recommended artifact, by the upper end of its interval, in points; "
        "default: no significant drop.",
    ] = None
    max_size_mb: Annotated[
        Positive | None,
        "Largest size of a recommended artifact, with its side files, in MB.",
        option("MB"),
    ] = None
    max_latency_ms: Annotated[
        Positive | None,
        "Largest median latency of a recommended artifact, in ms.",
        option("MS"),
    ] = None

    @property
    def limits(self) -> dict[str, float]:
        """Name to value of the limits that are set."""
        values = {limit.name: getattr(self, limit.name) for limit in fields_of(Budget)}
        return {name: value for name, value in values.items() if value is not None}


class BenchOptions(Checked):
    """How artifacts are measured."""

    threads: Annotated[Natural, "Threads of every artifact; 0 means all usable cores."] = 0
    max_time_s: Annotated[
        MaxTime, "Time limit for rounds and launches, in seconds; at least eight rounds run."
    ] = 60.0
    precision_target: Annotated[
        float, "Relative width of the speed-up intervals at which measuring stops.", option(gt=0, lt=1)
    ] = 0.01
    metric: MetricName = AUTO
    candidates: Annotated[
        Natural,
        "Number of artifacts judged on the evaluation samples before, such as by `tune`; it corrects the "
        "intervals of drops.",
    ] = 0
    batch_sizes: Annotated[Counts, "Batch sizes of an additional latency curve."] = ()
    clients: Annotated[Counts, "Numbers of concurrent clients of an additional latency curve."] = ()
    streams: Annotated[
        Counts, "Numbers of inferences in flight of an additional throughput curve, on GPUs."
    ] = ()
    cuda_graph: Annotated[
        bool | None,
        "CUDA graphs of TensorRT engines: true measures with and without them, false without; default: "
        "with them, if an inference can be captured.",
    ] = None
    layer_times: Annotated[
        bool, "Time each layer with the runtime's profiler, after all other measurements."
    ] = False
    torch_modes: Annotated[
        tuple[TorchMode, ...],
        "Additional execution mode of each PyTorch MODEL among the artifacts.",
        option("--torch"),
    ] = ()
    models: Annotated[
        tuple[NamedModel, ...],
        "Additional PyTorch MODEL that is measured as it is, such as one quantized by torch.ao.",
        option("--model NAME=MODEL", pairs="=", names="model"),
    ] = ()
    devices: Annotated[
        Texts,
        "Device of PyTorch and ONNX Runtime: cpu (default), cuda or cuda:1; all measures every GPU of "
        "the machine separately.",
        option("--device DEVICE"),
    ] = ()
    python: Pythons = ()
    timeout_s: Timeout = 600.0

    def check(self) -> None:
        """Refuse duplicate points of a curve."""
        for name in ("batch_sizes", "clients", "streams"):
            counts = getattr(self, name)
            if len(set(counts)) != len(counts):
                raise Refused(name, "different numbers are required", value=list(counts))


class BenchSection(BenchOptions, Budget):
    """`[bench]`: how the artifacts are measured. A recipe without it builds only.

    With limits on size, latency or drop, the exit code of `run` is 1 if no measured artifact meets them all.
    """

    batch_size: Annotated[int, "Samples per call.", option(ge=1)] = 1
    baseline: Annotated[str, "Artifact to compare with; pytorch is the model itself."] = BASELINE


class BenchSpec(BenchOptions):
    baseline: Annotated[str, "Artifact or MODEL to compare with.", option("MODEL")]
    output: Annotated[Path | None, "Results file to write, such as results.json.", option("-o FILE")] = None
    data: Annotated[Samples, "Samples; the first batch is timed instead of random input."] = None
    evaluation: Evaluation = None
    inputs: Inputs = ()
    batch_size: Annotated[Count | None, "Samples per call of a model with a dynamic batch."] = None
    trust: Trust = False


class BenchCommand(BenchSpec):
    """Measure ARTIFACTS against a baseline, each in separate processes, in interleaved rounds."""

    artifacts: Annotated[Texts, argument("Artifacts to measure.")]
    per_batch: Annotated[bool, "Print the latency of single calls, each of one batch."] = False
    csv: Annotated[File, "CSV file to write."] = None
    markdown: Annotated[File, "Markdown file to write."] = None


class _ComparisonOptions(Checked):
    """Options for comparing outputs or layers."""

    data: Annotated[Samples, "Samples to compare on, instead of random input."] = None
    samples: Annotated[
        Count | None,
        "Largest number of samples; default: 64, spread over all (all for --metric), or 8 with --layers.",
    ] = None
    threads: Annotated[Natural, "Threads of each model; 0 means the runtime's default."] = 0
    trust: Trust = False


class DiffSpec(_ComparisonOptions):
    inputs: Inputs = ()
    atol: Annotated[Texts, "Absolute tolerance.", option("[OUTPUT:]NUMBER", pairs=":")] = ()
    rtol: Annotated[Texts, "Relative tolerance.", option("[OUTPUT:]NUMBER", pairs=":")] = ()
    snr: Annotated[Texts, "Smallest signal-to-noise ratio.", option("[OUTPUT:]DB", pairs=":")] = ()
    rules: Rules = ()
    metric: Annotated[
        Metric | None,
        f"Accuracy to compare on labelled --data, beside the outputs: {METRIC}.",
        option(METRIC),
    ] = None
    max_drop: Annotated[
        Points, "Largest drop in accuracy that passes, in points, or in the metric's own unit; default: any."
    ] = None


class LayerDiffSpec(_ComparisonOptions):
    taps: Annotated[
        Count | None,
        "With --layers: number of tensors to read in one run; default: as many as memory allows.",
    ] = None
    max_builds: Annotated[
        Natural | None,
        "With --layers and an engine: largest number of builds of its parts; 0 compares only its outputs; "
        "default: 3 + log2 of the number of tensors.",
        option("N"),
    ] = None
    threshold: Annotated[
        float | None,
        "With --layers: signal-to-noise ratio below which a tensor diverges; default: by precision.",
        option("DB"),
    ] = None
    save_results: Annotated[
        File, "With --layers: file for the values around the first bad tensor, in Polygraphy's format."
    ] = None


class DiffCommand(LayerDiffSpec, DiffSpec):
    """Compare the outputs of ARTIFACT and REFERENCE with Polygraphy; exit code 1 on a mismatch.

    Defaults: fp32 1e-3 relative or 1e-4 of the largest value; fp16 1e-2 and 1e-2; int8 a signal-to-noise
    ratio of 15 dB, for classes also the same argmax in 95% of rows, for embeddings (rows of length 1) a mean
    cosine of 0.98 instead.

    With --layers: tensor by tensor against an ONNX REFERENCE, few at a time; exit code 1 if one diverges.
    Parts of an engine's graph are built and run to compare tensors inside it.
    """

    reference: Annotated[str, argument("Artifact or MODEL to compare with.")]
    artifact: Annotated[str, argument("Artifact or MODEL to judge.")]
    layers: Annotated[bool, "Find the first tensor that diverges."] = False
    graph: Annotated[
        File, "With --layers and an engine: ONNX file that it was built from; default: REFERENCE."
    ] = None
    output: Annotated[
        Path | None, "With --layers: JSON file to write, such as layers.json.", option("-o FILE")
    ] = None


OutputsRule = Literal["auto", "same", "any"]


class GateOptions(Checked):
    """Limits for a new version, and options of their measurement."""

    max_slower: Annotated[float, "Slowdown that passes, in percent.", option("PERCENT", gt=0)] = 2.0
    max_larger: Annotated[
        float, "Growth of the file with its side files that passes, in percent.", option("PERCENT", ge=0)
    ] = 1.0
    max_drop: Annotated[
        Points,
        "Largest drop in accuracy that passes, in points, or in the metric's own unit; default: no "
        "significant drop.",
    ] = None
    outputs: Annotated[
        OutputsRule,
        "Whether the outputs must be the same within the default tolerances of `diff`; auto: yes, unless "
        "accuracy decides or the precisions differ.",
    ] = "auto"
    strict: Annotated[bool, "Fail also if nothing could be decided, or an artifact cannot run here."] = False
    skip_identical: Annotated[bool, "Pass files that are the same byte for byte without measuring them."] = (
        False
    )
    data: Annotated[Samples, "Samples to time and compare outputs on, instead of random input."] = None
    evaluation: Evaluation = None
    metric: MetricName = AUTO
    inputs: Inputs = ()
    batch_size: Annotated[Count | None, "Samples per call of a model with a dynamic batch."] = None
    threads: Annotated[
        Natural, "Threads of every artifact; 0 means all usable cores. Use 1 on a shared machine."
    ] = 0
    max_time_s: Annotated[
        MaxTime, "Time limit for the rounds and launches of a pair, in seconds; a clear case ends earlier."
    ] = 30.0
    device: Annotated[
        str | None, "Device of PyTorch and ONNX Runtime: cpu (default), cuda or cuda:1.", option("DEVICE")
    ] = None
    python: Pythons = ()
    timeout_s: Timeout = 600.0
    trust: Trust = False

    def check(self) -> None:
        """Refuse an accuracy limit without labelled samples."""
        if self.max_drop is not None and self.evaluation is None:
            raise Refused("max_drop", "accuracy needs labelled samples", hint="give `evaluation`")


class GateCommand(GateOptions):
    """Measure OLD and NEW, interleaved in one job; exit code 1 if NEW is slower, larger or less accurate.

    OLD and NEW are artifacts or MODELs, or two folders of recipes; then every artifact in both is judged.
    Measuring ends when the interval of the slowdown decides, or at the time limit. An undecided case is
    reported and passes, unless --strict is given.
    """

    old: Annotated[str, argument("Artifact, MODEL or folder to compare with, such as the main branch's.")]
    new: Annotated[str, argument("Artifact, MODEL or folder to judge.")]
    junit: Annotated[File, "JUnit XML file to write."] = None
    markdown: Annotated[File, "Markdown file to write."] = None
