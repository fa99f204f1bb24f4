"""Load any artifact with the engine it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..artifact import accept, checked_input, read_manifest, require_exact
from ..errors import ArtifactError, InvalidOption
from ..files import manifest_path, require_file
from ..model.archives import trusting
from ..model.source import parse_source
from ..spec.decode import spec_from_call
from ..spec.looking import LoadSpec
from ..spec.words import CPU_TARGETS
from ..tensors import ModelIO
from .base import DeviceRun, Runner
from .gpu import parse_device
from .registry import engine

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.keywords import LoadKeywords


def load(
    artifact: str | Path,
    spec: LoadSpec | None = None,
    /,
    *,
    io: ModelIO | None = None,
    device: int | str | None = None,
    **options: Unpack[LoadKeywords],
) -> Runner:
    """Return a runner for an artifact or a MODEL.

    An engine is executable code: it is loaded only if its file is the one its manifest describes, and only
    where it was built for, which is found out before TensorRT is asked.

    Args:
        artifact: A file with a manifest, an ONNX file, or a PyTorch MODEL spelling.
        spec: How.
        io: Inputs and outputs of a MODEL that does not declare them.
        device: "cpu", "cuda:1", or the number of a GPU; None: where its engine runs by itself, which is the
            processor for all but TensorRT's.
        options: Fields of `LoadSpec` by name, in place of those of `spec`.

    Raises:
        MissingFile: If there is no such file.
        InvalidOption: If its engine does not run there, or has no streams and CUDA graphs.
        ArtifactError: If the file is not what its manifest says, was built for something else, or holds INT8
            that this processor computes wrongly.
        EngineUnavailable: If its runtime cannot run here.
    """
    spec, text = spec_from_call(LoadSpec, spec, options), str(artifact)
    name = engine_of(text, trust=spec.trust)
    path = Path(text)
    if spec.trust:
        accept(path)
    elif path.is_file():
        checked_input(path)
    chosen, number = engine(name), parse_device(device) if isinstance(device, str) else device
    if device == "cpu" and "cpu" not in chosen.places:
        raise InvalidOption(f"{text}: engine {name} runs on a GPU, not on the processor", option="devices")
    with trusting(spec.trust):
        if number is None and spec.streams == 1 and not spec.cuda_graph and "cpu" in chosen.places:
            require_exact(path, read_manifest(path))
            return chosen.open(text, threads=spec.threads, io=io)
        run = DeviceRun(number or 0, spec.streams, spec.cuda_graph, spec.runtime_cache)
        return chosen.open_on_gpu(text, run, threads=spec.threads, io=io)


def engine_of(artifact: str, *, trust: bool = False) -> str:
    """Return the name of the engine that runs an artifact, by its manifest, else by its ending.

    An engine without a manifest is only with `trust` taken for what its first bytes say.
    """
    path = Path(artifact)
    if path.suffix in (".engine", ".plan"):
        require_file(path, what="engine")
        manifest = read_manifest(path)
        if manifest is not None:
            return manifest.target
        if not trust:
            problem = f"has no manifest ({manifest_path(path).name}), which says what built it"
            hint = "build it with `qcompile build`, or give `trust` if you know where it comes from"
            raise ArtifactError(f"{path}: {problem}; an engine is executable code", hint=hint, file=path)
        from .tensorrt.plan import target_of

        with path.open("rb") as file:
            return target_of(file.read(8))
    source = parse_source(artifact)
    if source.kind == "onnx":
        manifest = read_manifest(path)
        return manifest.target if manifest and manifest.target in CPU_TARGETS else "onnxruntime"
    return "torchscript" if source.kind == "torchscript" else "pytorch"
