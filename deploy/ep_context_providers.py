"""ONNX Runtime's providers that load an engine from an EPContext node, as their sources have them.

Read in microsoft/onnxruntime (`core/providers/nv_tensorrt_rtx/`, its tests `nv_ep_context_test.cc` and
`nv_basic_test.cc`, `core/providers/tensorrt/`), in NVIDIA/TensorRT-RTX-EP-ABI, the provider as a plugin
(`src/onnx_ctx_model_helper.cc`, `src/tensorrt_rtx_provider_factory.cc`), and in onnxruntime issue 29757.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Provider:
    """One provider.

    Attributes:
        target: Of the engines that it loads.
        name: As ONNX Runtime spells it, and as `source` of the node must be.
        header_bytes: First bytes of a plan from which it tells whether it fits the GPU; 0 where it does not.
        gpus: Least compute capabilities of which it takes GPUs, besides all from `newest_gpus` on; empty
            for all.
        newest_gpus: See `gpus`.
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
