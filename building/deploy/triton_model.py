"""Read an artifact as a Triton model: its backend, inputs, outputs, files and profiles.

The capabilities of the backends follow Triton's documents ("Model Repository", "Model Configuration") and the
sources of its backends, 26.09.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from ...core.artifact import (
    PACKAGE_ELSEWHERE,
    Check,
    Manifest,
    load_artifact,
    read_manifest,
    require_exact,
)
from ...core.files import manifest_path, require_file
from ...engines.registry import engine
from ...engines.tensorrt.plan import require_weights
from ...engines.words import TritonBackend
from ...errors import ArtifactError, EngineUnavailable, InvalidOption, ModelError
from ...model.graph.graph import model_io
from ...model.graph.onnx_file import read_graph
from ...model.sessions.session import make_session, session_options
from ...model.sources.load import load_torch
from ...model.sources.pytorch import import_torch
from ...model.sources.source import parse_source
from ...spec.tensors import ModelIO, TensorInfo
from ...spec.words import CPU_TARGETS

_FIRST_INT64_MAJOR = 10
"""TensorRT 8's parser casts int64 inputs to int32 (onnx-tensorrt, docs/operators.md)."""
BUILD_AGAIN = "build the engine again"


def artifact_error(path: Path, problem: str, hint: str) -> ArtifactError:
    return ArtifactError(f"{path}: {problem}", hint=hint, file=path)


@dataclass(frozen=True)
class Range:
    """Shapes that one input may have in one optimization profile."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


@dataclass(frozen=True)
class TritonModel:
    """An artifact with the properties that its Triton configuration depends on.

    Attributes:
        io: Inputs and outputs under the names that requests use.
        kind: "gpu" or "cpu" if the artifact is bound to it; else empty.
        files: Path below the version's folder to the source file.
        manifest: The artifact's; None for an ONNX file from elsewhere.
        profiles: Optimization profiles: input to its range.
        shape_tensors: Inputs that hold shapes as values.
        server_options: Required options of `tritonserver`.
    """

    path: Path
    backend: TritonBackend
    io: ModelIO
    kind: str
    files: Mapping[str, Path]
    manifest: Manifest | None = None
    profiles: Sequence[Mapping[str, Range]] = ()
    shape_tensors: frozenset[str] = frozenset()
    non_linear: frozenset[str] = frozenset()
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    server_options: tuple[str, ...] = ()


def read_triton_model(path: Path, *, verify: bool = True) -> TritonModel:
    """Read an engine, ONNX or TorchScript file as a Triton model; only ONNX files may lack a manifest."""
    require_file(path, what="artifact")
    manifest = read_manifest(path)
    kind = manifest.kind if manifest else "onnx" if path.suffix.lower() == ".onnx" else ""
    if kind not in _READERS:
        problem = f"is a {kind} file" if kind else "has no manifest"
        hint = "give an artifact of `qcompile build` with its manifest, or an .onnx file"
        raise artifact_error(path, f"{problem}; Triton takes engines, ONNX and TorchScript", hint)
    checks: tuple[Check, ...] = ()
    if manifest is not None and verify:
        load_artifact(path)
        require_exact(path, manifest, hint=PACKAGE_ELSEWHERE)
        checks = (Check("the file matches its manifest", True, manifest.digest),)
    model = _READERS[kind](path, manifest)
    _check_types(model)
    files = {**model.files}
    if manifest is not None:
        main = PurePosixPath(next(iter(files)))
        files[str(main.with_name(f"{main.name}.json"))] = manifest_path(path)
    return replace(model, files=files, manifest=manifest, checks=(*checks, *model.checks))


def _read_engine(path: Path, manifest: Manifest | None) -> TritonModel:
    assert manifest is not None  # without a manifest the kind is never "engine"
    backend = engine(manifest.target).triton
    if backend is None:
        problem = f"built for {manifest.target}; Triton's tensorrt backend loads plans of TensorRT itself"
        hint = "build with `target` tensorrt on the GPU that will serve, or package the ONNX file"
        raise artifact_error(path, problem, hint)
    require_weights(path, manifest, "stored without weights (`strip_weights`); Triton loads whole plans")
    io, notes = _tensorrt_io(_manifest_io(path, manifest), manifest)
    profiles = _profiles(path, manifest)
    tensors = {tensor.name: tensor for tensor in io.inputs}
    # Profiles hold shapes of dynamic inputs; without a dynamic axis the range of an input is one of values.
    shape_inputs = {
        name for ranges in profiles for name in ranges if name in tensors and not tensors[name].dynamic_axes
    }
    engine_notes, options = _server_needs(manifest)
    return TritonModel(
        path, backend, io, "gpu", {backend.file: path}, profiles=profiles,
        shape_tensors=frozenset(shape_inputs), non_linear=non_linear(manifest),
        notes=(*notes, *engine_notes), server_options=options,
    )  # fmt: skip


def _read_onnx(path: Path, manifest: Manifest | None) -> TritonModel:
    if manifest and (provider := manifest.proof.get("provider")):
        problem = f"holds an engine for {provider}; Triton's onnxruntime backend has no such provider"
        hint = "package an engine built with `target` tensorrt, or the ONNX file it was built from"
        raise artifact_error(path, problem, hint)
    is_bound = manifest is not None and manifest.target in CPU_TARGETS
    target = manifest.target if manifest and is_bound else "onnxruntime"
    backend = engine(target).triton
    if backend is None:
        raise artifact_error(path, f"Triton has no backend for {target}", "")
    notes = [] if manifest else [f"{path.name} has no manifest, so no record of its verification"]
    if manifest and manifest.target.startswith("tensorrt"):
        notes.append(f"its Q/DQ is placed for {manifest.target}, and ONNX Runtime will run it")
    if backend.note:
        notes.append(backend.note)
    io, checks, onnx_notes = onnx_io(path, with_onnxruntime=backend.infers_extents)
    side = onnx_side_files(path)
    # Triton, "Model Repository": an ONNX model of several files lies in a folder, its main file model.onnx.
    folder = f"{backend.file}/" if side and backend.infers_extents else ""
    files = {f"{folder}{backend.file}": path, **{f"{folder}{name}": file for name, file in side.items()}}
    kind = "cpu" if is_bound else ""
    return TritonModel(path, backend, io, kind, files, checks=checks, notes=(*notes, *onnx_notes))


def _read_torchscript(path: Path, manifest: Manifest | None) -> TritonModel:
    assert manifest is not None
    io = _manifest_io(path, manifest)
    count = len(io.inputs)
    names = [*positional_names(path, io), *(f"OUTPUT__{index}" for index in range(len(io.outputs)))]
    tensors = [*zip((*io.inputs, *io.outputs), names, strict=True)]
    renamed = [replace(tensor, name=name) for tensor, name in tensors]
    names_of = ", ".join(f"{name} is {tensor.name}" for tensor, name in tensors)
    note = f"TorchScript keeps no names that Triton could read: {names_of}"
    io = ModelIO(tuple(renamed[:count]), tuple(renamed[count:]))
    backend = engine(manifest.target).triton
    assert backend is not None, manifest.target
    return TritonModel(path, backend, io, "cpu", {backend.file: path}, notes=(note,))


_READERS = {"engine": _read_engine, "onnx": _read_onnx, "torchscript": _read_torchscript}


def _manifest_io(path: Path, manifest: Manifest) -> ModelIO:
    if manifest.io is None or not manifest.io.inputs or not manifest.io.outputs:
        problem = "its manifest names no inputs and outputs; Triton needs them"
        raise artifact_error(path, problem, "make the artifact again")
    return manifest.io


def _tensorrt_io(io: ModelIO, manifest: Manifest) -> tuple[ModelIO, list[str]]:
    version = manifest.tools.get("tensorrt", "")
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) >= _FIRST_INT64_MAJOR:
        return io, []
    int64_names = [tensor.name for tensor in (*io.inputs, *io.outputs) if tensor.dtype == "int64"]
    dtypes = {"int64": "int32"}
    inputs, outputs = (
        tuple(replace(tensor, dtype=dtypes.get(tensor.dtype, tensor.dtype)) for tensor in tensors)
        for tensors in (io.inputs, io.outputs)
    )
    note = f"TensorRT {version} converted int64 {', '.join(int64_names)} to int32: requests send int32"
    return ModelIO(inputs, outputs), [note] if int64_names else []


def _profiles(path: Path, manifest: Manifest) -> list[dict[str, Range]]:
    try:
        profiles = msgspec.convert(manifest.proof.get("profiles", []), list[dict[str, Range]])
    except msgspec.ValidationError as error:
        problem = f"its profiles cannot be read ({type(error).__name__}: {error})"
        raise artifact_error(manifest_path(path), problem, BUILD_AGAIN) from error
    assert manifest.io is not None
    dynamic = {tensor.name: len(tensor.shape) for tensor in manifest.io.inputs if tensor.dynamic_axes}
    for index, ranges in enumerate(profiles or [{}]):
        ranks = {name: {len(item.min), len(item.opt), len(item.max)} for name, item in ranges.items()}
        wrong = sorted(name for name, rank in dynamic.items() if ranks.get(name) != {rank})
        if wrong:
            problem = f"profile {index} of its manifest has no whole range for {', '.join(wrong)}"
            raise artifact_error(path, problem, BUILD_AGAIN)
    return profiles


def non_linear(manifest: Manifest) -> frozenset[str]:
    """Return the inputs and outputs that the engine has in a memory format other than linear."""
    parts = [text.rpartition("=") for text in manifest.options.get("io_formats", ())]
    return frozenset(name for name, _, form in parts if form.partition(":")[2] not in ("", "linear"))


def _server_needs(manifest: Manifest) -> tuple[list[str], tuple[str, ...]]:
    """Return notes on the server, and its options, that follow from the build options of the engine."""
    version = manifest.tools.get("tensorrt") or "unknown"
    device = ", ".join(f"{key} {value}" for key, value in manifest.device.items()) or "unknown"
    options = []
    notes = [f"built by TensorRT {version} on {device}: the server must have that version and such a GPU"]
    if manifest.options.get("version_compatible"):
        options.append("--backend-config=tensorrt,version-compatible=true")
        notes = [f"built by TensorRT {version} on {device}, for that version and newer"]
    if plugins := manifest.options.get("plugins"):
        options.append(f"--backend-config=tensorrt,plugins={';'.join(plugins)}")
        notes.append("its plugins are not packaged: copy the libraries and name their paths")
    if manifest.options.get("weight_streaming"):
        notes.append("Triton sets no budget for streamed weights: all of them stay on the GPU")
    if manifest.options.get("allocation_strategy") == "runtime":
        notes.append("Triton's contexts have memory for the chosen profile, not for the shapes of a request")
    return notes, tuple(options)


def _check_types(model: TritonModel) -> None:
    for tensor in (*model.io.inputs, *model.io.outputs):
        if tensor.dtype not in model.backend.dtypes:
            backend, dtypes = model.backend.name, ", ".join(sorted(model.backend.dtypes))
            problem = f"{tensor.name!r} is {tensor.dtype}; Triton's {backend} backend takes {dtypes}"
            raise InvalidOption(f"{model.path}: {problem}", hint="export the model with another type there")
        if not tensor.name:
            raise artifact_error(model.path, "an input or output has no name", "")


def onnx_io(path: Path, *, with_onnxruntime: bool) -> tuple[ModelIO, tuple[Check, ...], list[str]]:
    """Return inputs and outputs, the passed checks, and notes for the user.

    ONNX Runtime infers extents that the file leaves open, and Triton requires the configured outputs to equal
    these (onnxruntime_backend, `CompareDimsSupported`). So a session infers them, if ORT can be imported.
    """
    model = read_graph(path).model
    io = model_io(model)
    checks: tuple[Check, ...] = ()
    notes: list[str] = []
    if with_onnxruntime:
        try:
            io = _session_io(io, make_session(path, session_options(optimize=False)))
            checks = (Check("ONNX Runtime loads it", True, "inputs and outputs are those of the session"),)
        except (EngineUnavailable, ModelError) as error:
            notes.append(f"not loaded by ONNX Runtime here: {error.message}")
    values = (*model.graph.input, *model.graph.output)
    unknown = {value.name for value in values if not value.type.tensor_type.HasField("shape")}
    for tensor in (*io.inputs, *io.outputs):
        if tensor.name in unknown and not tensor.shape:
            problem = f"{path}: the rank of {tensor.name!r} is unknown; Triton needs its dims"
            hint = "export the model with declared shapes, or simplify it"
            raise ModelError(problem, hint=hint, file=path)
    return io, checks, notes


def onnx_side_files(path: Path) -> dict[str, Path]:
    """Return the external data files of a model, by their paths relative to the model."""
    folder = path.resolve().parent
    side_files: dict[str, Path] = {}
    for file in read_graph(path).beside:
        if not file.is_file():
            problem = f"{path}: its external data {file} does not exist"
            raise ModelError(problem, hint="keep the data file beside the model", file=path)
        side_files[file.relative_to(folder).as_posix()] = file
    return side_files


def _session_io(declared: ModelIO, session: Any) -> ModelIO:
    shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}

    def inferred(tensor: TensorInfo) -> TensorInfo:
        shape = shapes.get(tensor.name, tensor.shape)
        return replace(tensor, shape=tuple("?" if extent in (None, "") else extent for extent in shape))

    return ModelIO(tuple(map(inferred, declared.inputs)), tuple(map(inferred, declared.outputs)))


def positional_names(path: Path, io: ModelIO) -> list[str]:
    """Return the names `INPUT__INDEX` of the manifest's inputs, where INDEX is the argument of `forward`.

    Source: Triton, "Model Configuration", "Special Conventions for PyTorch Backend".
    """
    import_torch()
    module: Any = load_torch(parse_source(str(path))).module
    schema = module.forward.schema
    arguments = list(schema.arguments)[1:]  # without self
    names = [argument.name for argument in arguments]
    types = [str(argument.type) for argument in arguments]
    returned = _count_tensors(schema.returns[0].type if len(schema.returns) == 1 else None)
    problem = required = ""
    if any(kind != "Tensor" for kind in types) or len(types) != len(io.inputs):
        problem, required = f"forward takes ({', '.join(types)})", f"{len(io.inputs)} tensors"
    elif returned != len(io.outputs):
        problem = f"forward returns {', '.join(str(value.type) for value in schema.returns)}"
        required = f"a tensor or a tuple of {len(io.outputs)}"
    if problem:
        problem = f"{problem}; Triton's pytorch backend is given {required} here"
        raise artifact_error(path, problem, "package the ONNX file in its place")
    by_name = all(tensor.name in names for tensor in io.inputs)
    places = [names.index(tensor.name) for tensor in io.inputs] if by_name else range(len(io.inputs))
    return [f"INPUT__{place}" for place in places]


def _count_tensors(kind: Any) -> int:
    """Return the number of tensors in a type: 1, or the length of a tuple of tensors; else -1."""
    if str(kind) == "Tensor":
        return 1
    if kind is None or kind.kind() != "TupleType":
        return -1
    elements = [str(element) for element in kind.elements()]
    return len(elements) if all(element == "Tensor" for element in elements) else -1
