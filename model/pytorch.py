"""Load a PyTorch model from any spelling of MODEL, in evaluation mode. Nothing here unpickles a checkpoint.

A `.pt2` that holds more than weights and operators is refused, see `pt2_archive`.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifact import checked_input
from ..errors import ModelError, first_line
from ..progress import quiet
from .archive_checks import check_archive, is_archive
from .loaded_model import LoadedModel as LoadedModel
from .pt2_archive import check_torchscript, is_trusted, program_checked
from .source import TENSORFLOW_KINDS, Source
from .torch_import import import_torch as import_torch
from .user_code import call, load_function
from .weights import load_weights

if TYPE_CHECKING:
    import torch

_TRAINING = re.compile("Dropout|DropPath|StochasticDepth|BatchNorm|InstanceNorm|RReLU")
"""Layers that compute something else in training, by their names."""


def load_torch(source: Source, device: str = "cpu") -> LoadedModel:
    """Load a PyTorch source, in evaluation mode.

    Args:
        source: What MODEL says.
        device: Where its parameters go: "cpu", or "cuda:0".
    """
    if source.is_named:
        from .named.load import load_named

        named = load_named(source)
        return named if device == "cpu" else replace(named, module=named.module.to(device))
    torch = import_torch()
    if source.kind == "onnx":
        raise ModelError(
            f"{source.spec}: an ONNX file cannot be run by PyTorch",
            hint="give the PyTorch model it was exported from",
        )
    if source.kind in TENSORFLOW_KINDS:
        raise ModelError(
            f"{source.spec}: a TensorFlow model cannot be run by PyTorch",
            hint="export it, and give the ONNX file",
        )
    if source.kind in ("pt2", "torchscript"):
        checked_input(source.file, what="model")
    if source.kind == "pt2":
        return LoadedModel(_load_pt2(source.file, device), None)
    if source.kind == "torchscript":
        return LoadedModel(_load_torchscript(source.file, device), None)
    result = call(load_function(source), source)
    example = None
    if isinstance(result, tuple) and len(result) == 2:
        result, example = result
    if not isinstance(result, torch.nn.Module):
        raise ModelError(
            f"{source.spec}: returned {type(result).__name__}; an nn.Module is required",
            hint="return the module, or (module, example inputs)",
        )
    if source.options.file:
        load_weights(result, Path(source.options.file), source.spec)
    was_training = computes_otherwise_in_training(result)
    module = evaluated(result)
    if example is not None:
        from .nested import taken_apart

        module, example = taken_apart(module, example)
    return LoadedModel(module if device == "cpu" else module.to(device), example, was_training)


def computes_otherwise_in_training(module: torch.nn.Module) -> bool:
    """Return whether a module is in training mode and holds a layer to which that matters."""
    return any(part.training and _TRAINING.search(type(part).__name__) for part in module.modules())


def evaluated(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module in evaluation mode; what torchao's PT2E converted is in it already, and refuses."""
    try:
        return module.eval()
    except NotImplementedError:
        return module


def _load_pt2(path: Path, device: str) -> torch.nn.Module:
    torch = import_torch()
    check_archive(
        path, what="a program saved by torch.export.save",
        hint="save it with torch.export.save, with a PyTorch no newer than this one",
    )  # fmt: skip
    try:
        with program_checked(path), quiet():  # it logs tracebacks of what it raises as well
            program = torch.export.load(path)
        if device == "cpu":
            return program.module()  # type: ignore[no-any-return]
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{path}: not a program saved by torch.export.save ({first_line(error)})",
            hint="save it with torch.export.save, with a PyTorch no newer than this one",
            file=path,
        ) from error
    try:
        from torch.export.passes import move_to_device_pass

        return move_to_device_pass(program, device).module()
    except Exception as error:  # constants inside the graph are moved too, which not every PyTorch can
        raise ModelError(
            f"{path}: cannot be moved to {device} ({first_line(error)})",
            hint="save it with torch.export.save on that device, or run it on the processor",
            file=path,
        ) from error


def _load_torchscript(path: Path, device: str) -> torch.nn.Module:
    torch = import_torch()
    if is_archive(path):
        hint = "copy it again, or save it with torch.jit.save; its sums must be on (set_crc32_options)"
        check_archive(path, what="a TorchScript archive", hint=hint)
    if not _is_torchscript(path):
        raise ModelError(
            f"{path}: not a TorchScript archive; a checkpoint of pickled weights is never unpickled",
            hint="write a function that builds the module and loads the weights: model.py:build",
            file=path,
        )
    try:
        if not is_trusted():
            check_torchscript(path)
        with quiet():  # it warns of its own deprecation
            return torch.jit.load(str(path), map_location=device).eval()  # type: ignore[no-any-return]
    except RuntimeError as error:
        raise ModelError(f"{path}: PyTorch cannot load it ({first_line(error)})", file=path) from error


def _is_torchscript(path: Path) -> bool:
    """TorchScript archives are zip files with a `code/` folder; checkpoints have none."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())
