"""What is measured and judged: `bench`, `diff`, `report`, `gate`, `[bench]` of a recipe."""

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
"""Of every verb that measures in worker processes, as those above."""


class Budget(Checked):
    """The most that an artifact may take to be recommended; without a limit, anything."""

    max_drop: Annotated[
        Points,
        "Largest drop in accuracy of an artifact that the report recommends, the interval's upper end "
        "included, in points; default: none that the interval shows.",
    ] = None
    max_size_mb: Annotated[
        Positive | None,
        "Largest file, with its side files, of an artifact that the report recommends, in MB.",
        option("MB"),
    ] = None
    max_latency_ms: Annotated[
        Positive | None,
        "Largest median latency of an artifact that the report recommends, in ms.",
        option("MS"),
    ] = None

    @property
    def limits(self) -> dict[str, float]:
        """Name to value of the limits that there are."""
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
        "Artifacts that were judged on the evaluation samples before, such as by `tune`; the intervals of "
        "drops are corrected for them.",
    ] = 0
    batch_sizes: Annotated[Counts, "Batch sizes of an additional latency curve."] = ()
    clients: Annotated[Counts, "Numbers of concurrent clients of an additional latency curve."] = ()
    streams: Annotated[
        Counts, "Numbers of inferences in flight of an additional throughput curve, on GPUs."
    ] = ()
    cuda_graph: Annotated[
        bool | None,
        "CUDA graphs of TensorRT engines: true adds a row with them to the row without, false leaves "
        "them out; by default the one row has them where an inference can be captured.",
    ] = None
    layer_times: Annotated[
        bool, "Time of each layer, by the runtime's own profiler, after everything else is measured."
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
        "the machine for itself.",
        option("--device DEVICE"),
    ] = ()
    python: Pythons = ()
    timeout_s: Timeout = 600.0

    def check(self) -> None:
        """Refuse a curve that has a point twice."""
        for name in ("batch_sizes", "clients", "streams"):
            counts = getattr(self, name)
            if len(set(counts)) != len(counts):
                raise Refused(name, "different numbers are required", value=list(counts))


class BenchSection(BenchOptions, Budget):
    """`[bench]`: how the artifacts are measured. A recipe without it builds only.

    With a limit on size, latency or drop, the exit code of `run` is 1 if no measured artifact keeps them all.
    """

    batch_size: Annotated[int, "Samples per call.", option(ge=1)] = 1
    baseline: Annotated[str, "Artifact to compare with; pytorch is the model itself."] = BASELINE


class BenchSpec(BenchOptions):
    baseline: Annotated[str, "Artifact or MODEL to compare with.", option("MODEL")]
    output: Annotated[Path | None, "Results file to write, such as results.json.", option("-o FILE")] = None
    data: Annotated[Samples, "Samples; the first batch is timed instead of random input."] = None
    evaluation: Evaluation = None
    inputs: Inputs = ()
    batch_size: Annotated[int | None, "Samples per call of a model with a dynamic batch."] = None
    trust: Trust = False


class BenchCommand(BenchSpec):
    """Measure ARTIFACTS against a baseline, each in separate processes, in interleaved rounds."""

    artifacts: Annotated[Texts, argument("Artifacts to measure.")]
    per_batch: Annotated[bool, "Print the latency of single calls, each of one batch."] = False
    csv: Annotated[File, "CSV file to write."] = None
    markdown: Annotated[File, "Markdown file to write."] = None


class _ComparisonOptions(Checked):
    """What outputs and layers are compared on."""

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
        "With --layers and an engine: most builds of parts of it; 0 compares its outputs alone; "
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

    Defaults: fp32 within 1e-3 relative or 1e-4 of the largest value, fp16 1e-2 and 1e-2, int8 a
    signal-to-noise ratio of 15 dB, and of classes the same argmax in 95% of rows; of embeddings (rows of
    length 1) a mean cosine of 0.98.

    With --layers: tensor by tensor against an ONNX REFERENCE, few at a time; exit code 1 if one diverges.
    Inside an engine: by building parts of its graph and running them.
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
    """What a new version must keep, and how it is measured."""

    max_slower: Annotated[float, "Slowdown that passes, in percent.", option("PERCENT", gt=0)] = 2.0
    max_larger: Annotated[
        float, "Growth of the file with its side files that passes, in percent.", option("PERCENT", ge=0)
    ] = 1.0
    max_drop: Annotated[
        Points,
        "Largest drop in accuracy that passes, in points, or in the metric's own unit; default: one "
        "whose interval contains 0.",
    ] = None
    outputs: Annotated[
        OutputsRule,
        "Whether the outputs must be the same within the default tolerances of `diff`; auto: yes, unless "
        "accuracy decides or the precisions differ.",
    ] = "auto"
    strict: Annotated[bool, "Fail also where nothing could be decided, or an artifact cannot run here."] = (
        False
    )
    skip_identical: Annotated[bool, "Pass files that are the same byte for byte without measuring them."] = (
        False
    )
    data: Annotated[Samples, "Samples to time and compare outputs on, instead of random input."] = None
    evaluation: Evaluation = None
    metric: MetricName = AUTO
    inputs: Inputs = ()
    batch_size: Annotated[int | None, "Samples per call of a model with a dynamic batch."] = None
    threads: Annotated[
        Natural, "Threads of every artifact; 0 means all usable cores. Take 1 where others use the cores."
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
        """Refuse a limit on accuracy that nothing measures."""
        if self.max_drop is not None and self.evaluation is None:
            raise Refused("max_drop", "accuracy needs labelled samples", hint="give `evaluation`")


class GateCommand(GateOptions):
    """Measure OLD and NEW, interleaved in one job; exit code 1 if NEW is slower, larger or less accurate.

    Both are an artifact or MODEL, or two folders of recipes: then every artifact that both hold is judged.
    Measuring goes on until the interval of the slowdown decides or the time is over. What stays undecided
    is reported and passes, unless --strict is given.
    """

    old: Annotated[str, argument("Artifact, MODEL or folder to compare with, such as the main branch's.")]
    new: Annotated[str, argument("Artifact, MODEL or folder to judge.")]
    junit: Annotated[File, "JUnit XML file to write."] = None
    markdown: Annotated[File, "Markdown file to write."] = None
