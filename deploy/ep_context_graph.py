"""ONNX Runtime's providers that load an engine from an EPContext node, as their sources have them.

Read in microsoft/onnxruntime (`core/providers/nv_tensorrt_rtx/`, its tests `nv_ep_context_test.cc` and
`nv_basic_test.cc`, `core/providers/tensorrt/`), in NVIDIA/TensorRT-RTX-EP-ABI, the provider as a plugin
(`src/onnx_ctx_model_helper.cc`, `src/tensorrt_rtx_provider_factory.cc`), and in onnxruntime issue 29757.

The graph around an engine: one EPContext node, and the engine's inputs and outputs.

Attributes are those of ONNX Runtime's schema (`core/graph/contrib_ops/contrib_defs.cc`, EPContext):

| attribute               | holds                                                                         |
|-------------------------|-------------------------------------------------------------------------------|
| `main_context`          | 1: the node owns its engine (providers of TensorRT write 0, and read neither) |
| `embed_mode`            | 1: the engine is in the node; 0: in a file beside the model                   |
| `ep_cache_context`      | the engine's bytes, or the name of that file                                  |
| `ep_sdk_version`        | version of TensorRT that built the engine                                     |
| `hardware_architecture` | `80+` for Ampere and newer, else the GPUs, such as `86`                       |
| `partition_name`        | a name of this engine's own: the runtime cache is found by it                 |
| `source`                | the provider; others leave the node alone                                     |

`onnx_model_filename` is read where a provider gives a stripped engine its weights, and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..artifact import Manifest
from ..tensors import ModelIO, TensorInfo

if TYPE_CHECKING:
    import onnx


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
TENSORRT = Provider("tensorrt", "TensorrtExecutionProvider")

PROVIDERS = {provider.target: provider for provider in (RTX, TENSORRT)}
"""Target of an engine to the provider that loads it."""


OPERATOR, DOMAIN = "EPContext", "com.microsoft"
COMPATIBILITY = "ep_compatibility_info."
"""Prefix of the model's metadata that says what a provider's engine runs on
(`kOrtModelMetadata_EpCompatibilityInfoPrefix` of `onnxruntime_ep_device_ep_metadata_keys.h`)."""

_IR_VERSION, _OPSET = 8, 17  # old enough for every ONNX Runtime that has these providers


def engine_graph(
    provider: Provider, io: ModelIO, manifest: Manifest, *, context: bytes, embedded: bool, header: bytes
) -> onnx.ModelProto:
    """Return the model of an engine; the context is its bytes, or the name of the file that holds them.

    The header is its first bytes; empty for a provider that does not read them.
    """
    from onnx import helper

    name = f"{provider.name}_{manifest.digest.removeprefix('sha256:')[:16]}"
    inputs, outputs = ([tensor.name for tensor in tensors] for tensors in (io.inputs, io.outputs))
    node = helper.make_node(
        OPERATOR, inputs, outputs, name, domain=DOMAIN, main_context=1, embed_mode=int(embedded),
        ep_cache_context=context, ep_sdk_version=str(manifest.tools.get(provider.target, "")),
        hardware_architecture=architecture(manifest), partition_name=name, source=provider.name,
    )  # fmt: skip
    graph = helper.make_graph([node], "engine", _values(io.inputs), _values(io.outputs))
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)]
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="qcompile"
    )
    if header:
        helper.set_model_props(model, {COMPATIBILITY + provider.name: header.hex()})
    return model


def architecture(manifest: Manifest) -> str:
    """Return what an engine runs on as the providers spell it: `86`, or `80+` for all from Ampere on."""
    if manifest.options.get("hardware_compatible") == "ampere+":
        return "80+"
    return ",".join(gpu.removeprefix("sm") for gpu in gpus_of(manifest))


def gpus_of(manifest: Manifest) -> list[str]:
    """Return the architectures that an engine was built for, such as ["sm86"]."""
    listed = manifest.device.get("gpus")
    return [str(gpu) for gpu in listed] if isinstance(listed, list) else []


def _values(tensors: Sequence[TensorInfo]) -> list[onnx.ValueInfoProto]:
    import ml_dtypes
    import numpy as np
    from onnx import helper

    values = []
    for tensor in tensors:
        numpy_type = np.dtype(getattr(ml_dtypes, tensor.dtype, tensor.dtype))
        # An axis without a name ("?") has neither extent nor name in ONNX.
        shape = [None if extent == "?" else extent for extent in tensor.shape]
        kind = helper.np_dtype_to_tensor_dtype(numpy_type)
        values.append(helper.make_tensor_value_info(tensor.name, kind, shape))
    return values
