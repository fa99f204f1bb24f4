"""`qcompile inspect --tensor-cores`: the sizes of a model's layers, judged for Tensor Cores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..engines.doctor.gpu_types import gpu_types
from ..errors import InvalidOption
from ..files import require_file
from ..model.onnx_file import load_onnx
from ..model.tensor_cores import ALIGNMENT, tensor_core_sizes


def tensor_core_facts(path: Path, *, precision: str = "fp16", gpus: Sequence[str] = ()) -> dict[str, Any]:
    """Return the sizes of the layers of an ONNX file, ready for JSON.

    Args:
        path: ONNX file; its weights are not read.
        precision: What the layers are to be multiplied in.
        gpus: Compute capabilities to ask whether their Tensor Cores take it.

    Raises:
        InvalidOption: If Tensor Cores have no such precision, or a GPU is spelled otherwise.
        MissingFile, ModelError: If the file is missing or damaged.
    """
    if precision not in ALIGNMENT:
        raise InvalidOption(
            f"`precision` {precision}: Tensor Cores multiply {', '.join(ALIGNMENT)}", option="precision"
        )
    asked = [(types, types.why_not(precision)) for types in map(gpu_types, gpus)]
    sizes = tensor_core_sizes(load_onnx(require_file(path), external_data=False), precision)
    return {
        **sizes.as_json(),
        "gpus": [{"gpu": one.capability, "why_not": why} for one, why in asked],
        "summary": summary(sizes.as_json()),
    }


def summary(facts: dict[str, Any]) -> str:
    """Return the sentence about the whole model."""
    odd = [one for one in facts["layers"] if one["kind"] == "unaligned"]
    precision, multiple = facts["precision"].upper(), facts["alignment"]
    if not facts["layers"]:
        return "no layer multiplies, or no size is known"
    if not odd:
        text = f"all layers fit Tensor Cores in {precision}: their sizes are multiples of {multiple}"
    else:
        text = (
            f"{len(odd)} of {len(facts['layers'])} layers, {facts['unaligned_share']:.1%} of the "
            f"multiply-adds, have sizes that are no multiple of {multiple} ({precision}); padded, "
            f"{facts['wasted_share']:.1%} of the model's multiply-adds are of zeros: an upper bound of the "
            "gain, computed, not measured"
        )
    if facts["depthwise_share"]:
        text += f"; {facts['depthwise_share']:.1%} are depthwise, where padding gains nothing"
    return text
