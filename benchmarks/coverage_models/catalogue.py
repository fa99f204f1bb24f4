"""Every architecture of the coverage benchmark by its key; each key is a function that MODEL can name.

qcompile export benchmarks/coverage_models/catalogue.py:timm_resnet10t -o m.onnx --dynamic x:0=batch
"""

from __future__ import annotations

from itertools import chain, zip_longest

import hand_written
import hand_written_sequences
import hand_written_structures
import timm_models
import torchvision_detection
import torchvision_models
import transformers_audio
import transformers_generative
import transformers_text
import transformers_vision
import transformers_vision_tasks
from architecture import Architecture

FAMILIES = (
    transformers_text, transformers_generative, transformers_vision, transformers_vision_tasks,
    transformers_audio, timm_models, torchvision_models, torchvision_detection, hand_written,
    hand_written_sequences, hand_written_structures,
)  # fmt: skip


def _collect() -> dict[str, Architecture]:
    """One of each family in turn, so that the first results speak for all."""
    found: dict[str, Architecture] = {}
    for one in chain.from_iterable(zip_longest(*(family.ARCHITECTURES for family in FAMILIES))):
        if one is None:
            continue
        if one.key in found or not one.key.isidentifier():
            raise ValueError(f"architecture {one.key!r}: its key is taken, or no identifier")
        found[one.key] = one
    return found


ARCHITECTURES = _collect()


def __getattr__(name: str) -> object:
    if name in ARCHITECTURES:
        return ARCHITECTURES[name].build
    raise AttributeError(name)
