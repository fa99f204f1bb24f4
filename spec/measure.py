"""What is measured and compared: `bench`, `bench compare`, `diff`, `report`, and `[bench]` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from .decode import Checked
from .option import COMMA, argument, option
from .words import BASELINE, METRIC, METRIC_PATTERN, Count, TorchMode

_INPUTS = Annotated[
    tuple[str, ...],
    option("An input that no artifact declares.", flag="--input", short="-i", metavar="NAME:SHAPE[:DTYPE]"),
]
_TRUST = Annotated[
    bool,
    option("Run files that have no manifest or differ from it, and a .pt2 file that runs code."),
]


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Checked):
    """How artifacts are measured."""

    threads: Annotated[int, option("Threads of every artifact; 0 for every usable core.", ge=0)] = 0
    max_time_s: Annotated[
        float,
        option(
            "Seconds of rounds, eight rounds at least, and of further launches.",
            flag="--max-time",
            metavar="SECONDS",
            gt=0,
        ),
    ] = 60.0
    precision_target: Annotated[
        float,
        option("Stop when the interval of every speed-up is narrower than this share.", gt=0, lt=1),
    ] = 0.01
    metric: Annotated[str, option(f"Accuracy metric: {METRIC}.", metavar=METRIC, pattern=METRIC_PATTERN)] = (
        "top1"
    )
    batch_sizes: Annotated[
        tuple[Count, ...],
        option("Measure a curve over these batch sizes too.", metavar="N,N,...", split=COMMA),
    ] = ()
    clients: Annotated[
        tuple[Count, ...],
        option(
            "Measure a curve over these numbers of concurrent clients too.", metavar="N,N,...", split=COMMA
        ),
    ] = ()
    torch_modes: Annotated[
        tuple[TorchMode, ...],
        option("Run each PyTorch MODEL in this mode too.", flag="--torch"),
    ] = ()
    devices: Annotated[
        tuple[str, ...],
        option(
            "Device of PyTorch and ONNX Runtime: cpu (default), cuda or cuda:1; both run on each.",
            flag="--device",
            metavar="DEVICE",
        ),
    ] = ()
    python: Annotated[
        tuple[str, ...],
        option("Interpreter for the workers of an engine.", metavar="ENGINE=INTERPRETER"),
    ] = ()
    timeout_s: Annotated[
        float,
        option(
            "Seconds without an answer after which a worker is given up.",
            flag="--timeout",
            metavar="SECONDS",
            gt=0,
        ),
    ] = 600.0


@dataclass(frozen=True, kw_only=True)
class BenchSection(BenchOptions):
    """`[bench]`: how the artifacts are measured. A recipe without it builds only."""

    batch_size: Annotated[int, option("Samples per call.", ge=1)] = 1
    baseline: Annotated[
        str, option("Name of the artifact that the others are compared with; pytorch is the model itself.")
    ] = BASELINE


@dataclass(frozen=True, kw_only=True)
class BenchCommand(BenchOptions):
    """Measure ARTIFACTS against a baseline: each in processes of its own, in interleaved rounds.

    `qcompile bench compare OLD NEW` compares two results.
    """

    artifacts: Annotated[tuple[str, ...], argument("Artifacts to measure.")]
    baseline: Annotated[str, option("Artifact or MODEL that the others are compared with.", metavar="MODEL")]
    output: Annotated[
        Path | None, option("Results to write, such as results.json.", short="-o", metavar="FILE")
    ] = None
    csv: Annotated[Path | None, option("Write the figures as CSV too.", metavar="FILE")] = None
    markdown: Annotated[Path | None, option("Write the table as Markdown too.", metavar="FILE")] = None
    data: Annotated[
        str | None,
        option("Samples whose first batch is timed, in place of random input.", metavar="DATA"),
    ] = None
    evaluation: Annotated[
        str | None, option("Labelled samples for accuracy and output difference.", metavar="DATA")
    ] = None
    inputs: _INPUTS = ()
    batch_size: Annotated[int | None, option("Samples per call, where the model leaves it open.")] = None
    trust: _TRUST = False


@dataclass(frozen=True, kw_only=True)
class CompareCommand(Checked):
    """Compare results of two runs: has an artifact become slower, larger or less accurate?

    Exits with 1 when a limit of --fail-if is broken, with 2 when the two cannot be compared.
    """

    old: Annotated[Path, argument("Results to compare with.")]
    new: Annotated[Path, argument("Results to judge.")]
    limits: Annotated[
        tuple[str, ...],
        option(
            "Limit that makes the exit code 1: slower:5%, larger:10% or accuracy:0.5 (points).",
            flag="--fail-if",
            metavar="LIMIT",
        ),
    ] = ()
    relative: Annotated[
        bool, option("Compare speed-ups against each run's baseline, in place of latencies.")
    ] = False
    across_machines: Annotated[
        bool, option("Show results of different machines side by side, without a verdict.")
    ] = False
    output: Annotated[Path | None, option("Write the comparison as JSON.", short="-o", metavar="FILE")] = None


@dataclass(frozen=True, kw_only=True)
class DiffCommand(Checked):
    """Compare the outputs of ARTIFACT with REFERENCE's by Polygraphy; exit code 1 on a mismatch.

    Defaults: fp32 within 1e-3 relative or 1e-4 of the largest value, fp16 1e-2 and 1e-2, int8 a
    signal-to-noise ratio of 15 dB, and of classes the same argmax in 95% of rows; of embeddings (rows of
    length 1) a mean cosine of 0.98.

    With --layers: tensor by tensor against an ONNX REFERENCE, few at a time; exit code 1 if one diverges.
    """

    reference: Annotated[str, argument("Artifact or MODEL to compare with.")]
    artifact: Annotated[str, argument("Artifact or MODEL to judge.")]
    data: Annotated[
        str | None, option("Samples to compare on, in place of random input.", metavar="DATA")
    ] = None
    samples: Annotated[int | None, option("Most samples to use; by default 64, or 8 with --layers.")] = None
    inputs: _INPUTS = ()
    atol: Annotated[tuple[str, ...], option("Absolute tolerance.", metavar="[OUTPUT:]NUMBER")] = ()
    rtol: Annotated[tuple[str, ...], option("Relative tolerance.", metavar="[OUTPUT:]NUMBER")] = ()
    snr: Annotated[tuple[str, ...], option("Least signal-to-noise ratio.", metavar="[OUTPUT:]DB")] = ()
    rules: Annotated[
        tuple[str, ...],
        option("Kind of an output: classes, embedding or signal.", flag="--judge", metavar="[OUTPUT:]RULE"),
    ] = ()
    threads: Annotated[int, option("Threads of each side; 0 for its own choice.", ge=0)] = 0
    trust: _TRUST = False
    layers: Annotated[bool, option("Find the first tensor that diverges.")] = False
    taps: Annotated[
        int | None, option("With --layers: tensors read in one run; by default what memory allows.")
    ] = None
    threshold: Annotated[
        float | None,
        option("With --layers: ratio below which a tensor diverges; by default by precision.", metavar="DB"),
    ] = None
    output: Annotated[
        Path | None, option("With --layers: layers.json to write.", short="-o", metavar="FILE")
    ] = None
    save_results: Annotated[
        Path | None,
        option("With --layers: values around the first bad tensor, for Polygraphy.", metavar="FILE"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Checked):
    """Write RESULTS of `bench` or `run` as one HTML file that loads nothing: which artifact to use and why,
    tables, charts, environment, and what repeats it."""

    results: Annotated[Path, argument("Results of a run.")]
    output: Annotated[Path, option("HTML file to write.", short="-o", metavar="FILE")] = Path("report.html")
    layers: Annotated[tuple[Path, ...], option("Layer differences of `diff --layers`.", metavar="FILE")] = ()
    ranges: Annotated[
        Path | None, option("Ranges file whose worst histograms are drawn.", metavar="FILE")
    ] = None
    recipe: Annotated[Path | None, option("Recipe to show, where RESULTS holds none.", metavar="FILE")] = None
