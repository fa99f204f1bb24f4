"""`qcompile package ep-context`: an engine as an ONNX file for ONNX Runtime's provider, and for Windows ML.

The provider builds such a file only on the GPU that will run it (onnxruntime issue 29757). TensorRT-RTX
builds the engine without a GPU; this adds the graph around it, and verifies what needs no provider.

Providers are as their sources have them: microsoft/onnxruntime (`core/providers/nv_tensorrt_rtx/`, its tests
`nv_ep_context_test.cc` and `nv_basic_test.cc`, `core/providers/tensorrt/`) and the plugin
NVIDIA/TensorRT-RTX-EP-ABI (`src/onnx_ctx_model_helper.cc`, `src/tensorrt_rtx_provider_factory.cc`). The graph
is one EPContext node (`core/graph/contrib_ops/contrib_defs.cc`):

| attribute               | holds                                                                         |
|-------------------------|-------------------------------------------------------------------------------|
| `main_context`          | 1: the node owns its engine (providers of TensorRT write 0, and read neither) |
| `embed_mode`            | 1: the engine is in the node; 0: in a file beside the model                   |
| `ep_cache_context`      | the engine's bytes, or the name of that file                                  |
| `hardware_architecture` | `80+` for Ampere and newer, else the GPUs, such as `86`                       |
| `partition_name`        | a name of this engine's own: the runtime cache is found by it                 |
| `source`                | the provider; others leave the node alone                                     |

`onnx_model_filename` is read where a provider gives a stripped engine its weights, and left out.
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
from .triton_model import BUILD_AGAIN, non_linear, refused

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import EpContextKeywords

LARGEST_EMBEDDED = (1 << 31) - (1 << 20)
"""Bytes of an engine that fits into a protobuf file; 1 MiB under its 2 GB, for the graph."""

OPERATOR, DOMAIN = "EPContext", "com.microsoft"
COMPATIBILITY = "ep_compatibility_info."
"""Prefix of the model's metadata that says what a provider's engine runs on
(`kOrtModelMetadata_EpCompatibilityInfoPrefix` of `onnxruntime_ep_device_ep_metadata_keys.h`)."""

_IR_VERSION, _OPSET = 8, 17  # old enough for every ONNX Runtime that has these providers


@dataclass(frozen=True)
class Provider:
    """A provider of ONNX Runtime that loads engines of a target; the node's `source` must be its name.

    Attributes:
        header_bytes: First bytes of a plan from which it tells whether it fits the GPU; 0 where it does not.
        gpus: Compute capabilities of which it takes GPUs, besides all from `newest_gpus` on; empty for all.
        needs: Provider options without which those of its versions that know them load no EPContext node.
        choice_of_profile: How it chooses among several optimization profiles; empty where that is not known.
    """

    target: str
    name: str
    header_bytes: int = 0
    gpus: tuple[int, ...] = ()
    newest_gpus: int = 0
    needs: tuple[str, ...] = ()
    choice_of_profile: str = ""

    def takes(self, gpu: str) -> bool:
        """Whether it can be opened on a GPU such as "sm86"."""
        number = int("".join(filter(str.isdigit, gpu)) or 0)
        return not self.gpus or number in self.gpus or number >= self.newest_gpus


RTX = Provider(
    "tensorrt-rtx",
    "NvTensorRTRTXExecutionProvider",
    # `kTensorRTEngineHeaderSize` of both sources, and `Runtime.engine_header_size` of TensorRT-RTX 1.7.
    header_bytes=64,
    # Issue 29757: the provider's constructor fails on others.
    gpus=(86, 89),
    newest_gpus=120,
    # nv_basic_test.cc, `EPContextEngineRequiresOptIn`; NVIDIA's plugin 0.5.0 has no such option.
    needs=("nv_engine_deserialization_enable=1",),
    # nv_execution_provider.cc, `OnRunStart`.
    choice_of_profile=(
        "the first is used, unless provider option nv_multi_profile_enable is 1 and each run says its "
        "nv_profile_index"
    ),
)
PROVIDERS = {RTX.target: RTX, "tensorrt": Provider("tensorrt", "TensorrtExecutionProvider")}
"""Target of an engine to the provider that loads it."""


@dataclass(frozen=True)
class EpContext:
    """An engine as an ONNX file, with what the provider must be given and the user should know.

    `files` are the ONNX file and that of the engine, unless it is embedded.
    """

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
    """Write an ONNX file whose one node is an engine, with a manifest that says it has not run.

    Args:
        artifact: An engine with its manifest.
        output: The ONNX file. Unless the engine is embedded, it lies beside it as `OUTPUT.data`.
        spec: How.
        progress: Told of every step.
        options: Fields of `EpContextSpec` by name, in place of those of `spec`.

    Returns:
        What was written, checked, and should be known.

    Raises:
        MissingFile, ArtifactError: If the engine is missing, damaged, has no manifest or no weights.
        InvalidOption: If the provider does not load it, or the file could not hold it.
        ModelError: If ONNX or ONNX Runtime refuses what was written.
    """
    spec = spec_from_call(EpContextSpec, spec, options)
    embed, source, final = spec.embed, require_file(Path(artifact), what="engine"), Path(output)
    if final.suffix != ".onnx":
        raise InvalidOption(f"output {final}: an .onnx file is required", option="output")
    progress("check the engine")
    engine = load_artifact(source)
    provider = _provider(engine, spec.provider)
    io = _io(engine)
    warnings = [*_unfit(engine, provider), "not run: no GPU has loaded this file"]
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
        model = engine_graph(provider, io, engine.manifest, context=context, embedded=embed, header=header)
        path.write_bytes(model.SerializeToString())
        del model, context
        progress("verify")
        checks, notes = check_written(path, provider, engine.manifest, io, header)
        warnings += notes
        before = engine.manifest
        # The engine's manifest, as far as it is still true, and what was made of it.
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


def _provider(engine: Artifact, target: str) -> Provider:
    """The provider of an engine; `target` is that of the one to load it, or empty."""
    manifest, path = engine.manifest, engine.path
    if manifest.kind != "engine" or manifest.target not in PROVIDERS:
        problem = f"is {manifest.kind} for {manifest.target or 'any target'}; an engine of TensorRT or"
        raise refused(path, f"{problem} TensorRT-RTX is required", "build one with `target` tensorrt-rtx")
    provider = PROVIDERS[manifest.target]
    if target and PROVIDERS[target] is not provider:
        problem = f"{path} was built by {manifest.target}, which {PROVIDERS[target].name} cannot load"
        problem = f"`provider` {target}: {problem}; the source of the node is {provider.name}"
        raise InvalidOption(problem, hint=f"build it with `target` {target}", option="provider")
    return provider


def _io(engine: Artifact) -> ModelIO:
    """Inputs and outputs; refuses an engine that a provider could not feed."""
    manifest, path = engine.manifest, engine.path
    source = "the provider would look for the ONNX file they come from"
    require_weights(path, manifest, f"is stored without weights; {source}")
    io = manifest.io
    if io is None or not io.inputs or not io.outputs:
        raise refused(path, f"{manifest_path(path).name} names no inputs and outputs", BUILD_AGAIN)
    formats = non_linear(manifest)
    for tensor in (*io.inputs, *io.outputs):
        if tensor.dtype not in TENSORRT.dtypes:
            raise InvalidOption(f"{path}: {tensor.name!r} is {tensor.dtype}, which TensorRT's providers lack")
        if tensor.name in formats:
            problem = f"{path}: {tensor.name!r} is in a memory format of its own; ONNX Runtime's are linear"
            raise InvalidOption(problem, hint="build without `io_formats`")
    return io


def _unfit(engine: Artifact, provider: Provider) -> list[str]:
    """What stands against the GPUs and the options that the engine was built for."""
    manifest, gpus = engine.manifest, engine.manifest.device.get("gpus")
    if not gpus:
        raise refused(engine.path, "its manifest names no GPU that it was built for", BUILD_AGAIN)
    unfit = [gpu for gpu in gpus if not provider.takes(gpu)]
    least = ", ".join(f"sm{number}" for number in provider.gpus)
    limits = f"{provider.name} takes {least} and sm{provider.newest_gpus} and newer"
    if len(unfit) == len(gpus) and manifest.options.get("hardware_compatible") != "ampere+":
        problem = f"{engine.path}: was built for {', '.join(gpus)}; {limits}"
        raise InvalidOption(problem, hint="build it for one of these with `gpus`", option="gpus")
    notes = [f"{', '.join(unfit)}: not usable: {limits}"] if unfit else []
    profiles = manifest.proof.get("profiles", ())
    if provider.choice_of_profile and len(profiles) > 1:
        notes.append(f"{len(profiles)} optimization profiles: {provider.choice_of_profile}")
    if manifest.options.get("plugins"):
        notes.append("its plugins are not packaged: the provider must be told where their libraries are")
    return notes


_WANTS_PROVIDER = "NotImplemented"
"""ONNX Runtime's exception where a graph is valid and nothing here can execute a node of it; a graph that
contradicts the schema is `InvalidGraph`, an operator that it does not know `Fail` (both seen in 1.31.1)."""


def check_written(
    path: Path, provider: Provider, engine: Manifest, io: ModelIO, header: bytes
) -> tuple[list[Check], list[str]]:
    """Read a file back and verify it; return what held, and what could not be verified."""
    model = read_graph(path).model
    attributes = {item.name: item for item in model.graph.node[0].attribute}
    context = attributes["ep_cache_context"].s
    if attributes["embed_mode"].i:
        digest = f"sha256:{hashlib.sha256(context).hexdigest()}"
    else:
        name = context.decode()
        # On Windows too: the providers refuse names that leave the model's folder.
        _require(path, PureWindowsPath(name).name == name, f"its engine {name!r} does not lie beside it")
        digest = digest_files([path.parent / name])
    same = digest == engine.digest
    _require(path, same, f"its engine has digest {digest[:19]}…, not {engine.digest[:19]}…")
    checks = [
        Check("the engine is what its manifest says", True, digest),
        Check("inputs and outputs are the engine's", True, "; ".join(map(str, (*io.inputs, *io.outputs)))),
    ]
    _require(path, model_io(model) == io, "its inputs and outputs are not the engine's")
    checks.append(Check("ONNX's checker accepts the graph", True, f"one {OPERATOR} for {provider.name}"))
    if provider.header_bytes:
        recorded = {item.key: item.value for item in model.metadata_props}[COMPATIBILITY + provider.name]
        _require(path, recorded == header.hex(), "its compatibility information is not the engine's header")
        checks.append(Check("its metadata holds the engine's header", True, f"{provider.header_bytes} bytes"))
    del model, context, attributes
    read = _onnx_runtime_reads_it(path, provider)
    return (checks, [read]) if isinstance(read, str) else ([*checks, read], [])


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
        reason = first_line(refusal)
        valid = type(refusal).__name__ == _WANTS_PROVIDER and OPERATOR in reason
        _require(path, valid, f"ONNX Runtime {onnxruntime.__version__} refuses it: {reason}")
        detail = f"{onnxruntime.__version__}; what it lacks here is {provider.name}"
        return Check("ONNX Runtime's schema accepts the node", True, detail)
    raise ModelError(f"{path}: ONNX Runtime runs it without {provider.name}", file=path)


def _require(path: Path, holds: bool, otherwise: str) -> None:
    if not holds:
        raise ModelError(f"{path}: {otherwise}", file=path)


def engine_graph(
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
    """Return what an engine runs on as the providers spell it: `86`, or `80+` for all from Ampere on."""
    if manifest.options.get("hardware_compatible") == "ampere+":
        return "80+"
    return ",".join(gpu.removeprefix("sm") for gpu in manifest.device["gpus"])


def _values(tensors: Sequence[TensorInfo]) -> list[onnx.ValueInfoProto]:
    import ml_dtypes
    import numpy as np

    values = []
    for tensor in tensors:
        numpy_type = np.dtype(getattr(ml_dtypes, tensor.dtype, tensor.dtype))
        # An axis without a name ("?") has neither extent nor name in ONNX.
        shape = [None if extent == "?" else extent for extent in tensor.shape]
        kind = onnx.helper.np_dtype_to_tensor_dtype(numpy_type)
        values.append(onnx.helper.make_tensor_value_info(tensor.name, kind, shape))
    return values
