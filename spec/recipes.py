"""Options of the recipe and the verbs around it: `run`, `sweep`, `tune`, `init`, `auto`, `worker`.

Every verb that can use a cluster has `SchedulerOptions`.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from .artifacts import PLAIN_NAME, ArtifactSection, Exclude, Inputs
from .decode import Checked, Refused
from .measure import BenchSection, MaxDrop, MetricName
from .models import DOWNLOAD, TRUST, WEIGHTS, CalibrateSection, ModelSection
from .option import COMMA, argument, option
from .sweep import SweepSection
from .words import (
    AUTO,
    BASELINE,
    CPU_TARGETS,
    METHOD,
    METRIC,
    METRIC_PATTERN,
    ORIGINAL,
    TARGETS,
    File,
    Gpus,
    InputShapes,
    MaxTime,
    MethodChoice,
    Natural,
    Points,
    Positive,
    Samples,
    Target,
    TargetNames,
    Texts,
)

LOCAL = "local"
"""Address of worker processes on this machine, in place of a scheduler's."""


class ConnectionOptions(Checked):
    """Connection to a Dask scheduler."""

    tls_ca: Annotated[File, "Certificate of the cluster's authority."] = None
    tls_cert: Annotated[File, "Certificate of this machine."] = None
    tls_key: Annotated[File, "Private key of that certificate."] = None
    insecure: Annotated[
        Texts,
        "Remote host to connect to without TLS; give it twice to confirm.",
        option("HOST"),
    ] = ()


class SchedulerOptions(ConnectionOptions):
    """Where the stages of a recipe run."""

    scheduler: Annotated[
        str,
        "Dask scheduler whose workers run the stages: tls://HOST:PORT, its file, or local for "
        "processes on this machine.",
        option("ADDRESS"),
    ] = ""
    store: Annotated[
        str,
        "Folder or URL (fsspec) that this machine and all workers reach; it transfers the files instead "
        "of Dask.",
        option("URL"),
    ] = ""


class WorkerCommand(ConnectionOptions):
    """Start a worker of SCHEDULER that runs stages and announces this machine's resources."""

    scheduler: Annotated[str, argument("Address of a Dask scheduler, or its file.")]
    store: Annotated[Path, "Folder that keeps files and finished stages.", option("FOLDER")] = Path(
        "qcompile-worker"
    )
    name: Annotated[str, "Name that tables and messages show; default: the host's."] = ""
    slots: Annotated[int, "Concurrent stages, which share the cores.", option(ge=1)] = 1
    cores: Annotated[Natural, "Cores that the stages may use; 0 means all."] = 0
    resources: Annotated[
        Texts,
        "Resource to announce besides the detected ones, such as rack-7=1.",
        option("--resource NAME=NUMBER", split=COMMA),
    ] = ()


RECIPE_VERSION = 1


class DataSection(Checked):
    """`[data]`: samples for calibration and for accuracy."""

    calibration: Annotated[str, "Samples to calibrate on.", option(names="data")] = ""
    evaluation: Annotated[
        str, "Labelled samples for accuracy and output difference.", option(names="data")
    ] = ""
    depends: Annotated[Texts, "Files elsewhere that the data function reads.", option(names="file")] = ()


class RecipeFile(Checked):
    """A model, its artifacts, and how to measure them. Paths are relative to the file."""

    version: Annotated[Literal[1], "Version of the format."]
    name: Annotated[str, "Name of the ONNX files.", option("a plain file name", pattern=PLAIN_NAME)]
    model: Annotated[ModelSection, "The source and how it is exported."] = field(default_factory=ModelSection)
    artifact: Annotated[
        tuple[ArtifactSection, ...],
        "Artifacts to build, one table each; with `[sweep]`, beside those of its matrix.",
        option("[[artifact]]"),
    ] = ()
    data: Annotated[DataSection, "Samples for calibration and for accuracy."] = field(
        default_factory=DataSection
    )
    calibrate: Annotated[CalibrateSection, "How activations are observed."] = field(
        default_factory=CalibrateSection
    )
    bench: Annotated[
        BenchSection | None, "How the artifacts are measured; without it, nothing is measured."
    ] = None
    sweep: Annotated[SweepSection | None, "A matrix of artifacts, for `qcompile sweep`."] = None
    output: Annotated[str, "Folder of the artifacts.", option(names="output")] = "out"

    def check(self) -> None:
        """Refuse sections that contradict each other."""
        self._check_presence()
        self._check_artifacts()
        if self.calibrate.ranges and self.model.simplify:
            problem = "must be false: `calibrate.ranges` apply only to the file they were made with"
            raise Refused("model.simplify", problem, value=True)
        names = {artifact.name for artifact in self.artifact}
        if self.sweep is not None:
            names |= {artifact.name for artifact in self.sweep.combinations()}
        if self.bench and self.bench.baseline not in (BASELINE, ORIGINAL, *names):
            problem = f"one of {', '.join((BASELINE, *sorted(names)))} is required"
            raise Refused("bench.baseline", problem, value=self.bench.baseline)

    def _check_presence(self) -> None:
        """Require a model and an artifact, here or in the matrix."""
        matrix = self.sweep or SweepSection()
        models = matrix.every_model()
        if models and self.model.source:
            problem = "is given, and models of `sweep` too; one of them is required"
            raise Refused("model.source", problem, hint="write it as NAME=MODEL in sweep.models")
        if not (models or self.model.source):
            raise Refused("model.source", "is missing")
        if not (matrix.targets or self.artifact):
            raise Refused("artifact", "is missing; at least one [[artifact]] is required")

    def _check_artifacts(self) -> None:
        """Require unique names and calibration data; in a sweep, each cell reports missing data."""
        used_names = {BASELINE, ORIGINAL}
        if self.sweep is None:
            used_names.add(self.name)
        else:
            used_names |= {artifact.name for artifact in self.sweep.every_model()}
            used_names |= {artifact.name for artifact in self.sweep.combinations()}
        for index, artifact in enumerate(self.artifact):
            self._check_fallback(index, artifact)
            if artifact.name in used_names:
                raise Refused(f"artifact[{index}].name", "a unique name is required", value=artifact.name)
            used_names.add(artifact.name)
            if self.sweep is not None:
                continue
            if artifact.needs_ranges and not (self.has_ranges or self.may_be_quantized):
                raise Refused("data.calibration", f"is missing; {artifact.name!r} is static INT8")
            if artifact.calibrates_itself and not self.data.calibration:
                raise Refused("data.calibration", f"is missing; TensorRT calibrates {artifact.name!r} on it")

    def _check_fallback(self, index: int, artifact: ArtifactSection) -> None:
        names, chain = [other.name for other in self.artifact], [artifact.name]
        while next_name := self.fallbacks.get(chain[-1]):
            if next_name not in names or next_name in chain:
                problem = (
                    "fallbacks form a cycle" if next_name in chain else "another artifact's name is required"
                )
                raise Refused(f"artifact[{index}].fallback", problem, value=artifact.fallback)
            chain.append(next_name)

    @property
    def fallbacks(self) -> dict[str, str]:
        """Name of each artifact with a fallback, to the name of the fallback."""
        return {artifact.name: artifact.fallback for artifact in self.artifact if artifact.fallback}

    @property
    def has_ranges(self) -> bool:
        """Whether the recipe has ranges, or samples to observe them on."""
        return bool(self.data.calibration or self.calibrate.ranges)

    @property
    def may_be_quantized(self) -> bool:
        """Whether the model is a file that may contain Q/DQ already."""
        return self.model.source.endswith(".onnx")


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, for editors: msgspec's, with unknown keys forbidden."""
    schema = msgspec.json.schema(RecipeFile)
    for table in schema["$defs"].values():
        table["additionalProperties"] = False
    recipe = schema["$defs"][RecipeFile.__name__]
    recipe["anyOf"] = [{"required": ["model", "artifact"]}, {"required": ["sweep"]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "qcompile recipe", **schema}


class RunSpec(Checked):
    output: Annotated[
        Path | None, "Folder of the artifacts, instead of the recipe's.", option("-o FOLDER")
    ] = None
    again: Annotated[
        Texts, "Stage to run again although nothing changed, such as bench.", option("STAGE", split=COMMA)
    ] = ()
    trust: Annotated[
        bool, "Run code that the recipe names outside its folder, write there, and load files with code."
    ] = False


class RunOptions(RunSpec, SchedulerOptions):
    """How the stages of recipes are carried out, and where."""

    dry_run: Annotated[
        bool, "Print the stages with their state, and their estimated time, memory and disk space."
    ] = False


class RunCommand(RunOptions):
    """Run the stages of a RECIPE. Finished stages are skipped, even after a kill."""

    recipe: Annotated[Path | None, argument("TOML file.")] = None
    schema: Annotated[bool, "Print the JSON Schema of recipes, for editors."] = False


class SweepSpec(RunSpec):
    only: Annotated[
        Texts,
        "Cells to build and measure: glob over their names, such as *-int8; default: all.",
        option("GLOB", split=COMMA),
    ] = ()


class SweepCommand(SweepSpec, RunOptions):
    """Run the recipes of the matrix in `[sweep]` of a RECIPE: model x shape x target x precision x GPU. A
    failed cell reports the reason; a second run does only the missing work.

    OUTPUT/results.json and OUTPUT/report.html hold all cells. The exit code is 1 if a cell failed.
    """

    recipe: Annotated[Path, argument("TOML file.")]


class TuneSpec(Checked):
    max_drop: MaxDrop
    calibration: Annotated[Samples, "Samples to calibrate on; default: those of --data."] = None
    metric: MetricName = AUTO
    targets: Annotated[
        TargetNames, f"Runtime to try: {' or '.join(CPU_TARGETS)}; default: those installed."
    ] = ()
    inputs: Inputs = ()
    method: Annotated[MethodChoice, f"Method that chooses the thresholds: {METHOD}."] = ""
    exclude: Exclude = ()
    samples: Annotated[int | None, "Largest number of samples to measure accuracy on."] = None
    batch_size: Annotated[int | None, "Samples per call of the latency measurement."] = None
    threads: Annotated[Natural, "Threads of every artifact; 0 means all cores."] = 0
    max_time_s: Annotated[MaxTime, "Time limit of each measurement, in seconds."] = 60.0


class TuneCommand(SchedulerOptions, TuneSpec):
    """Rank the layers of MODEL by INT8 error, and find the fastest mix of INT8 and float in a budget."""

    model: Annotated[str, argument("ONNX file or PyTorch MODEL.")]
    output: Annotated[Path, "Folder to write.", option("-o FOLDER")]
    data: Annotated[str, "Samples to measure accuracy on.", option("DATA")]


class ProposalOptions(Checked):
    """Inputs of the proposal of a recipe."""

    data: Annotated[
        str,
        "Samples for calibration and for accuracy; one set is divided between the two if possible.",
        option("DATA"),
    ] = ""
    calibration: Annotated[str, "Samples to calibrate on; default: those of --data.", option("DATA")] = ""
    evaluation: Annotated[str, "Labelled samples for accuracy; default: those of --data.", option("DATA")] = (
        ""
    )
    inputs: Annotated[InputShapes, "Input of a MODEL that declares none."] = ()
    weights: WEIGHTS = ""
    download: DOWNLOAD = False
    targets: Annotated[
        TargetNames, f"Runtime to build for: {', '.join(TARGETS)}; default: those installed."
    ] = ()
    gpus: Annotated[
        Gpus, "Compute capability to build TensorRT-RTX engines for; default: sm86 and sm89, or the GPU here."
    ] = ()
    metric: Annotated[
        str,
        f"Accuracy metric: {METRIC}; auto chooses by the task and the labels.",
        option(METRIC, pattern=METRIC_PATTERN),
    ] = "auto"
    max_time_s: Annotated[
        Positive | None,
        "Time limit of the measurement, in seconds; default: by the number of artifacts.",
        option("--max-time SECONDS"),
    ] = None
    trust: TRUST = False

    def check(self) -> None:
        """Refuse unknown targets."""
        for target in self.targets:
            if target not in TARGETS:
                raise Refused("targets", f"one of {', '.join(TARGETS)} is required", value=target)

    @property
    def requested_targets(self) -> tuple[Target, ...]:
        """The requested targets, in the order of `TARGETS`."""
        return tuple(name for name in TARGETS if name in self.targets)


class InitSpec(ProposalOptions):
    output: Annotated[Path, "Recipe to write.", option("-o FILE")] = Path("recipe.toml")
    max_drop: Annotated[Points, "Largest drop in accuracy of a recommended artifact, in points."] = None
    force: Annotated[bool, "Overwrite an existing recipe."] = False


_MODEL = Annotated[str, argument("Model: timm:NAME, hf:NAME_OR_FOLDER, file.py:function, .onnx, ...")]


class InitCommand(InitSpec):
    """Write a commented recipe for MODEL, which `qcompile run` runs as it is.

    The choices follow from the model, the data and the installed runtimes; each has a comment with its
    reason. Without data, the recipe builds and measures only artifacts that need none.
    """

    model: _MODEL


class AutoSpec(ProposalOptions):
    max_drop: MaxDrop
    output: Annotated[Path | None, "Folder to write; default: auto-NAME.", option("-o FOLDER")] = None
    force: Annotated[bool, "Overwrite the recipe in the folder."] = False


class AutoCommand(SchedulerOptions, AutoSpec):
    """Find the artifact of MODEL to use, within an accuracy budget: init, run, tune, report.

    The last line names the artifact and its cost. The exit code is 1 if no artifact within the budget is
    faster. An artifact is within the budget if the upper end of its drop's interval is. A second call skips
    finished stages.
    """

    model: _MODEL
