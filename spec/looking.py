"""Options of verbs that inspect, report, load or deploy: `inspect`, `report`, `doctor`, `load`, `package`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from .decode import Checked, Refused, read_shapes
from .measure import Budget, Trust
from .option import COMMA, argument, option
from .words import Count, File, Natural, TensorCorePrecision, Texts

_POLICY = r"^(|latest(:[1-9]\d*)?|all|specific:\d+(,\d+)*)$"


class InspectSpec(Checked):
    nodes: Annotated[bool, "List every node of an ONNX file and its padding for Tensor Cores."] = False
    precision: Annotated[TensorCorePrecision, "Precision for the column Tensor Cores of --nodes."] = "fp16"


class InspectCommand(InspectSpec):
    """Describe FILE: ONNX, engine, TorchScript, ranges or results."""

    file: Annotated[Path, argument("File to describe.")]


class ReportSpec(Budget):
    layers: Annotated[
        tuple[Path, ...],
        "Layer comparison of `diff --layers`; default: layers*.json beside RESULTS.",
        option("FILE"),
    ] = ()
    ranges: Annotated[File, "Ranges file; the report draws the histograms with the largest errors."] = None
    recipe: Annotated[File, "Recipe to show if RESULTS has none."] = None


class ReportCommand(ReportSpec):
    """Write RESULTS of `bench` or `run` as one HTML file that loads nothing: which artifact to use and why,
    tables, charts, environment, and the command and recipe to repeat it."""

    results: Annotated[Path, argument("Results file of `bench` or `run`.")]
    output: Annotated[Path, "HTML file to write.", option("-o FILE")] = Path("report.html")


class DoctorCommand(Checked):
    """List what is installed and which targets work here. Give the reason and the fix for the others.

    It lists the precisions that the processor and each GPU multiply. The exit code is 1 if the installation
    has a known defect.
    """

    gpus: Annotated[
        Texts,
        "Compute capability to report on, in place of this machine's GPUs.",
        option("--gpu sm86,sm89", split=COMMA),
    ] = ()
    python: Annotated[
        Texts, "Python interpreter with TensorFlow to check.", option("tensorflow=INTERPRETER")
    ] = ()


class LoadSpec(Checked):
    threads: Annotated[Natural, "Threads of a CPU runtime; 0 means the runtime's default."] = 0
    trust: Trust = False
    streams: Annotated[
        Count, "Number of concurrent inferences of an engine, each on a separate CUDA stream."
    ] = 1
    cuda_graph: Annotated[bool, "Replay an engine's inference from a CUDA graph."] = False
    runtime_cache: Annotated[
        bool, "Keep the kernels that TensorRT-RTX compiles in a file beside the engine."
    ] = True


class TritonOptions(Checked):
    """Configuration of the model in Triton. Defaults leave the choice to the artifact or to Triton."""

    max_batch_size: Annotated[
        Natural | None,
        "Largest batch; 0 turns batching off; default: the largest batch of the profiles, or 4.",
        option("N"),
    ] = None
    instances: Annotated[int, "Number of instances on each GPU, or on the CPU.", option("N", ge=1)] = 1
    gpus: Annotated[tuple[Natural, ...], "GPUs to run on; default: all.", option("N,N", split=COMMA)] = ()
    kind: Annotated[Literal["", "gpu", "cpu"], "Device to run on; default: the artifact's."] = ""
    preferred_batch: Annotated[
        tuple[Count, ...], "Preferred batch sizes of dynamic batching.", option("N,N", split=COMMA)
    ] = ()
    max_queue_delay_us: Annotated[
        int, "Longest time a request waits for a larger batch, in microseconds.", option("N", ge=0)
    ] = 0
    dynamic_batching: Annotated[
        bool, "Turn dynamic batching off.", option("--no-dynamic-batching", off=True)
    ] = True
    warm_up: Annotated[
        bool | None, "Warm the model up with a request of zeros; default: where the shapes are known."
    ] = None
    warm_up_shapes: Annotated[
        Texts,
        "Shape of an input in the warm-up request, if the artifact leaves it open.",
        option("NAME:SHAPE", pairs=":"),
    ] = ()
    version_policy: Annotated[
        str,
        "Versions to serve: latest, latest:2, all or specific:1,3; default: Triton's, which is latest.",
        option("latest[:N], all or specific:N,N", pattern=_POLICY),
    ] = ""
    response_cache: Annotated[bool, "Cache responses, if the server has a response cache."] = False
    cuda_graph: Annotated[bool, "Execute an engine with CUDA graphs."] = False

    def check(self) -> None:
        """Read the shapes, and refuse options that contradict each other."""
        _ = self.shapes
        if len(set(self.gpus)) < len(self.gpus):
            raise Refused("gpus", "a GPU is given twice")
        if self.kind == "cpu" and self.gpus:
            raise Refused("gpus", "belongs to `kind` gpu; `kind` cpu is given")
        if not self.dynamic_batching and (self.preferred_batch or self.max_queue_delay_us):
            name = "preferred_batch" if self.preferred_batch else "max_queue_delay_us"
            raise Refused(name, "`dynamic_batching` is off, which excludes it")
        if self.warm_up is False and self.warm_up_shapes:
            raise Refused("warm_up_shapes", "`warm_up` is off, which excludes them")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Input to shape, read from `warm_up_shapes`."""
        return read_shapes(self, "warm_up_shapes")

    @property
    def specific_versions(self) -> tuple[int, ...]:
        """The versions of "specific:1,3"; empty for other policies."""
        kind, _, numbers = self.version_policy.partition(":")
        return tuple(sorted(map(int, numbers.split(",")))) if kind == "specific" else ()


class TritonSpec(TritonOptions):
    name: Annotated[str, "Name of the model in requests.", option("NAME")]
    version: Annotated[int, "Number of the version to add.", option("N", ge=1)] = 1
    overwrite: Annotated[bool, "Replace an existing version and a config.pbtxt that was edited."] = False
    trust: Annotated[bool, "Load a TorchScript file, which may run code."] = False


class TritonCommand(TritonSpec):
    """Put ARTIFACT (an engine, ONNX or TorchScript file) into a Triton model repository: as version N of
    model NAME, with config.pbtxt and its manifest."""

    artifact: Annotated[Path, argument("Artifact to serve.")]
    output: Annotated[Path, "Model repository.", option("-o FOLDER")]


class EpContextSpec(Checked):
    embed: Annotated[bool, "Put the engine into the ONNX file."] = False
    provider: Annotated[
        Literal["", "tensorrt-rtx", "tensorrt"],
        "Provider that will load it; default: the one for the engine.",
    ] = ""


class EpContextCommand(EpContextSpec):
    """Write ARTIFACT (an engine of TensorRT-RTX or TensorRT) as an ONNX file with one EPContext node, for
    ONNX Runtime's provider and Windows ML. No GPU is needed, and nothing runs."""

    artifact: Annotated[Path, argument("Engine to package.")]
    output: Annotated[Path, "ONNX file to write; beside it, FILE.data holds the engine.", option("-o FILE")]
