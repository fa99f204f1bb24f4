"""Load a file of weights into a module: .safetensors, or a state dict of `torch.save`, without unpickling.

Every tensor of the module must be in the file with its shape, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ModelError, first_line
from ..files import require_file
from .archive_checks import check_archive, is_archive
from .torch_import import import_torch

_SHOWN = 3
_WRAPPED = ("state_dict", "model_state_dict", "model", "weights")
"""Keys under which training loops keep the state dict of the model."""


def read_weights(path: Path) -> dict[str, Any]:
    """Return the tensors of a file by name."""
    require_file(path, what="weights")
    values = _read_safetensors(path) if path.suffix == ".safetensors" else _read_state_dict(path)
    torch = import_torch()
    others = [name for name, value in values.items() if not isinstance(value, torch.Tensor)]
    if others or not values:
        found = f"{others[0]!r} is {type(values[others[0]]).__name__}" if others else "it is empty"
        raise ModelError(
            f"{path}: {found}; a state dict, name to tensor, is required",
            hint="save it with torch.save(model.state_dict(), FILE) or safetensors.torch.save_model",
            file=path,
        )
    return dict(values)


def load_weights(module: Any, path: Path, label: str) -> None:
    """Give a module the weights of a file.

    Names that all begin with `module.` or `_orig_mod.`, as DistributedDataParallel and `torch.compile` write
    them, lose that beginning.

    Args:
        module: An `nn.Module`; it is changed.
        path: The file.
        label: The model's spelling, for messages.
    """
    given = _without_prefix(read_weights(path), module)
    own = module.state_dict()
    problems = _problems(own, given, _tied(own))
    if problems:
        raise ModelError(
            f"{label}: {path} does not fit the model: {'; '.join(problems)}",
            hint="give the file of this very model, with its number of classes",
            file=path,
        )
    try:
        module.load_state_dict(given, strict=False)
    except RuntimeError as error:
        raise ModelError(f"{label}: {path} cannot be loaded: {first_line(error)}", file=path) from error


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        values: dict[str, Any] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"{path}: not a safetensors file that can be read ({first_line(error)})", file=path
        ) from error
    return values


def _read_state_dict(path: Path) -> Mapping[str, Any]:
    torch = import_torch()
    if is_archive(path):
        check_archive(path, what="a state dict", hint="copy it again, or save it with torch.save once more")
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damage shows in many ways
        raise ModelError(
            f"{path}: not a state dict that loads without unpickling code ({first_line(error)})",
            hint="save it with torch.save(model.state_dict(), FILE) or as .safetensors",
            file=path,
        ) from error
    for key in _WRAPPED if isinstance(values, Mapping) else ():
        if isinstance(values.get(key), Mapping):
            values = values[key]
            break
    if not isinstance(values, Mapping):
        raise ModelError(
            f"{path}: holds {type(values).__name__}; a state dict, name to tensor, is required", file=path
        )
    return values


def _without_prefix(values: dict[str, Any], module: Any) -> dict[str, Any]:
    own = module.state_dict().keys()
    for prefix in ("module.", "_orig_mod."):
        if all(name.startswith(prefix) for name in values) and not any(n.startswith(prefix) for n in own):
            values = {name.removeprefix(prefix): value for name, value in values.items()}
    return values


def _tied(own: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Name to the names of the same memory: a file may hold one of them alone."""
    by_place: dict[Any, set[str]] = {}
    for name, value in own.items():
        if value.numel():
            by_place.setdefault((value.data_ptr(), tuple(value.shape), value.stride()), set()).add(name)
    return {name: frozenset(names) for names in by_place.values() for name in names}


def _problems(
    own: Mapping[str, Any], given: Mapping[str, Any], tied: Mapping[str, frozenset[str]]
) -> list[str]:
    missing = [name for name in own if name not in given and not any(o in given for o in tied.get(name, ()))]
    unexpected = [name for name in given if name not in own]
    mismatched = [
        f"{name} ({'x'.join(map(str, given[name].shape))} in place of {'x'.join(map(str, own[name].shape))})"
        for name in own
        if name in given and own[name].shape != given[name].shape
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", mismatched))
    return [f"{kind}: {_shown(names)}" for kind, names in kinds if names]


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
