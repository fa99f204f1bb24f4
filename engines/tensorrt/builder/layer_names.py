"""Find the layers of the network in the name and the metadata of an engine's layer.

    Conv_5 + Add_6 + Relu_7                        layers in one kernel (TREX, resnet fp16, 8.4)
    conv1.weight + QuantizeLinear_7 + Conv_9       with the constants and Q/DQ that went in (TREX, resnet qat)
    Conv_48 + PWN(Clip_52)                         pointwise layers, at times nested (TREX, mobilenet_v2 qat)
    conv_a || conv_b                               side by side on one input
    Conv_0 + Relu_1 [profile 1]                    of another profile than the first (TREX, trex/parser.py)
    {ForeignNode[first...last]}                    a block: two of its layers (issue 4397)
    /a/MatMul+/b/MatMul_myl0_44                    a kernel of a block; dots are underscores (issue 4397)

From 8.6 on `Metadata` has the ONNX nodes, `[ONNX Layer: NAME | PROPERTY ...]`, one behind the other or with
a control character between them (onnx-tensorrt, 10.0-GA importerUtils.cpp `processMetadata`; issue 2779). A
node that became several layers has its name there; layers have numbers behind it (`generateUniqueName`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROFILE = re.compile(r"\s*\[profile +(\d+)\]")
_BLOCK = re.compile(r"\{ForeignNode\[(.*)\.\.\.(.*)\]\}", re.DOTALL)
_KERNEL = re.compile(r"_myl\d+_\d+$")
_SEPARATORS = re.compile(r" \+ | \|\| |[\x1e\x1f]")
_POINTWISE = re.compile(r"PWN\(|\)|, ")
_NODE = re.compile(r"\[ONNX Layer: (.*?)(?: \| [^\x1e\x1f]*?)?\](?=\[ONNX Layer: |[\x1e\x1f\s+]|$)")


@dataclass(frozen=True)
class Members:
    """What an engine's layer is made of.

    Attributes:
        layers: Names of the network's layers.
        nodes: Names of ONNX nodes.
        kernels: Names of layers with underscores for dots.
    """

    layers: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()

    def has(self, layer: str, node: str = "") -> bool:
        """Whether a layer of the network is among them.

        Args:
            layer: Its name.
            node: The ONNX node that it was made of, where the network tells.
        """
        found = layer in self.layers or layer in self.nodes or layer.replace(".", "_") in self.kernels
        return found or (bool(node) and node in self.nodes)


def members(name: str, metadata: str = "") -> Members:
    """Return what the inspector says that a layer is made of."""
    nodes = frozenset(_NODE.findall(metadata))
    plain = _PROFILE.sub("", name)
    kernel = _KERNEL.sub("", plain)
    if kernel != plain:
        return Members(nodes=nodes, kernels=frozenset(_parts(kernel, "+")))
    block = _BLOCK.search(plain)
    if block is not None:
        return Members(frozenset(part for end in block.groups() for part in _parts(end)), nodes)
    return Members(frozenset(_parts(plain)), nodes)


def profile_of(name: str) -> int:
    """Return the profile that a layer belongs to: 0 where its name tells none."""
    found = _PROFILE.search(name)
    return int(found.group(1)[:9]) if found else 0


def in_metadata(metadata: str) -> str:
    """Return the ONNX node that a network layer's metadata names first; empty where it names none."""
    found = _NODE.search(metadata)
    return found.group(1) if found else ""


def _parts(text: str, separator: str = "") -> list[str]:
    parts = text.split(separator) if separator else _SEPARATORS.split(text)
    return [*parts, *(inner for part in parts if "PWN(" in part for inner in _POINTWISE.split(part) if inner)]
