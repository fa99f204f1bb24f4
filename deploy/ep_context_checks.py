"""What can be verified of an EPContext file without the provider and without a GPU."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from ..artifact import Check, Manifest
from ..errors import ModelError, first_line
from ..model.onnx_file import check_onnx, load_onnx, model_io
from ..tensors import ModelIO
from .ep_context_graph import COMPATIBILITY, OPERATOR
from .ep_context_providers import Provider

_WANTS_PROVIDER = "NotImplemented"
"""ONNX Runtime's exception where a graph is valid and nothing here can execute a node of it; a graph that
contradicts the schema is `InvalidGraph`, an operator that it does not know `Fail` (both seen in 1.31.1)."""


def check_written(
    path: Path, provider: Provider, engine: Manifest, io: ModelIO
) -> tuple[list[Check], list[str]]:
    """Read a file back and verify it; return what held, and what could not be verified.

    Args:
        path: The file, with the engine inside or beside it.
        provider: Who is to load it.
        engine: Manifest of the engine.
        io: What its inputs and outputs must be.

    Raises:
        ModelError: If something does not hold.
    """
    model = load_onnx(path, external_data=False)
    attributes = {item.name: item for item in model.graph.node[0].attribute}
    context, embedded = attributes["ep_cache_context"].s, bool(attributes["embed_mode"].i)
    digest, header = _engine_bytes(path, context, provider, embedded=embedded)
    same = digest == engine.digest
    _require(path, same, f"its engine has digest {digest[:19]}…, not {engine.digest[:19]}…")
    checks = [
        Check("the engine is what its manifest says", True, digest),
        Check("inputs and outputs are the engine's", True, "; ".join(map(str, (*io.inputs, *io.outputs)))),
    ]
    _require(path, model_io(model) == io, "its inputs and outputs are not the engine's")
    check_onnx(path)
    checks.append(Check("ONNX's checker accepts the graph", True, f"one {OPERATOR} for {provider.name}"))
    if provider.header_bytes:
        said = {item.key: item.value for item in model.metadata_props}[COMPATIBILITY + provider.name]
        _require(path, said == header.hex(), "its compatibility information is not the engine's header")
        checks.append(Check("its metadata holds the engine's header", True, f"{provider.header_bytes} bytes"))
    del model, context, attributes
    read = _onnx_runtime_reads_it(path, provider)
    return (checks, [read]) if isinstance(read, str) else ([*checks, read], [])


def is_inside(name: str) -> bool:
    """Whether a file's name stays in the model's folder on Linux and Windows, as the providers require."""
    if not name or "\\" in name:
        return False
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    return not posix.is_absolute() and not windows.drive and ".." not in posix.parts


def _engine_bytes(path: Path, context: bytes, provider: Provider, *, embedded: bool) -> tuple[str, bytes]:
    """Digest of the engine, and its first bytes."""
    if embedded:
        return f"sha256:{hashlib.sha256(context).hexdigest()}", context[: provider.header_bytes]
    from ..files import digest_files

    name = context.decode()
    _require(path, is_inside(name), f"its engine {name!r} does not lie beside it")
    beside = path.parent / name
    with beside.open("rb") as file:
        return digest_files([beside]), file.read(provider.header_bytes)


def _onnx_runtime_reads_it(path: Path, provider: Provider) -> Check | str:
    """ONNX Runtime's own schema, and its own word on what is missing; why it could not be asked."""
    try:
        import onnxruntime
    except ImportError as error:
        return f"not checked with ONNX Runtime's schema: it cannot be imported ({error})"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        # The processor alone is offered: an engine is executable code, and is not loaded here.
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as refusal:  # its exceptions share no narrower base
        said = first_line(refusal)
        valid = type(refusal).__name__ == _WANTS_PROVIDER and OPERATOR in said
        _require(path, valid, f"ONNX Runtime {onnxruntime.__version__} refuses it: {said}")
        detail = f"{onnxruntime.__version__}; what it lacks here is {provider.name}"
        return Check("ONNX Runtime's schema accepts the node", True, detail)
    raise ModelError(f"{path}: ONNX Runtime runs it without {provider.name}", file=path)


def _require(path: Path, holds: bool, otherwise: str) -> None:
    if not holds:
        raise ModelError(f"{path}: {otherwise}", file=path)
