"""Known faults: graphs for which TensorRT builds, without an error, an engine that computes wrong results.

An entry has the public report or source of the fault, the versions, and the action: rewrite the graph, refuse
the build, or warn. This project has seen no fault of the list on a GPU. "Parser" in a comment means that the
parser's source, or the network that TensorRT-RTX's parser creates, shows the fault. `versions` are the first
version with the fault ("" for the oldest) and the first without it ("" if not fixed).
"""

from __future__ import annotations

from ..words import KnownFault

_HALVES = ("fp16", "bf16")


KNOWN_FAULTS: tuple[KnownFault, ...] = (
    # Parser: importGridSample of 10.1-GA; TensorRT-RTX 1.7.1 reads the mode correctly, 1.5 did not.
    KnownFault("grid-sample-mode", "GridSample", ("NVIDIA/TensorRT 4646", "onnx/onnx-tensorrt 1060"),
               "of opset 20 on is read as mode nearest, because the parser knows only the modes' older names",
               "rewrite", versions={"tensorrt": ("10.0", ""), "tensorrt-rtx": ("", "1.7")}),
    # TensorRT 10.8 is the first with ICumulativeLayer.
    KnownFault("cumsum-axes", "CumSum",
               ("NVIDIA/TensorRT 4551", "NVIDIA/TensorRT 4513", "onnx/onnx-tensorrt 1034"),
               "is computed along the axis of another CumSum if the two differ in axis or direction",
               "rewrite", versions={"tensorrt": ("10.8", ""), "tensorrt-rtx": ("", "")}),
    KnownFault("deformable-attention", "GridSample",
               ("NVIDIA/TensorRT 4813", "lightly-ai/lightly-train 917", "rerun-io/examples-monorepo 88"),
               "in the branches of a deformable attention is fused with its consumers into wrong values",
               "rewrite", versions={"tensorrt": ("10.13", "")}),
    # Parser: modWithIntegerInputs of 8.5-GA to 10.1-GA, FLOOR_DIV.
    KnownFault("mod-by-float", "Mod", ("NVIDIA/TensorRT 4702",),
               "of large integers is too low by one divisor, because the parser rounds a quotient of floats",
               "rewrite", versions={"tensorrt": ("8.5", ""), "tensorrt-rtx": ("", "")}),
    # Parser: normalizationHelper of 8.6-GA to 10.1-GA; the network of TensorRT-RTX 1.7.1.
    KnownFault("group-norm-of-one", "GroupNormalization", ("NVIDIA/TensorRT 4756",),
               "of one group is computed as InstanceNormalization",
               "rewrite", versions={"tensorrt": ("8.6", ""), "tensorrt-rtx": ("", "")}),
    # Parser: the network of TensorRT-RTX 1.7.1 has the outputs of layout 0.
    KnownFault("recurrent-layout", "LSTM, GRU and RNN",
               ("onnx-tensorrt 8.5-GA and 10.1-GA: no importer reads `layout`",),
               "of layout 1 are read as layout 0, with batch and time exchanged",
               "rewrite", versions={"tensorrt": ("8.5", ""), "tensorrt-rtx": ("", "")}),
    KnownFault("shape-slice", "Shape", ("onnx-tensorrt 8.5-GA and 8.6-GA: importShape reads no attribute",),
               "with `start` or `end` returns all axes",
               "rewrite", versions={"tensorrt": ("8.5", "10.0")}),
    KnownFault("scatter-reduction", "ScatterElements and ScatterND",
               ("onnx-tensorrt 8.5-GA and 8.6-GA: no importer reads `reduction`", "NVIDIA/TensorRT 3462"),
               "with a reduction overwrite elements instead",
               "refuse", hint="use TensorRT 10, or add in the model by other operators",
               versions={"tensorrt": ("8.5", "10.0")}),
    KnownFault("resize-behind-if", "Resize", ("NVIDIA/TensorRT 4846",),
               "of a transposed output of an If reads this output as if it were not transposed",
               "refuse", hint="transpose before the If, or inside its branches",
               versions={"tensorrt": ("11.1", "")}),
    KnownFault("transposed-input-attention", "MatMul", ("NVIDIA/TensorRT 4826",),
               "of an attention in half precision reads a transposed input with strides of another order",
               "refuse", hint="give the input in the order in which the attention reads it, or build in fp32",
               precisions=_HALVES, versions={"tensorrt": ("11.2", "")}),
    # Reported for one model, from 10.x to 10.16.1.
    KnownFault("fused-attention-sm120", "MatMul", ("NVIDIA/TensorRT 4837",),
               "of an attention in half precision is fused to one kernel that is wrong on consumer Blackwell",
               "warn", precisions=_HALVES, gpus=("sm120",), versions={"tensorrt": ("10.0", "")}),
    # Reported for SegFormer only, in 10.11 and 11.1, also in fp32; the cause is unknown.
    KnownFault("batched-reduced-keys", "MatMul", ("NVIDIA/TensorRT 4853",),
               "of an attention whose keys a strided convolution reduces is wrong in a batch above 1 "
               "(SegFormer)",
               "warn", versions={"tensorrt": ("10.11", "")}),
    # Reported for DINOv3 only, in 10.4, and in FP16 in 10.3; the cause is unknown.
    KnownFault("partly-rotated-attention", "MatMul", ("NVIDIA/TensorRT 4742", "NVIDIA/TensorRT 4723"),
               "of an attention that rotates all but the first tokens is computed wrongly (DINOv3)",
               "warn", versions={"tensorrt": ("10.3", "10.5")}),
    # Each profile is verified after the build.
    KnownFault("several-profiles", "engine", ("NVIDIA/TensorRT 4250",),
               "of several optimization profiles computes something else in one of them",
               "warn", profiles=2, versions={"tensorrt": ("8.5", "10.8")}),
    # Reported for PromptDA only, in every precision.
    KnownFault("normalized-and-back", "ReduceMin and ReduceMax", ("rerun-io/examples-monorepo 87",),
               "of an input, if they normalize the input and later scale the result back, are fused into "
               "wrong values; as outputs of the model they are not fused",
               "warn", versions={"tensorrt": ("11.2", "")}),
)  # fmt: skip
