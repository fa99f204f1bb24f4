"""Preprocessing by name: of ImageNet, of CIFAR-10, of another model by name, or of a file."""

from __future__ import annotations

import difflib
from pathlib import Path

from ..errors import InvalidOption
from ..files import digest_files, read_json, require_file
from .preprocessing import Preprocessing, preprocessing_of, read_preprocessing
from .preprocessing_presets import PRESETS
from .source import NAMED, digest_source, parse_source, source_files


def find_preprocessing(name: str, *, base: Path | None = None) -> Preprocessing:
    """Return the preprocessing of a name, of a model by name, or of a file as `as_json` writes it.

    Args:
        name: "imagenet", "cifar10", "timm:NAME", "torchvision:NAME", "hf:NAME_OR_FOLDER" or "FILE.json".
        base: Folder of relative paths; the working folder by default.
    """
    if name in PRESETS:
        return PRESETS[name]
    if _is_model(name):
        return _of_model(name, base)
    if name.endswith(".json"):
        return _from_file((base or Path.cwd()) / Path(name).expanduser())
    near = difflib.get_close_matches(name, PRESETS, n=1)
    raise InvalidOption(
        f"preprocessing {name!r}; {', '.join(PRESETS)}, a model by name, or FILE.json is required",
        hint=f"did you mean {near[0]}?" if near else "",
        option="preprocessing",
    )


def digest_preprocessing(name: str, *, base: Path | None = None) -> str:
    """Return a digest that changes when what a name stands for may have changed; empty for no name."""
    if _is_model(name):
        return digest_source(parse_source(name, base=base))
    if name.endswith(".json"):
        path = require_file((base or Path.cwd()) / Path(name).expanduser(), what="preprocessing")
        return digest_files([path])
    return name


def preprocessing_files(name: str, *, base: Path | None = None) -> list[Path]:
    """Return the files that a name stands for: none for a preset, or for a model by its name."""
    if _is_model(name):
        return source_files(parse_source(name, base=base))
    if name.endswith(".json"):
        return [require_file((base or Path.cwd()) / Path(name).expanduser(), what="preprocessing")]
    return []


def _is_model(name: str) -> bool:
    kind, colon, _ = name.partition(":")
    return bool(colon) and kind in NAMED


def _of_model(name: str, base: Path | None) -> Preprocessing:
    from .named.load import describe_named

    found = preprocessing_of(describe_named(parse_source(name, base=base)).inputs)
    if found is None:
        raise InvalidOption(
            f"preprocessing {name}: the model has none: neither a tokenizer nor a processor lies beside it",
            option="preprocessing",
        )
    return found


def _from_file(path: Path) -> Preprocessing:
    return read_preprocessing(read_json(path, what="preprocessing"))
