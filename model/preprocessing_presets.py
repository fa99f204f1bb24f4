"""Preprocessing that has a name of its own: how images of ImageNet and CIFAR-10 are commonly prepared."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from ..errors import InvalidOption
from ..files import require_file
from .preprocessing import ImagePreprocessing, Preprocessing, read_preprocessing

PRESETS: dict[str, Preprocessing] = {
    "imagenet": ImagePreprocessing(
        source="imagenet",
        height=224,
        width=224,
        resize=(256,),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    ),
    "cifar10": ImagePreprocessing(
        source="cifar10",
        height=32,
        width=32,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        classes=(
            "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
        ),
    ),
}  # fmt: skip
"""Name to preprocessing; `input` is left to whoever knows the model."""


def find_preprocessing(name: str) -> Preprocessing:
    """Return the preprocessing of a name, or of a JSON file as `preprocessing.as_json` writes it.

    Raises:
        InvalidOption: If there is no such name, with the near ones, or the file is none.
        MissingFile: If there is no such file.
    """
    if name in PRESETS:
        return PRESETS[name]
    if name.endswith(".json"):
        return _from_file(Path(name))
    near = difflib.get_close_matches(name, PRESETS, n=1)
    raise InvalidOption(
        f"preprocessing {name!r}; {', '.join(PRESETS)}, or FILE.json is required",
        hint=f"did you mean {near[0]}?" if near else "",
        option="preprocessing",
    )


def _from_file(path: Path) -> Preprocessing:
    require_file(path, what="preprocessing")
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise InvalidOption(f"preprocessing {path}: cannot be read as JSON ({error})") from error
    return read_preprocessing(value)
