"""What is measured and judged: `bench`, `bench compare`, `diff`, `report`, `gate`, `[bench]` of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from .decode import Checked, Refused
from .option import COMMA, argument, fields_of, option
from .words import (
    AUTO,
    BASELINE,
    METRIC,
    METRIC_PATTERN,
    Count,
    Metric,
    NamedModel,
    Natural,
    NonNegative,
    Positive,
    TorchMode,
)

Inputs = Annotated[
    tuple[str, ...], option("Input that no artifact declares.", "--input -i NAME:SHAPE[:DTYPE]")
]
Trust = Annotated[bool, option("Run files without a matching manifest, and .pt2 files that run code.")]
Evaluation = Annotated[str | None, option("Labelled samples for accuracy and output difference.", "DATA")]
MetricName = Annotated[
    str, option(f"Accuracy metric: {METRIC}.", METRIC, pattern=METRIC_PATTERN, names="metric")
]

MAX_DROP = Annotated[
    NonNegative | None,
    option(
        "Largest drop in accuracy of an artifact that the report recommends, the interval's upper end "
        "included, in points; default: none that the interval shows.",
        "POINTS",
    ),
]


MaxDrop = Annotated[
    float, option("Largest drop in accuracy, in points, or in the metric's own unit.", "POINTS", ge=0)
]
Pythons = Annotated[
    tuple[str, ...],
    option("Python interpreter of an engine's workers.", "ENGINE=INTERPRETER", names="interpreter"),
]
Timeout = Annotated[
    float,
    option(
        "Time without an answer after which a worker counts as failed, in seconds.", "--timeout SECONDS", gt=0
    ),
]
"""Of every verb that measures in worker processes, as those above."""


class Budget(Checked):
    """The most that an artifact may take to be recommended; without a limit, anything."""

    max_drop: MAX_DROP = None
    max_size_mb: Annotated[
        Positive | None,
        option("Largest file, with its side files, of an artifact that the report recommends, in MB.", "MB"),
    ] = None
    max_latency_ms: Annotated[
        Positive | None,
        option("Largest median latency of an artifact that the report recommends, in ms.", "MS"),
    ] = None

    @property
    def limits(self) -> dict[str, float]:
        """Name to value of the limits that there are."""
        values = {limit.name: getattr(self, limit.name) for limit in fields_of(Budget)}
        return {name: value for name, value in values.items() if value is not None}


class BenchOptions(Checked):
    """How artifacts are measured."""

    threads: Annotated[int, option("Threads of every artifact; 0 means all usable cores.", ge=0)] = 0
    max_time_s: Annotated[
        float,
        option(
            "Time limit for rounds and launches, in seconds; at least eight rounds run.",
            "--max-time SECONDS",
            gt=0,
        ),
    ] = 60.0
    precision_target: Annotated[
        float, option("Relative width of the speed-up intervals at which measuring stops.", gt=0, lt=1)
    ] = 0.01
    metric: MetricName = AUTO
    batch_sizes: Annotated[
        tuple[Count, ...], option("Batch sizes of an additional latency curve.", "N,N,...", split=COMMA)
    ] = ()
    clients: Annotated[
        tuple[Count, ...],
        option("Numbers of concurrent clients of an additional latency curve.", "N,N,...", split=COMMA),
    ] = ()
    streams: Annotated[
        tuple[Count, ...],
        option(
            "Numbers of inferences in flight of an additional throughput curve, on GPUs.",
            "N,N,...",
            split=COMMA,
        ),
    ] = ()
    cuda_graph: Annotated[
        bool | None,
        option(
            "CUDA graphs of TensorRT engines: true adds a row with them to the row without, false leaves "
            "them out; by default the one row has them where an inference can be captured."
        ),
    ] = None
    layer_times: Annotated[
        bool, option("Time of each layer, by the runtime's own profiler, after everything else is measured.")
    ] = False
    torch_modes: Annotated[
        tuple[TorchMode, ...],
        option("Additional execution mode of each PyTorch MODEL among the artifacts.", "--torch"),
    ] = ()
    models: Annotated[
        tuple[NamedModel, ...],
        option(
            "Additional PyTorch MODEL that is measured as it is, such as one quantized by torch.ao.",
            "--model NAME=MODEL",
            pairs="=",
            names="model",
        ),
    ] = ()
    devices: Annotated[
        tuple[str, ...],
        option(
            "Device of PyTorch and ONNX Runtime: cpu (default), cuda or cuda:1; all measures every GPU of "
            "the machine for itself.",
            "--device DEVICE",
        ),
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

    batch_size: Annotated[int, option("Samples per call.", ge=1)] = 1
    baseline: Annotated[str, option("Artifact to compare with; pytorch is the model itself.")] = BASELINE


class BenchSpec(BenchOptions):
    """All that `benchmark` is told beside the artifacts."""

    baseline: Annotated[str, option("Artifact or MODEL to compare with.", "MODEL")]
    output: Annotated[Path | None, option("Results file to write, such as results.json.", "-o FILE")] = None
    data: Annotated[
        str | None, option("Samples; the first batch is timed instead of random input.", "DATA")
    ] = None
    evaluation: Evaluation = None
    inputs: Inputs = ()
    batch_size: Annotated[int | None, option("Samples per call of a model with a dynamic batch.")] = None
    trust: Trust = False


class BenchCommand(BenchSpec):
    """Measure ARTIFACTS against a baseline, each in separate processes, in interleaved rounds.

    `qcompile bench compare OLD NEW` compares two results.
    """

    artifacts: Annotated[tuple[str, ...], argument("Artifacts to measure.")]
    csv: Annotated[Path | None, option("CSV file to write.", "FILE")] = None
    markdown: Annotated[Path | None, option("Markdown file to write.", "FILE")] = None


class CompareSpec(Checked):
    """All that `compare_results` is told beside the results."""

    limits: Annotated[
        tuple[str, ...], option("Limit: slower:5%, larger:10% or accuracy:0.5 (points).", "--fail-if LIMIT")
    ] = ()
    relative: Annotated[bool, option("Compare speed-ups over each run's baseline instead of latencies.")] = (
        False
    )
    across_machines: Annotated[bool, option("Show the results of different machines without a verdict.")] = (
        False
    )


class CompareCommand(CompareSpec):
    """Compare the results of two runs: latency, size and accuracy of each artifact.

    The exit code is 1 if a limit of --fail-if is exceeded, and 2 if the runs are not comparable.
    """

    old: Annotated[Path, argument("Results to compare with.")]
    new: Annotated[Path, argument("Results to judge.")]
    output: Annotated[Path | None, option("JSON file to write the comparison to.", "-o FILE")] = None


class _ComparisonOptions(Checked):
    """What outputs and layers are compared on."""

    data: Annotated[str | None, option("Samples to compare on, instead of random input.", "DATA")] = None
    samples: Annotated[
        Count | None, option("Largest number of samples; default: 64 (all for --metric), or 8 with --layers.")
    ] = None
    threads: Annotated[int, option("Threads of each model; 0 means the runtime's default.", ge=0)] = 0
    trust: Trust = False


class DiffSpec(_ComparisonOptions):
    """All that `diff` is told beside the two sides."""

    inputs: Inputs = ()
    atol: Annotated[tuple[str, ...], option("Absolute tolerance.", "[OUTPUT:]NUMBER", pairs=":")] = ()
    rtol: Annotated[tuple[str, ...], option("Relative tolerance.", "[OUTPUT:]NUMBER", pairs=":")] = ()
    snr: Annotated[tuple[str, ...], option("Smallest signal-to-noise ratio.", "[OUTPUT:]DB", pairs=":")] = ()
    rules: Annotated[
        tuple[str, ...],
        option(
            "Kind of an output: classes, embedding, labels or signal.", "--judge [OUTPUT:]RULE", pairs=":"
        ),
    ] = ()
    metric: Annotated[
        Metric | None,
        option(f"Accuracy to compare on labelled --data, beside the outputs: {METRIC}.", METRIC),
    ] = None
    max_drop: Annotated[
        NonNegative | None,
        option(
            "Largest drop in accuracy that passes, in points, or in the metric's own unit; default: any.",
            "POINTS",
        ),
    ] = None


class LayerDiffSpec(_ComparisonOptions):
    """All that `layer_diff` is told beside the two sides."""

    taps: Annotated[
        Count | None,
        option("With --layers: number of tensors to read in one run; default: as many as memory allows."),
    ] = None
    max_builds: Annotated[
        Natural | None,
        option(
            "With --layers and an engine: most builds of parts of it; 0 compares its outputs alone; "
            "default: 3 + log2 of the number of tensors.",
            "N",
        ),
    ] = None
    threshold: Annotated[
        float | None,
        option(
            "With --layers: signal-to-noise ratio below which a tensor diverges; default: by precision.", "DB"
        ),
    ] = None
    save_results: Annotated[
        Path | None,
        option(
            "With --layers: file for the values around the first bad tensor, in Polygraphy's format.", "FILE"
        ),
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
    layers: Annotated[bool, option("Find the first tensor that diverges.")] = False
    graph: Annotated[
        Path | None,
        option("With --layers and an engine: ONNX file that it was built from; default: REFERENCE.", "FILE"),
    ] = None
    output: Annotated[
        Path | None, option("With --layers: JSON file to write, such as layers.json.", "-o FILE")
    ] = None


OutputsRule = Literal["auto", "same", "any"]


class GateOptions(Checked):
    """What a new version must keep, and how it is measured."""

    max_slower: Annotated[float, option("Slowdown that passes, in percent.", "PERCENT", gt=0)] = 2.0
    max_larger: Annotated[
        float, option("Growth of the file with its side files that passes, in percent.", "PERCENT", ge=0)
    ] = 1.0
    max_drop: Annotated[
        NonNegative | None,
        option(
            "Largest drop in accuracy that passes, in points, or in the metric's own unit; default: one "
            "whose interval contains 0.",
            "POINTS",
        ),
    ] = None
    outputs: Annotated[
        OutputsRule,
        option(
            "Whether the outputs must be the same within the default tolerances of `diff`; auto: yes, unless "
            "accuracy decides or the precisions differ."
        ),
    ] = "auto"
    strict: Annotated[
        bool, option("Fail also where nothing could be decided, or an artifact cannot run here.")
    ] = False
    skip_identical: Annotated[
        bool, option("Pass files that are the same byte for byte without measuring them.")
    ] = False
    data: Annotated[
        str | None, option("Samples to time and compare outputs on, instead of random input.", "DATA")
    ] = None
    evaluation: Evaluation = None
    metric: MetricName = AUTO
    inputs: Inputs = ()
    batch_size: Annotated[int | None, option("Samples per call of a model with a dynamic batch.")] = None
    threads: Annotated[
        int,
        option(
            "Threads of every artifact; 0 means all usable cores. Take 1 where others use the cores.", ge=0
        ),
    ] = 0
    max_time_s: Annotated[
        float,
        option(
            "Time limit for the rounds and launches of a pair, in seconds; a clear case ends earlier.",
            "--max-time SECONDS",
            gt=0,
        ),
    ] = 30.0
    device: Annotated[
        str | None, option("Device of PyTorch and ONNX Runtime: cpu (default), cuda or cuda:1.", "DEVICE")
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
    junit: Annotated[Path | None, option("JUnit XML file to write.", "FILE")] = None
    markdown: Annotated[Path | None, option("Markdown file to write.", "FILE")] = None
