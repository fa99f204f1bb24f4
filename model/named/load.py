"""Load or describe a model by name, whichever package it is of.

torchvision registers `nms` and others from a compiled library. Where that library does not load beside this
PyTorch, `import torchvision` fails, and with it timm and the vision models of transformers. Their networks
need none of these operators. So they are declared first, and `nms` is computed in Python; the export warns.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import EngineUnavailable, InvalidOption
from ...progress import quiet
from ..pytorch import import_torch
from ..source import Source, SourceKind
from ..source_options import RANDOM
from .description import Description

if TYPE_CHECKING:
    from ..pytorch import LoadedModel

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_KEPT: list[Any] = []  # a library ends with its object
_reason_declared = ""


def mismatch() -> str:
    """Return why torchvision's operators do not load beside this PyTorch; empty where they do.

    Empty, too, where either package is missing.
    """
    library = _library()
    if library is None:
        return ""
    torch = import_torch()
    try:
        torch.ops.load_library(str(library))
    except OSError:
        versions = f"torchvision {importlib.metadata.version('torchvision')}, torch {torch.__version__}"
        return f"torchvision's operators do not load beside this PyTorch ({versions})"
    return ""


def declare_torchvision_operators() -> str:
    """Make `import torchvision` work where its operators do not load.

    Nothing is done where they load, where torchvision is missing, or where they are declared already.

    Returns:
        A warning that names the mismatch; empty where there is none.
    """
    global _reason_declared
    if not _KEPT and not hasattr(import_torch().ops.torchvision, "nms"):
        reason = mismatch()
        if reason:
            _define()
            _reason_declared = (
                f"{reason}; nms is computed in Python, other operators of torchvision.ops are not there"
            )
    return _reason_declared


def suppress(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Return the indices of the boxes that stay after greedy non-maximum suppression, best score first.

    Args:
        boxes: float32 [n, 4] as x0, y0, x1, y1.
        scores: float32 [n].
        iou_threshold: A box that overlaps a better one by more is dropped.
    """
    torch = import_torch()
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    order, kept = scores.argsort(descending=True, stable=True).tolist(), []
    while order:
        best = order.pop(0)
        kept.append(best)
        low = torch.maximum(boxes[order, :2], boxes[best, :2])
        high = torch.minimum(boxes[order, 2:], boxes[best, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        overlap = shared / (area[order] + area[best] - shared)
        order = [
            index for index, value in zip(order, overlap.tolist(), strict=True) if value <= iou_threshold
        ]
    return torch.tensor(kept, dtype=torch.int64)


def _define() -> None:
    torch = import_torch()
    library = torch.library.Library("torchvision", "DEF")
    _KEPT.append(library)
    for name in ("nms", "qnms"):
        library.define(f"{name}{_SIGNATURE}")
        library.impl(name, suppress, "CPU")
    from torchvision import extension

    extension._has_ops = lambda: True  # it would refuse to call them


def _library() -> Path | None:
    """torchvision's compiled operators; None where torchvision is missing."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    return next((path for pattern in ("_C*.so", "_C*.pyd") for path in folder.glob(pattern)), None)


_PACKAGES: dict[SourceKind, str] = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}
_DOMAIN_SEED = 0


def why_not(kind: SourceKind) -> str:
    """Return why models of a package cannot be loaded here; empty where they can."""
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
        return _package(source)[0](source)


def load_named(source: Source) -> LoadedModel:
    """Load a model by name, in evaluation mode, with an example of its inputs."""
    from pathlib import Path

    from ..pytorch import LoadedModel, load_weights

    warning = _import(source)
    torch = import_torch()
    options = source.options
    if options.classes and not options.weights:
        raise InvalidOption(
            f"model {source.spec}: its own weights are for its own classes; with `classes`, `weights` random "
            "or FILE is required",
            hint="leave classes out",
        )
    describe, load = _package(source)
    with quiet():
        description = describe(source)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            module = load(source, description)
        if options.file:
            load_weights(inner_module(module), Path(options.file), source.spec)
        module = module.eval().requires_grad_(False)
    example = {name: torch.from_numpy(array) for name, array in description.example(_DOMAIN_SEED).items()}
    sees = source.kind != "hf" or any(tensor.name == "pixel_values" for tensor in description.inputs)
    warnings = [text for text in (warning if sees else "", *description.notes) if text]
    if options.weights == RANDOM:
        warnings.append(f"the weights are random (seed {options.seed}): outputs mean nothing")
    return LoadedModel(
        module, example, inputs=description.inputs, output_names=description.outputs, warnings=tuple(warnings)
    )


def _package(source: Source) -> tuple[Callable[[Source], Description], Callable[[Source, Description], Any]]:
    """What describes and what loads a model of a package."""
    if source.kind == "torchvision":
        from .torchvision_models import describe_torchvision, load_torchvision

        return describe_torchvision, load_torchvision
    if source.kind == "timm":
        from .timm_models import describe_timm, load_timm

        return describe_timm, load_timm
    from .hf_models import describe_hf, load_hf

    return describe_hf, load_hf


def _import(source: Source) -> str:
    """Import the package; return a warning of what is wrong with it."""
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
