"""Models of transformers: a folder, or a name in the local cache of Hugging Face; nothing of a hub is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import InvalidOption, ModelError, first_line
from ..source import Source
from ..torch_import import import_torch
from .caches import network
from .description import Description
from .hf_folder import find_folder
from .hf_inputs import read_inputs
from .hf_preprocessing import classes
from .hf_tasks import Choice, choose
from .hf_wrapper import PlainModel


def describe_hf(source: Source) -> Description:
    """Return what the configuration and the processors of a model say."""
    folder = find_folder(source, weights=False)
    config = _config(source, folder)
    choice = choose(source, config)
    inputs = read_inputs(source, choice, config, folder)
    name = source.path.name if source.path else source.name
    return Description(
        source.kind,
        name,
        choice.head.task or choice.name,
        inputs.tensors,
        (),
        classes(config) if choice.head.classifies else (),
        inputs.domains,
        inputs.notes,
    )


def load_hf(source: Source, description: Description) -> Any:
    """Return the module; it takes tensors by position, in the order of the description."""
    random = bool(source.options.weights)
    folder = find_folder(source, weights=not random)
    config = _config(source, folder)
    choice = choose(source, config)
    read_inputs(source, choice, config, folder)  # an asked-for size goes into the configuration
    model, untrained = (
        (_random(source, choice, config), False) if random else _trained(source, choice, config, folder)
    )
    if choice.encoder:
        model = model.get_encoder()
    left_out = ("pooler_output",) if untrained else ()
    return PlainModel(model, [tensor.name for tensor in description.inputs], left_out)


def _config(source: Source, folder: Path) -> Any:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # of an unknown type, or damaged
        raise ModelError(
            f"{source.spec}: transformers {transformers.__version__} cannot read its configuration: "
            f"{first_line(error)}",
            hint="install a newer transformers, or write a function: file.py:function",
            file=folder / "config.json",
        ) from error
    for part in _parts(config):
        for name, value in (("use_cache", False), ("return_dict", True)):
            if hasattr(part, name):
                setattr(part, name, value)
    if source.options.classes:
        if not choose(source, config).head.classifies:
            raise InvalidOption(f"model {source.spec}: has no classes to choose")
        config.num_labels = source.options.classes
    return config


def _parts(config: Any) -> list[Any]:
    """A configuration and those within it."""
    inner = [getattr(config, name, None) for name in ("text_config", "vision_config", "encoder", "decoder")]
    return [config, *(part for part in inner if hasattr(part, "to_dict"))]


def _random(source: Source, choice: Choice, config: Any) -> Any:
    try:
        return choice.model(config)
    except Exception as error:  # what a constructor refuses, it says in its own way
        raise ModelError(
            f"{source.spec}: {choice.model.__name__} cannot be made: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error


def _trained(source: Source, choice: Choice, config: Any, folder: Path) -> tuple[Any, bool]:
    """The model with its weights, and whether its pooler has none."""
    torch = import_torch()
    try:
        with network(allowed=False):
            model, report = choice.model.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                output_loading_info=True,
                torch_dtype=torch.float32,
            )
    except Exception as error:  # damaged, pickled, or of another shape
        raise ModelError(
            f"{source.spec}: the weights in {folder} cannot be loaded: {first_line(error)}", file=folder
        ) from error
    missing = sorted(map(str, report.get("missing_keys", ())))
    others = [name for name in missing if "pooler." not in name]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise ModelError(
            f"{source.spec}: the weights in {folder} lack {', '.join(others[:3])}{more} of "
            f"{choice.model.__name__}",
            hint="the head was never trained: choose another task, or `weights` random",
            file=folder,
        )
    return model, bool(missing)
