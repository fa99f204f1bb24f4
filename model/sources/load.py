"""Load the PyTorch model of a MODEL argument, and find the preprocessing of its inputs."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from pathlib import Path

from ...core.artifact import checked_input
from ...core.files import digest_files, require_file
from ...core.installation import install_hint
from ...core.progress import quiet
from ...errors import EngineUnavailable, InvalidOption, ModelError
from ..sessions.random_input import random_feeds
from . import pytorch
from . import source as sources
from .example import shapes_at, traced_extents
from .named.description import Description, declare_torchvision_operators
from .preprocessing import PRESETS, Preprocessing, preprocessing_of, read_preprocessing_file
from .pytorch import LoadedModel, import_torch
from .source import NAMED, Source, SourceKind, parse_source
from .user_code import call, load_function

_PACKAGES: dict[SourceKind, str] = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}


def load_torch(source: Source, device: str = "cpu") -> LoadedModel:
    """Return the loaded PyTorch model in evaluation mode, on `device`: "cpu" or "cuda:0"."""
    if source.is_named:
        named = load_named(source)
        return named if device == "cpu" else replace(named, module=named.module.to(device))
    torch = import_torch()
    if source.kind == "onnx" or source.kind in sources.TENSORFLOW_KINDS:
        what, hint = "a TensorFlow model", "export it, and give the ONNX file"
        if source.kind == "onnx":
            what, hint = "an ONNX file", "give the PyTorch model it was exported from"
        raise ModelError(f"{source.spec}: {what} cannot be run by PyTorch", hint=hint)
    if source.kind in ("pt2", "torchscript"):
        file = checked_input(source.file, what="model")
        if source.kind == "torchscript":
            return LoadedModel(pytorch.load_torchscript(file, device), None)
        program = pytorch.load_program(file, device)
        return LoadedModel(program, None, inputs=pytorch.program_inputs(program))
    result, example = call(load_function(source), source), None
    if isinstance(result, tuple) and len(result) == 2:
        result, example = result
    if not isinstance(result, torch.nn.Module):
        raise ModelError(
            f"{source.spec}: returned {type(result).__name__}; an nn.Module is required",
            hint="return the module, or (module, example inputs)",
        )
    if source.options.file:
        pytorch.load_weights(result, Path(source.options.file), source.spec)
    was_training, module = pytorch.depends_on_training_mode(result), pytorch.in_evaluation_mode(result)
    if example is not None:
        from .nested import flatten_inputs

        module, example = flatten_inputs(module, example)
    return LoadedModel(module if device == "cpu" else module.to(device), example, was_training)


def find_preprocessing(name: str, *, base: Path | None = None) -> Preprocessing:
    """Return the preprocessing of a preset, of a model by name, or of a JSON file as `as_json` writes it."""
    if name in PRESETS:
        return PRESETS[name]
    if _is_model(name):
        preprocessing = preprocessing_of(describe_named(parse_source(name, base=base))[0].inputs)
        if preprocessing is not None:
            return preprocessing
        raise InvalidOption(
            f"preprocessing {name}: the model has none, as it has neither a tokenizer nor a processor",
            option="preprocessing",
        )
    if name.endswith(".json"):
        return read_preprocessing_file((base or Path.cwd()) / Path(name).expanduser())
    raise InvalidOption(
        f"preprocessing {name!r}; {', '.join(PRESETS)}, a model by name, or FILE.json is required",
        hint=sources.did_you_mean(name, PRESETS),
        option="preprocessing",
    )


def digest_preprocessing(name: str, *, base: Path | None = None) -> str:
    """Return a digest that changes when the preprocessing of `name` may have changed; empty for no name."""
    if _is_model(name):
        return sources.digest_source(parse_source(name, base=base))
    return digest_files(preprocessing_files(name, base=base)) if name.endswith(".json") else name


def preprocessing_files(name: str, *, base: Path | None = None) -> list[Path]:
    """Return the files that define a preprocessing: none for a preset or for a model by its name."""
    if _is_model(name):
        return sources.source_files(parse_source(name, base=base))
    if name.endswith(".json"):
        return [require_file((base or Path.cwd()) / Path(name).expanduser(), what="preprocessing")]
    return []


def _is_model(name: str) -> bool:
    kind, colon, _ = name.partition(":")
    return bool(colon) and kind in NAMED


def load_named(source: Source) -> LoadedModel:
    """Return a model by name in evaluation mode, with an example of its inputs."""
    options = source.options
    if options.classes and not options.weights and source.kind != "torchvision":
        raise source.refusal(
            "its trained weights have fixed classes; with `classes`, `weights` random or FILE is required",
            "leave classes out",
        )
    description, warning = describe_named(source)
    torch, head = import_torch(), tuple[str, ...]()
    with quiet():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            module = description.load()
        path = Path(options.file) if options.file else None
        if options.classes and not options.weights:
            path = description.weights()
        if path is not None:
            # A file of weights has the tensor names of the package's module, without our wrapper.
            wrapped = type(module).__module__.startswith(f"{__package__}.named.")
            inner = getattr(module, "module", None) or getattr(module, "inner", None) if wrapped else None
            head = pytorch.load_weights(inner or module, path, source.spec, classes=options.classes or 0)
        module = module.eval().requires_grad_(False)
    shapes = shapes_at(description.inputs, traced_extents(description.inputs)[0])
    feeds = random_feeds(description.inputs, shapes=shapes, domains=description.domains)
    example = {name: torch.from_numpy(array) for name, array in feeds.items()}
    has_images = source.kind != "hf" or any(tensor.name == "pixel_values" for tensor in description.inputs)
    warnings = [text for text in (warning if has_images else "", *description.notes) if text]
    if head:
        warnings.append(
            f"a new head: {', '.join(head)} are random (seed {options.seed}) until they are trained"
        )
    if options.weights == sources.RANDOM:
        warnings.append(f"the weights are random (seed {options.seed}): outputs are meaningless")
    return LoadedModel(
        module, example, inputs=description.inputs, output_names=description.outputs, warnings=tuple(warnings)
    )


def describe_named(source: Source) -> tuple[Description, str]:
    """Return a named model's description, read without its weights, and a warning about the package."""
    package, apart = _PACKAGES[source.kind], ""
    reason = "" if importlib.util.find_spec(package) else f"{package} is not installed"
    warning = ""
    try:
        import_torch()
        if not reason:
            warning = declare_torchvision_operators()
            with quiet():
                importlib.import_module(package)
    except EngineUnavailable as error:
        reason = error.message
    except Exception as error:  # incompatible versions of two packages fail in many ways
        reason, apart = f"{package} cannot be imported ({error})", ", into a separate environment"
    if reason:
        hint = install_hint("models") + apart
        raise EngineUnavailable(f"model {source.spec}: {reason}", hint=hint, engine="pytorch")
    with quiet():
        module = importlib.import_module(f".named.{source.kind}_models", __package__)
        return module.describe(source), warning
