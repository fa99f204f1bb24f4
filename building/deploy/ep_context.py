"""`qcompile package ep-context`: wrap an engine in an ONNX file for an ONNX Runtime provider or Windows ML.

The provider itself can build this file only on the GPU that will run it (onnxruntime issue 29757).
TensorRT-RTX builds the engine without a GPU; this module adds the graph and verifies it without a provider.

Formats follow the providers' sources: microsoft/onnxruntime (`core/providers/nv_tensorrt_rtx/`, its tests
`nv_ep_context_test.cc` and `nv_basic_test.cc`, `core/providers/tensorrt/`) and the plugin
NVIDIA/TensorRT-RTX-EP-ABI (`src/onnx_ctx_model_helper.cc`, `src/tensorrt_rtx_provider_factory.cc`). The graph
is one EPContext node (`core/graph/contrib_ops/contrib_defs.cc`):

| attribute               | holds                                                                         |
|-------------------------|-------------------------------------------------------------------------------|
| `main_context`          | 1: the node owns its engine (providers of TensorRT write 0, and read neither) |
| `embed_mode`            | 1: the engine is in the node; 0: in a file beside the model                   |
| `ep_cache_context`      | the engine's bytes, or the name of that file                                  |
| `hardware_architecture` | `80+` for Ampere and newer, else the list of GPUs, e.g. `86`                  |
| `partition_name`        | a unique name per engine, the key of the runtime cache                        |
| `source`                | the provider; other providers ignore the node                                 |

`onnx_model_filename` is omitted: providers read it only to load the weights of a stripped engine.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from ...core.artifact import Artifact, Check, Manifest, commit, load_artifact, tool_versions
from ...core.files import digest_files, manifest_path, require_file, writing
from ...core.progress import Progress, silent
from ...engines.tensorrt.plan import require_weights
from ...engines.tensorrt.words import TRITON as TENSORRT
from ...errors import InvalidOption, ModelError, first_line
from ...model import onnx
from ...model.graph.graph import model_io
from ...model.graph.onnx_file import read_graph
from ...spec.decode import Refused, spec_from_call
from ...spec.looking import EpContextSpec
from ...spec.tensors import ModelIO, TensorInfo
from .triton_model import BUILD_AGAIN, artifact_error, non_linear

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import EpContextKeywords

LARGEST_EMBEDDED = (1 << 31) - (1 << 20)
"""Largest engine in bytes that fits into a protobuf file: 2 GiB less 1 MiB for the graph."""

OPERATOR, DOMAIN = "EPContext", "com.microsoft"
COMPATIBILITY = "ep_compatibility_info."
"""Prefix of the key in the model's metadata for the hardware that a provider's engine supports
(`kOrtModelMetadata_EpCompatibilityInfoPrefix` of `onnxruntime_ep_device_ep_metadata_keys.h`)."""

_IR_VERSION, _OPSET = 8, 17  # supported by every ONNX Runtime with these providers


@dataclass(frozen=True)
class Provider:
    """A provider of ONNX Runtime that loads engines of a target; the node's `source` must be its name.

    Attributes:
        header_bytes: Length of the plan's header that the provider checks against the GPU; 0 without a check.
        gpus: Supported compute capabilities, besides all from `newest_gpus` on; empty for all.
        needs: Provider options that some versions require to load an EPContext node.
        choice_of_profile: How it chooses among several optimization profiles; empty if unknown.
    """

    target: str
    name: str
    header_bytes: int = 0
    gpus: tuple[int, ...] = ()
    newest_gpus: int = 0
    needs: tuple[str, ...] = ()
    choice_of_profile: str = ""

    def takes(self, gpu: str) -> bool:
        """Return whether the provider supports a GPU, spelled as in "sm86"."""
        number = int("".join(filter(str.isdigit, gpu)) or 0)
        return not self.gpus or number in self.gpus or number >= self.newest_gpus


RTX = Provider(
    "tensorrt-rtx",
    "NvTensorRTRTXExecutionProvider",
    # `kTensorRTEngineHeaderSize` of both sources, and `Runtime.engine_header_size` of TensorRT-RTX 1.7.
    header_bytes=64,
    # Issue 29757: the provider's constructor fails on other GPUs.
    gpus=(86, 89),
    newest_gpus=120,
    # nv_basic_test.cc, `EPContextEngineRequiresOptIn`; NVIDIA's plugin 0.5.0 lacks this option.
    needs=("nv_engine_deserialization_enable=1",),
    # nv_execution_provider.cc, `OnRunStart`.
    choice_of_profile=(
        "the first is used, unless provider option nv_multi_profile_enable is 1 and each run sets its "
        "nv_profile_index"
    ),
)
PROVIDERS = {RTX.target: RTX, "tensorrt": Provider("tensorrt", "TensorrtExecutionProvider")}
"""Target of an engine to the provider that loads it."""


@dataclass(frozen=True)
class EpContext:
    """The written ONNX file of an engine; `files` are that file and, unless embedded, the engine's file."""

    path: Path
    files: Sequence[Path]
    provider: str
    embedded: bool
    architecture: str
    io: ModelIO
    provider_options: Sequence[str]
    checks: Sequence[Check]
    warnings: Sequence[str]

    def as_json(self) -> dict[str, object]:
        """Return the form that `--json` prints."""
        files = [str(file) for file in self.files]
        return {**asdict(self), "path": str(self.path), "files": files, "io": self.io.as_json()}


def package_ep_context(
    artifact: str | Path,
    output: str | Path,
    spec: EpContextSpec | None = None,
    /,
    *,
    progress: Progress = silent,
    **options: Unpack[EpContextKeywords],
) -> EpContext:
    """Write an ONNX file with one EPContext node for an engine; its manifest records that it has not run.

    Args:
        artifact: An engine with its manifest.
        output: The ONNX file. Unless `embed` is set, the engine is written beside it as `OUTPUT.data`.
        spec: All options as one object.
        progress: Called at every step.
        options: Fields of `EpContextSpec` by name; they override those of `spec`.

    Returns:
        The written files, the required provider options, checks and warnings.

    Raises:
        MissingFile, ArtifactError: If the engine is missing, damaged, has no manifest or no weights.
        InvalidOption: If the provider cannot load the engine, or it is too large to embed.
        ModelError: If ONNX or ONNX Runtime refuses the written file.
    """
    spec = spec_from_call(EpContextSpec, spec, options)
    embed, source, final = spec.embed, require_file(Path(artifact), what="engine"), Path(output)
    if final.suffix != ".onnx":
        raise InvalidOption(f"output {final}: an .onnx file is required", option="output")
    progress("check the engine")
    engine = load_artifact(source)
    provider = _find_provider(engine, spec.provider)
    io = _checked_io(engine)
    warnings = [*_check_hardware(engine, provider), "not run: no GPU has loaded this file"]
    if embed and source.stat().st_size > LARGEST_EMBEDDED:
        problem = f"the engine has {source.stat().st_size:,} bytes; an ONNX file holds less than 2 GB"
        raise Refused("embed", problem, hint="leave `embed` out: the engine then lies beside the file")
    progress("write")
    with writing(final) as path:
        beside = path.with_name(f"{path.name}.data")
        if not embed:
            shutil.copyfile(source, beside)
        with source.open("rb") as file:
            header = file.read(provider.header_bytes)
            file.seek(0)
            context = file.read() if embed else beside.name.encode()
        model = make_ep_context_model(
            provider, io, engine.manifest, context=context, embedded=embed, header=header
        )
        path.write_bytes(model.SerializeToString())
        del model, context
        progress("verify")
        checks, notes = check_written(path, provider, engine.manifest, io, header)
        warnings += notes
        before = engine.manifest
        # The fields of the engine's manifest that remain true, and those of the package.
        proof = {"provider": provider.name, "provider_options": list(provider.needs),
                 "engine_bytes": before.size_bytes, "has_run": False}  # fmt: skip
        manifest = replace(
            before, kind="onnx", stage="package", target="onnxruntime", io=io,
            sources={**before.sources, "engine": before.digest},
            tools={**before.tools, **tool_versions("onnx", "onnxruntime")},
            options={**before.options, "embed": embed}, proof={**before.proof, **proof},
            checks=checks, warnings=[*before.warnings, *warnings],
        )  # fmt: skip
        commit(path, manifest)
    files = [final] if embed else [final, final.with_name(beside.name)]
    return EpContext(
        final, files, provider.name, embed, architecture(engine.manifest), io, provider.needs,
        checks, warnings,
    )  # fmt: skip


def _find_provider(engine: Artifact, target: str) -> Provider:
    """Return the provider for an engine; refuse another `target` than the engine's, unless it is empty."""
    manifest, path = engine.manifest, engine.path
    if manifest.kind != "engine" or manifest.target not in PROVIDERS:
        problem = f"is {manifest.kind} for {manifest.target or 'any target'}; an engine of TensorRT or"
        raise artifact_error(
            path, f"{problem} TensorRT-RTX is required", "build one with `target` tensorrt-rtx"
        )
    provider = PROVIDERS[manifest.target]
    if target and PROVIDERS[target] is not provider:
        problem = f"{path} was built by {manifest.target}, which {PROVIDERS[target].name} cannot load"
        problem = f"`provider` {target}: {problem}; the source of the node is {provider.name}"
        raise InvalidOption(problem, hint=f"build it with `target` {target}", option="provider")
    return provider


def _checked_io(engine: Artifact) -> ModelIO:
    """Return inputs and outputs; refuse an engine without weights, or with unsupported types or formats."""
    manifest, path = engine.manifest, engine.path
    source = "the provider would look for the ONNX file they come from"
    require_weights(path, manifest, f"is stored without weights; {source}")
    io = manifest.io
    if io is None or not io.inputs or not io.outputs:
        raise artifact_error(path, f"{manifest_path(path).name} names no inputs and outputs", BUILD_AGAIN)
    formats = non_linear(manifest)
    for tensor in (*io.inputs, *io.outputs):
        if tensor.dtype not in TENSORRT.dtypes:
            raise InvalidOption(f"{path}: {tensor.name!r} is {tensor.dtype}, which TensorRT's providers lack")
        if tensor.name in formats:
            problem = f"{path}: {tensor.name!r} has a non-linear memory format; ONNX Runtime's are linear"
            raise InvalidOption(problem, hint="build without `io_formats`")
    return io


def _check_hardware(engine: Artifact, provider: Provider) -> list[str]:
    """Return warnings on GPUs, profiles and plugins; refuse an engine for unsupported GPUs only."""
    manifest, gpus = engine.manifest, engine.manifest.device.get("gpus")
    if not gpus:
        raise artifact_error(engine.path, "its manifest names no GPU that it was built for", BUILD_AGAIN)
    unsupported = [gpu for gpu in gpus if not provider.takes(gpu)]
    listed = ", ".join(f"sm{number}" for number in provider.gpus)
    limits = f"{provider.name} takes {listed} and sm{provider.newest_gpus} and newer"
    if len(unsupported) == len(gpus) and manifest.options.get("hardware_compatible") != "ampere+":
        problem = f"{engine.path}: was built for {', '.join(gpus)}; {limits}"
        raise InvalidOption(problem, hint="build it for one of these with `gpus`", option="gpus")
    notes = [f"{', '.join(unsupported)}: not usable: {limits}"] if unsupported else []
    profiles = manifest.proof.get("profiles", ())
    if provider.choice_of_profile and len(profiles) > 1:
        notes.append(f"{len(profiles)} optimization profiles: {provider.choice_of_profile}")
    if manifest.options.get("plugins"):
        notes.append("its plugins are not packaged: give the provider the paths of their libraries")
    return notes


_NO_PROVIDER = "NotImplemented"
"""ONNX Runtime's exception for a valid graph with a node that no provider here executes. A graph that
violates the schema raises `InvalidGraph`, an unknown operator `Fail` (both seen in 1.31.1)."""


def check_written(
    path: Path, provider: Provider, engine: Manifest, io: ModelIO, header: bytes
) -> tuple[list[Check], list[str]]:
    """Verify the written file; return the passed checks, and notes on checks that could not run."""
    model = read_graph(path).model
    attributes = {item.name: item for item in model.graph.node[0].attribute}
    context = attributes["ep_cache_context"].s
    if attributes["embed_mode"].i:
        digest = f"sha256:{hashlib.sha256(context).hexdigest()}"
    else:
        name = context.decode()
        # With Windows' rules on every platform: the providers refuse names outside of the model's folder.
        _require(path, PureWindowsPath(name).name == name, f"its engine {name!r} does not lie beside it")
        digest = digest_files([path.parent / name])
    same = digest == engine.digest
    _require(path, same, f"its engine has digest {digest[:19]}…, not {engine.digest[:19]}…")
    checks = [
        Check("the engine matches its manifest", True, digest),
        Check("inputs and outputs are the engine's", True, "; ".join(map(str, (*io.inputs, *io.outputs)))),
    ]
    _require(path, model_io(model) == io, "its inputs and outputs are not the engine's")
    checks.append(Check("ONNX's checker accepts the graph", True, f"one {OPERATOR} for {provider.name}"))
    if provider.header_bytes:
        recorded = {item.key: item.value for item in model.metadata_props}[COMPATIBILITY + provider.name]
        _require(path, recorded == header.hex(), "its compatibility information is not the engine's header")
        checks.append(Check("its metadata holds the engine's header", True, f"{provider.header_bytes} bytes"))
    del model, context, attributes
    schema_check = _check_schema(path, provider)
    return (checks, [schema_check]) if isinstance(schema_check, str) else ([*checks, schema_check], [])


def _check_schema(path: Path, provider: Provider) -> Check | str:
    """Check the node with ONNX Runtime's schema; return the reason if ONNX Runtime cannot be imported."""
    try:
        import onnxruntime
    except ImportError as error:
        return f"not checked with ONNX Runtime's schema: it cannot be imported ({error})"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        # Only the CPU provider is offered: an engine is executable code and must not be loaded here.
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as refusal:  # its exceptions share no narrower base
        reason = first_line(refusal)
        valid = type(refusal).__name__ == _NO_PROVIDER and OPERATOR in reason
        _require(path, valid, f"ONNX Runtime {onnxruntime.__version__} refuses it: {reason}")
        detail = f"{onnxruntime.__version__}; missing here: {provider.name}"
        return Check("ONNX Runtime's schema accepts the node", True, detail)
    raise ModelError(f"{path}: ONNX Runtime runs it without {provider.name}", file=path)


def _require(path: Path, holds: bool, problem: str) -> None:
    if not holds:
        raise ModelError(f"{path}: {problem}", file=path)


def make_ep_context_model(
    provider: Provider, io: ModelIO, manifest: Manifest, *, context: bytes, embedded: bool, header: bytes
) -> onnx.ModelProto:
    """Return the model of an engine; `context` is its bytes or its file's name, `header` its first bytes."""
    name = f"{provider.name}_{manifest.digest.removeprefix('sha256:')[:16]}"
    inputs, outputs = ([tensor.name for tensor in tensors] for tensors in (io.inputs, io.outputs))
    node = onnx.helper.make_node(
        OPERATOR, inputs, outputs, name, domain=DOMAIN, main_context=1, embed_mode=int(embedded),
        ep_cache_context=context, ep_sdk_version=str(manifest.tools.get(provider.target, "")),
        hardware_architecture=architecture(manifest), partition_name=name, source=provider.name,
    )  # fmt: skip
    graph = onnx.helper.make_graph([node], "engine", _values(io.inputs), _values(io.outputs))
    opsets = [onnx.helper.make_opsetid("", _OPSET), onnx.helper.make_opsetid(DOMAIN, 1)]
    model: onnx.ModelProto = onnx.helper.make_model(
        graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="qcompile"
    )
    if header:
        onnx.helper.set_model_props(model, {COMPATIBILITY + provider.name: header.hex()})
    return model


def architecture(manifest: Manifest) -> str:
    """Return the GPUs of an engine in the providers' spelling: `86`, or `80+` for Ampere and newer."""
    if manifest.options.get("hardware_compatible") == "ampere+":
        return "80+"
    return ",".join(gpu.removeprefix("sm") for gpu in manifest.device["gpus"])


def _values(tensors: Sequence[TensorInfo]) -> list[onnx.ValueInfoProto]:
    import ml_dtypes
    import numpy as np

    values = []
    for tensor in tensors:
        numpy_type = np.dtype(getattr(ml_dtypes, tensor.dtype, tensor.dtype))
        # In ONNX an axis without a name ("?") has neither dim_value nor dim_param.
        shape = [None if extent == "?" else extent for extent in tensor.shape]
        kind = onnx.helper.np_dtype_to_tensor_dtype(numpy_type)
        values.append(onnx.helper.make_tensor_value_info(tensor.name, kind, shape))
    return values
