"""Load any artifact with the engine it belongs to."""

from __future__ import annotations

from pathlib import Path

from ..artifact import load_artifact, manifest_path, read_manifest, require_file
from ..errors import ArtifactError
from ..model.source import parse_source
from ..shapes import ModelIO
from .base import Runner
from .registry import engine


def load(artifact: str | Path, *, threads: int = 0, io: ModelIO | None = None, trust: bool = False) -> Runner:
    """Return a runner for an artifact or a MODEL.

    Args:
        artifact: A file with a manifest, an ONNX file, or a PyTorch MODEL spelling.
        threads: Threads of a CPU runtime; 0 lets it choose.
        io: Inputs and outputs of a MODEL that does not declare them.
        trust: Load a file whose digest differs from its manifest's all the same.

    Raises:
        MissingFile: If there is no such file.
        ArtifactError: If the file is not what its manifest says.
        EngineUnavailable: If its runtime cannot run here.
    """
    text = str(artifact)
    name = engine_of(text)
    path = Path(text)
    if not trust and path.is_file() and manifest_path(path).is_file():
        load_artifact(path)
    return engine(name).open(text, threads=threads, io=io)


def engine_of(artifact: str) -> str:
    """Return the name of the engine that runs an artifact: by its manifest, else by its ending.

    Raises:
        MissingFile, InvalidOption: If it is nothing that can be run.
        ArtifactError: If it is an engine without a manifest: nothing says what it was built by.
    """
    path = Path(artifact)
    if path.suffix in (".engine", ".plan"):
        require_file(path, what="engine")
        manifest = read_manifest(path)
        if manifest is None:
            raise ArtifactError(
                f"{path}: has no manifest ({manifest_path(path).name}), which says what built it",
                hint="build it with qcompile build",
                file=path,
            )
        return manifest.target
    source = parse_source(artifact)
    if source.kind == "onnx":
        manifest = read_manifest(path)
        return "openvino" if manifest and manifest.target == "openvino" else "onnxruntime"
    return "torchscript" if source.kind == "torchscript" else "pytorch"
