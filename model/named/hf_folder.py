"""Find a transformers model: a folder, or a snapshot in the local cache of Hugging Face; read its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import ModelError, first_line
from ..source import Source
from .caches import hub_cache, network, not_cached

_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
               "merges.txt", "tokenizer_config.json")  # fmt: skip


def find_folder(source: Source, *, weights: bool) -> Path:
    """Return the folder with a model's files.

    Args:
        source: A folder, or a name, which is looked up in the cache and downloaded where that is allowed.
        weights: Whether its weights are needed, too.
    """
    folder = source.path or _snapshot(source, weights=weights)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{source.spec}: {folder} holds no config.json",
            hint="give a folder that save_pretrained of transformers wrote",
            file=folder,
        )
    if weights and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        if source.path is None:
            raise not_cached(source.spec, f"the weights of {source.name}", hub_cache())
        raise ModelError(
            f"{source.spec}: {folder} holds no weights (model.safetensors)",
            hint="give `weights` random, or `weights` FILE, or save the model with save_pretrained",
            file=folder,
        )
    return folder


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return a JSON file of a folder; empty where it is not there."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON ({first_line(error)})", file=path) from error
    return value if isinstance(value, dict) else {}


def processor_of(folder: Path, part: str) -> dict[str, Any]:
    """Return what a folder says of its processor.

    Args:
        folder: The model's.
        part: "image_processor" or "feature_extractor", which newer files keep below that name.
    """
    whole = read_json(folder, "processor_config.json")
    inner = whole.get(part)
    if isinstance(inner, dict):
        return inner
    return read_json(folder, "preprocessor_config.json") or (whole if f"{part}_type" in whole else {})


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer."""
    return any((folder / name).is_file() for name in _TOKENIZERS)


def _snapshot(source: Source, *, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    options = source.options
    try:
        with network(options.download):
            if not options.download:
                return Path(snapshot_download(source.name, cache_dir=hub_cache(), local_files_only=True))
            patterns = [*_FILES, *(["*.safetensors"] if weights else [])]
            folder = Path(snapshot_download(source.name, cache_dir=hub_cache(), allow_patterns=patterns))
            if weights and not any(folder.glob("*.safetensors")):
                patterns.append("pytorch_model*.bin")
                folder = Path(snapshot_download(source.name, cache_dir=hub_cache(), allow_patterns=patterns))
            return folder
    except Exception as error:  # of the network, of the hub, or of the cache
        if not options.download:
            raise not_cached(source.spec, source.name, hub_cache()) from error
        raise ModelError(
            f"{source.spec}: {source.name} cannot be downloaded: {first_line(error)}",
            hint="check the name, or copy the model's files here and give hf:FOLDER",
        ) from error
