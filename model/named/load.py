"""Load or describe a model by name, whichever package it is of."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import EngineUnavailable, InvalidOption
from ...progress import quiet
from ..source import Source, SourceKind
from ..source_options import RANDOM
from ..torch_import import import_torch
from .description import Description

if TYPE_CHECKING:
    from ..loaded_model import LoadedModel

_PACKAGES: dict[SourceKind, str] = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}
_DOMAIN_SEED = 0


@dataclass(frozen=True)
class _Package:
    describe: Callable[[Source], Description]
    load: Callable[[Source, Description], Any]


def why_not(kind: SourceKind) -> str:
    """Return why models of a package cannot be loaded here; empty where they can.

    Args:
        kind: "torchvision", "timm" or "hf".
    """
    try:
        import_torch()
    except EngineUnavailable as error:
        return error.message
    package = _PACKAGES[kind]
    return "" if importlib.util.find_spec(package) else f"{package} is not installed"


def describe_named(source: Source) -> Description:
    """Return task, inputs, preprocessing and outputs of a model by name, without its weights."""
    _import(source)
    with quiet():
        return _package(source).describe(source)


def load_named(source: Source) -> LoadedModel:
    """Load a model by name, in evaluation mode, with an example of its inputs."""
    from pathlib import Path

    from ..loaded_model import LoadedModel
    from ..weights import load_weights

    warning = _import(source)
    torch = import_torch()
    options = source.options
    if options.classes and not options.weights:
        raise InvalidOption(
            f"model {source.spec}: its own weights are for its own classes; with `classes`, `weights` random "
            "or FILE is required",
            hint="leave classes out",
        )
    package = _package(source)
    with quiet():
        description = package.describe(source)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            module = package.load(source, description)
        if options.file:
            load_weights(inner_module(module), Path(options.file), source.spec)
        module = module.eval().requires_grad_(False)
    example = {name: torch.from_numpy(array) for name, array in description.example(_DOMAIN_SEED).items()}
    sees = source.kind != "hf" or any(tensor.name == "pixel_values" for tensor in description.inputs)
    warnings = [text for text in (warning if sees else "", *description.notes) if text]
    if options.weights == RANDOM:
        warnings.append(f"the weights are random (seed {options.seed}): outputs mean nothing")
    return LoadedModel(
        module,
        example,
        inputs=description.inputs,
        output_names=description.outputs,
        warnings=tuple(warnings),
    )


def _package(source: Source) -> _Package:
    if source.kind == "torchvision":
        from .torchvision_models import describe_torchvision, load_torchvision

        return _Package(describe_torchvision, load_torchvision)
    if source.kind == "timm":
        from .timm_models import describe_timm, load_timm

        return _Package(describe_timm, load_timm)
    from .hf_models import describe_hf, load_hf

    return _Package(describe_hf, load_hf)


def _import(source: Source) -> str:
    """Import the package; return a warning of what is wrong with it."""
    from .torchvision_import import declare_torchvision_operators

    reason = why_not(source.kind)
    if reason:
        raise EngineUnavailable(
            f"model {source.spec}: {reason}", hint="pip install 'qcompile[models]'", engine="pytorch"
        )
    warning = declare_torchvision_operators()
    try:
        with quiet():
            __import__(_PACKAGES[source.kind])
    except Exception as error:  # a package that does not suit another one fails in many ways
        raise EngineUnavailable(
            f"model {source.spec}: {_PACKAGES[source.kind]} cannot be imported ({error})",
            hint="pip install 'qcompile[models]', into an environment of its own",
            engine="pytorch",
        ) from error
    return warning


def inner_module(module: Any) -> Any:
    """Return the package's own module, whose names of tensors a file of weights has."""
    for name in ("module", "inner"):
        inner = getattr(module, name, None)
        if type(module).__module__.startswith(__package__ or "-") and inner is not None:
            return inner
    return module
