"""Layers whose sizes do not fit Tensor Cores, and what padding them costs and would gain.

A Tensor Core multiplies tiles. Kernels read operands 16 bytes at a time, so the sizes that lie in memory one
beside the other should be multiples of 16 bytes: channels of a convolution, K and N of a product of M x K by
K x N.

| source | says |
|---|---|
| NVIDIA, "Matrix Multiplication Background User's Guide", Tensor Core requirements (docs.nvidia.com/deeplearning/performance) * | M, N and K in multiples of 16 bytes: 4 of TF32, 8 of FP16 and BF16, 16 of INT8; since cuBLAS 11.0 others run too, less efficiently |
| NVIDIA, "Tips for Optimizing GPU Performance Using Tensor Cores" (developer.nvidia.com/blog) * | channels, layer sizes, batch and vocabularies: multiples of 8 for FP16, 16 for INT8 |
| TensorRT, "Best Practices", Optimizing for Tensor Cores (docs.nvidia.com/deeplearning/tensorrt) * | channels of convolutions, K and N of products: TF32 4, FP16 8, INT8 32; TensorRT pads others implicitly, up to the next multiple |
| TensorRT's Python API, `TensorFormat` | formats pad the channels: HWC8 to a multiple of 8 |
| NVIDIA/TensorRT issue 3876 | an engine's inspector: `Channel major FP16 format where channel % 8 == 0` for a convolution of 50 channels |
| cutlass issue 75 | most kernels for Tensor Cores require memory accesses aligned to 128 bits |

Rows with * name where NVIDIA states the multiples; their pages were not open when this was written. FP8 counts as
INT8, and INT4 and FP4 as 32 elements, by the same 16 bytes. All figures are computed from sizes. Nothing was
measured: a kernel can be chosen for other reasons, and memory can be the limit.
"""  # noqa: E501 (a table's row is a line)

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from .graph import attribute, infer_shapes, without_weights
from .multiply_adds import known_shapes, multiply_adds

if TYPE_CHECKING:
    import onnx

ALIGNMENT: Mapping[str, int] = {
    "tf32": 4, "fp16": 8, "bf16": 8, "int8": 16, "fp8": 16, "mxfp8": 16, "int4": 32, "nvfp4": 32,
}  # fmt: skip
"""Precision to the multiple that sizes should be: 16 bytes."""
TENSORRT_ALIGNMENT: Mapping[str, int] = {**ALIGNMENT, "int8": 32}
"""The multiples that TensorRT pads to, where its guide names others."""

Kind = Literal["aligned", "unaligned", "depthwise"]
Dims = tuple[int | str, ...]
Extents = tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """A layer as a product of M x K by K x N, `groups` times.

    Attributes:
        k, n: Sizes within a group; of a convolution, its channels. None where an axis is dynamic.
        m: Rows; None of a convolution, whose rows are pixels, and where an axis is dynamic.
        groups: Of a convolution; 1 otherwise.
    """

    k: int | None
    n: int | None
    m: int | None = None
    groups: int = 1


@dataclass(frozen=True)
class LayerSizes:
    """A layer that multiplies.

    Attributes:
        name: Of the node.
        operator: Its type.
        groups: Of a convolution; 1 otherwise.
        k, n, m: As `Product` has them.
        padded_k, padded_n, padded_m: The next multiples; None where the size is.
        multiply_adds: Without padding, of the example's extents.
        share: Of the model's multiply-adds.
        wasted_share: Of the padded multiply-adds of this layer, those of zeros in K and N.
        wasted_rows: Of the padded rows, those of zeros; 0 where M is not known.
        kind: "aligned", "unaligned" or "depthwise".
        below_tensorrt: Whether it is aligned, and no multiple of what TensorRT's guide asks for.
    """

    name: str
    operator: str
    groups: int
    k: int | None
    n: int | None
    m: int | None
    padded_k: int | None
    padded_n: int | None
    padded_m: int | None
    multiply_adds: int
    share: float
    wasted_share: float
    wasted_rows: float
    kind: Kind
    below_tensorrt: bool


@dataclass(frozen=True)
class TensorCoreSizes:
    """Every layer of a model that multiplies, the largest first.

    Attributes:
        precision: What it is judged for.
        alignment: The multiple that sizes should be.
        tensorrt_alignment: The multiple of TensorRT's guide.
        layers: All that could be counted.
        multiply_adds: Of the model.
        unaligned_share: Share of the multiply-adds in unaligned layers.
        depthwise_share: Share of those in depthwise convolutions, whose padding gains nothing.
        wasted_share: Of the padded multiply-adds of the model, those of zeros: at most so much is saved where
            the sizes are multiples and no larger than now. An upper bound, computed.
    """

    precision: str
    alignment: int
    tensorrt_alignment: int
    layers: tuple[LayerSizes, ...]
    multiply_adds: int
    unaligned_share: float
    depthwise_share: float
    wasted_share: float

    def as_json(self) -> dict[str, object]:
        """Return the `--json` form."""
        return asdict(self)


def tensor_core_sizes(model: onnx.ModelProto, precision: str = "fp16") -> TensorCoreSizes:
    """Return the sizes of all layers that multiply, and what padding to Tensor Cores means for each.

    Args:
        model: A float graph, or one with Q/DQ; its weights need not be loaded.
        precision: A key of `ALIGNMENT`.
    """
    alignment, tensorrt = ALIGNMENT[precision], TENSORRT_ALIGNMENT[precision]
    counts = multiply_adds(model)
    shapes: Mapping[str, Dims] = {**infer_shapes(without_weights(model)), **_stored(model)}
    known = known_shapes(model)
    total = sum(counts.values())
    layers = []
    for node in model.graph.node:
        reader = _PRODUCTS.get(node.op_type)
        if reader is None or node.name not in counts:
            continue
        product = reader(node, shapes, known)
        if product is not None:
            share = counts[node.name] / total if total else 0.0
            layers.append(_judged(node, product, counts[node.name], share, alignment, tensorrt))
    layers.sort(key=lambda one: -one.multiply_adds)
    padded = sum(one.multiply_adds / (1 - one.wasted_share) for one in layers)
    counted = sum(one.multiply_adds for one in layers)
    return TensorCoreSizes(
        precision, alignment, tensorrt, tuple(layers), total,
        _share(layers, "unaligned"), _share(layers, "depthwise"),
        1 - counted / padded if padded else 0.0,
    )  # fmt: skip


def next_multiple(extent: int, multiple: int) -> int:
    """Return the least multiple that is not below an extent."""
    return -(-extent // multiple) * multiple


def _judged(
    node: onnx.NodeProto, product: Product, count: int, share: float, alignment: int, tensorrt: int
) -> LayerSizes:
    padded = [None if size is None else next_multiple(size, alignment) for size in (product.k, product.n)]
    padded_m = None if product.m is None else next_multiple(product.m, alignment)
    depthwise = product.groups > 1 and product.k == 1
    fits = all(size == even for size, even in zip((product.k, product.n), padded, strict=True))
    kind: Kind = "depthwise" if depthwise else "aligned" if fits else "unaligned"
    wasted = 0.0
    if kind == "unaligned":
        kept = math.prod(
            size / even for size, even in zip((product.k, product.n), padded, strict=True) if size and even
        )
        wasted = 1 - kept
    return LayerSizes(
        node.name, node.op_type, product.groups, product.k, product.n, product.m,
        padded[0], padded[1], padded_m, count, share, wasted,
        0.0 if not product.m or not padded_m else 1 - product.m / padded_m, kind,
        kind == "aligned" and any(size and size % tensorrt for size in (product.k, product.n)),
    )  # fmt: skip


def _share(layers: Sequence[LayerSizes], kind: Kind) -> float:
    return sum(one.share for one in layers if one.kind == kind)


def _stored(model: onnx.ModelProto) -> dict[str, Dims]:
    return {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}


def _fixed(shapes: Mapping[str, Dims], name: str, axis: int) -> int | None:
    """An extent that is a number whatever the input is."""
    shape = shapes.get(name, ())
    extent = shape[axis] if -len(shape) <= axis < len(shape) else None
    return extent if isinstance(extent, int) else None


def _convolution(node: onnx.NodeProto, _: Mapping[str, Dims], known: Mapping[str, Extents]) -> Product | None:
    weight = known.get(node.input[1])
    if weight is None:
        return None
    groups = int(attribute(node, "group", 1))
    if node.op_type == "ConvTranspose":  # weights: channels in, channels out of a group
        return Product(weight[0] // groups, weight[1], groups=groups)
    return Product(weight[1], weight[0] // groups, groups=groups)


def _gemm(node: onnx.NodeProto, shapes: Mapping[str, Dims], _: Mapping[str, Extents]) -> Product | None:
    left, right = node.input[0], node.input[1]
    first, second = attribute(node, "transA", 0), attribute(node, "transB", 0)
    k = _fixed(shapes, right, 1 if second else 0) or _fixed(shapes, left, 0 if first else 1)
    return Product(k, _fixed(shapes, right, 0 if second else 1), _fixed(shapes, left, 1 if first else 0))


def _matmul(node: onnx.NodeProto, shapes: Mapping[str, Dims], known: Mapping[str, Extents]) -> Product | None:
    left, right = node.input[0], node.input[1]
    if len(known.get(left, ())) < 2 or len(known.get(right, ())) < 2:
        return None  # a product with a vector is no product of matrices
    k = _fixed(shapes, right, -2) or _fixed(shapes, left, -1)
    rows = shapes.get(left, ())[:-1] if len(known[right]) == 2 else shapes.get(left, ())[-2:-1]
    numbers = [row for row in rows if isinstance(row, int)]
    m = math.prod(numbers) if rows and len(numbers) == len(rows) else None
    return Product(k, _fixed(shapes, right, -1), m)


_PRODUCTS: Mapping[
    str, Callable[[onnx.NodeProto, Mapping[str, Dims], Mapping[str, Extents]], Product | None]
] = {
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "ConvTranspose": _convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
}
