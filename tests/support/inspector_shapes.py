"""Answers of the engine inspector, built as public files and issues show them: keys, kinds and spellings.

Nothing is copied: names and sizes are ours, the structure is that of the source each shape names. TREX is
tools/experimental/trt-engine-explorer of NVIDIA/TensorRT, release/10.16; its ten graphs are the same files in
every branch from 8.4 to 11.0.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

Entry = dict[str, Any]

FP32, HALF8 = "Row major linear FP32", "Channel major FP16 format where channel % 8 == 0"
INT8 = "Thirty-two wide channel vectorized row major Int8 format"
UNKNOWN = "N/A due to dynamic shapes"
KERNEL = "sm80_xmma_fprop_implicit_gemm_{}_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1"


class Shape(NamedTuple):
    """One answer."""

    source: str
    answer: str
    precisions: dict[str, str]  # of layers of the network, or "unreported"
    moving: int = 0  # layers that only move data


def tensor(name: str, spelled: str, key: str = "Format/Datatype", *, located: bool = True) -> Entry:
    """An input or output."""
    place = {"Location": "Device"} if located else {}
    return {"Name": name, **place, "Dimensions": [1, 64, 56, 56], key: spelled}


def layer(name: str, kind: str, *inputs: str, made: str = FP32, located: bool = True, **more: Any) -> Entry:
    """A layer with the type of each input."""
    return {
        "Name": name,
        "LayerType": kind,
        "Inputs": [tensor(f"{name} in {i}", one, located=located) for i, one in enumerate(inputs)],
        "Outputs": [tensor(f"{name} out", made, located=located)],
        **more,
    }


def convolution(
    name: str, *inputs: str, weights: str, kernel: str = "", kind: str = "CaskConvolution", **more: Any
) -> Entry:
    """A convolution with the parameters that the inspector lists."""
    parameters = {
        "ParameterType": "Convolution", "Kernel": [3, 3], "PaddingMode": "kEXPLICIT_ROUND_DOWN",
        "Stride": [1, 1], "OutMaps": 64, "Groups": 1, "Weights": {"Type": weights, "Count": 36864},
        "Bias": {"Type": weights, "Count": 64}, "HasSparseWeights": 0, "Activation": "RELU",
    }  # fmt: skip
    tactic = {"TacticName": KERNEL.format(kernel)} if kernel else {}
    return layer(name, kind, *inputs, **parameters, **tactic, TacticValue="0x9cb304e2edbc1221", **more)


def reformat(target: str, *, kind: str = "Reformat") -> Entry:
    """What copies a tensor for a layer: its name holds that of the layer."""
    origin = {"ParameterType": "Reformat", "Origin": "REFORMAT"} if kind == "Reformat" else {}
    name = f"Reformatting CopyNode for Input Tensor 0 to {target}"
    return layer(name, kind, FP32, made=HALF8, **origin, TacticValue="0x0000000000000000")


def graph(*layers: Any, **more: Any) -> str:
    """An answer of 8.x and 10.x."""
    return json.dumps({"Layers": list(layers), "Bindings": ["x", "y"], **more}, indent=1)


def nodes(*names: str, between: str = "") -> str:
    """Metadata of 8.6 and later."""
    return between.join(f"[ONNX Layer: {name}]" for name in names)


_BLOCK = "{ForeignNode[/Unsqueeze_3 + /a/MatMul.../b/MatMul_1]}"
_WIDE = "Four wide channel vectorized row major FP32 format"
_GEMM = "sm80_xmma_gemm_{}_tilesize32x32x64_stage6_warpsize2x2x1_tensor16x8x{}"


def _kernel(name: str, kind: str, tactic: str, spelled: str, *made_of: str) -> Entry:
    return layer(name, kind, spelled, located=False, TacticName=tactic, StreamId=0, Metadata=nodes(*made_of))


def _newest() -> str:
    entry = convolution("conv1 + relu1", weights="Half", StreamId=0, Metadata=nodes("conv1", "relu1"))
    entry["Inputs"] = [
        {**tensor("x", "Half", "Datatype"), "Format": "Row major linear FP16 format (kLINEAR)"}
    ]
    io = {"Name": "x", "IOMode": "Input", "DataType": "Float", "Dimensions": [1, 64], "ProfileInfo": []}
    return json.dumps({"Layers": [entry], "I/O Tensors": [io]})


def _control_characters() -> str:
    metadata = nodes("conv1", "relu1", between="\x1f")
    answer = graph(convolution("conv1\x1erelu1", HALF8, weights="Half", Metadata=metadata))
    return answer.replace("\\u001f", "\x1f").replace("\\u001e", "\x1e")


SHAPES = {
    "fp16": Shape(
        "TREX examples/pytorch/resnet/A100/fp16/resnet.onnx.engine.graph.json",
        graph(
            reformat("Conv_0 + Relu_1"),
            convolution("Conv_0 + Relu_1", HALF8, weights="Half", kernel="f16f16_f16f16_f16"),
            layer("MaxPool_2", "CudaPooling", HALF8, ParameterType="Pooling"),
            reformat("Conv_5 + Add_6 + Relu_7", kind="NoOp"),
            convolution("Conv_5 + Add_6 + Relu_7", HALF8, HALF8, weights="Half"),
            convolution("Gemm_48", HALF8, weights="Half"),
            layer("reshape_after_Gemm_48", "NoOp", "Row major linear FP16 format"),
        ),
        {"Conv_0": "fp16", "Conv_5": "fp16", "Gemm_48": "fp16"},
        3,
    ),
    "fp32": Shape(
        "TREX examples/tensorflow/resnet/RTX-3090/fp32/resnet.onnx.engine.graph.json",
        graph(
            layer("net/conv1/Conv2D__6", "Shuffle", FP32, located=False, ParameterType="Shuffle"),
            convolution("Conv__435 + net/relu/Relu", _WIDE, weights="Float", located=False),
            convolution("net/logits/MatMul", FP32, weights="Float", located=False, kind="CublasConvolution",
                        CublasConvolutionTacticIndex=3),
            layer("net/pad/Pad", "Padding", FP32, located=False, ParameterType="Slice"),
        ),
        {"Conv__435": "fp32", "net/logits/MatMul": "fp32"},
    ),
    "quantized": Shape(
        "TREX examples/pytorch/resnet/A100/qat/resnet-qat.onnx.engine.graph.json",
        graph(
            layer("QuantizeLinear_2", "Reformat", FP32, made=INT8, ParameterType="Reformat", Origin="QDQ"),
            convolution("conv1.weight + QuantizeLinear_7 + Conv_9", INT8, weights="Int8"),
            convolution("layer1.0.conv2.weight + QuantizeLinear_32 + Conv_34 + Add_36 + Relu_37", INT8,
                        "Thirty-two wide channel vectorized row major FP16 format", weights="Int8",
                        kernel="interleaved_i8f16_i8i32_f32"),
            convolution(
                "fc.weight + QuantizeLinear_255 + Gemm_257 + fc.bias + (Unnamed Layer* 306) [Shuffle]",
                "Four wide channel vectorized row major Int8 format", weights="Int8"),
        ),
        {"Conv_9": "int8", "Conv_34": "int8", "Gemm_257": "int8"},
        1,
    ),
    "pooled": Shape(
        "TREX examples/pytorch/resnet/A100/qat-residual-qgap/resnet-qat-residual-qgap.onnx.engine.graph.json",
        graph(layer("conv1.weight + QuantizeLinear_7 + Conv_9 + MaxPool_12", "ConvActPool", UNKNOWN,
                    ParameterType="ConvActPool", ConvParameterType="Convolution",
                    ConvWeights={"Type": "Int8", "Count": 9408}, PoolingParameterType="Pooling")),
        {"Conv_9": "int8"},
    ),
    "pointwise": Shape(
        "TREX tests/inputs/mobilenet_v2_residuals.qat.onnx.engine.graph.json",
        graph(
            convolution("features.0.0.weight + QuantizeLinear_7 + Conv_9 + PWN(Clip_13)", INT8,
                        weights="Int8"),
            convolution("features.1.0.weight + QuantizeLinear_21 + Conv_23 + PWN(Clip_27)", INT8,
                        weights="Int8", kind="CudaDepthwiseConvolution", ParameterSubType="Depthwise"),
            convolution("features.7.2.weight + QuantizeLinear_290 + Conv_292", INT8,
                        weights="Int8", kind="FusedConvActConvolution", ConvolutionTacticIndex=7),
        ),
        {"Conv_9": "int8", "Conv_23": "int8", "Conv_292": "int8", "Conv_2": "unreported"},
    ),
    "names_only": Shape(
        "NVIDIA/trt-samples-for-hackathon-cn issue 18 (8.4); NVIDIA/TensorRT issue 4020 (10.2)",
        graph("Conv__25 + Relu", "Reformatting CopyNode for Output Tensor 0 to MaxPool2d", "MatMul + add_2"),
        {"Conv__25": "unreported", "MatMul": "unreported"},
    ),
    "foreign": Shape(
        "NVIDIA/TensorRT issues 3768, 4397 (layer names only), 4157 (8.6): the network is one Myelin layer",
        graph(
            layer(_BLOCK, "Myelin", "Row major linear FP16 format", TacticValue="0x0000000000000000"),
            reformat(_BLOCK),
        ),
        {"/a/MatMul": "unreported", "/b/MatMul_1": "unreported", "/c/between/MatMul": "unreported"},
        1,
    ),
    "bert": Shape(
        "NVIDIA/TensorRT issue 4397 (10.10, detailed); kernel names of INT8: Model-Optimizer issue 35",
        graph(
            _kernel("/l_10/q/MatMul+/l_10/k/MatMul_myl0_79", "gemm",
                    _GEMM.format("f16f16_f16f16_f16_nn_n", 16), "Half",
                    "/l.10/q/MatMul", "/l.10/k/MatMul", "/l.10/k/Add"),
            _kernel("__myl_AddCastMean_myl0_78", "kgen", "__myl_AddCastMean_0xf2543c", "Half",
                    "/l.10/k/Add", "/l.10/norm/LayerNormalization"),
            _kernel("_gemm_mha_v2_myl0_80", "kgen", "_gemm_mha_v2_0x44a1", "Half",
                    "/l.10/qk/MatMul", "/l.10/av/MatMul"),
            _kernel("__myl_Fc_myl0_69", "fusion",
                    f"{_GEMM.format('i8f32_i8i32_f32_tn_n', 32)}_by_fusion_tactic", UNKNOWN,
                    "/l.10/ff/MatMul", "/l.10/ff/Erf"),
            {"Name": "signal_0", "LayerType": "signal", "Inputs": [], "Outputs": []},
        ),
        {"/l.10/q/MatMul": "fp16", "/l.10/k/MatMul": "fp16", "/l.10/qk/MatMul": "unreported",
         "/l.10/av/MatMul": "unreported", "/l.10/ff/MatMul": "int8"},
        1,
    ),
    "without_metadata": Shape(
        "NVIDIA/TensorRT issue 4397 (10.10): names of kernels alone, dots become underscores",
        graph(layer("/l_0/q/MatMul+/l_0/k_1/MatMul_myl0_3", "gemm", "Half", located=False, StreamId=0,
                    Metadata="")),
        {"/l.0/q/MatMul": "fp16", "/l.0/k.1/MatMul": "fp16", "/l.0/k/MatMul": "unreported"},
    ),
    "control_characters": Shape(
        "NVIDIA/TensorRT issue 2779 (8.6), trex/parser.py `fix_unicode`", _control_characters(),
        {"conv1": "fp16"},
    ),
    "properties": Shape(
        "onnx-tensorrt 10.0-GA importerUtils.cpp `processMetadata`; 8.6-GA onnx2trt_utils.cpp",
        graph(convolution("conv_7", HALF8, weights="Half", StreamId=0, Metadata="[ONNX Layer: block/conv | "
                          "Local Function: Block][ONNX Layer: a[0].act | /net.py(1): f]")),
        {"block/conv": "fp16", "a[0].act": "fp16", "conv_7": "fp16"},
    ),
    "horizontal": Shape(
        "NVIDIA/TensorRT issues: layers side by side in the engine's layer listing of 8.x, 'a + b || c + d'",
        graph(convolution("branch1 + relu1 || branch2 + relu2", HALF8, weights="Half")),
        {"branch1": "fp16", "branch2": "fp16"},
    ),
    "newest": Shape(
        "Migration guide 11.0, 'Migrating IEngineInspector Usage from TensorRT 10.x to 11.x'", _newest(),
        {"conv1": "fp16"},
    ),
    "profiles": Shape(
        "TREX trex/parser.py `filter_profiles`: layers of all profiles, those of the first without a number",
        graph(
            convolution("conv1 + relu1", HALF8, weights="Half"),
            convolution("conv1 + relu1 [profile 1]", FP32, weights="Float"),
            reformat("conv1 + relu1 [profile 1]"),
        ),
        {"conv1": "fp16"},
    ),
}  # fmt: skip
