"""Load PyTorch's programs, TorchScript and weights from files, and name the outputs of a module.

A file of weights (.safetensors, or a state dict of `torch.save`) must hold exactly the module's tensors with
their shapes. State dicts load without unpickling. `.pt2` and TorchScript files need `trust` (`archives`).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ...core.figures import counted
from ...core.files import require_file
from ...core.installation import import_package
from ...core.memory import require_address_space
from ...core.progress import quiet
from ...errors import ExportError, InvalidOption, ModelError, translate_errors
from ...spec.tensors import TensorInfo
from .archives import check_archive, is_archive, require_trust

if TYPE_CHECKING:
    import torch

_TORCH_BYTES = 640 << 20
"""Address space for PyTorch (500 MB, version 2.13); with less, its libraries may end the process."""


def import_torch() -> Any:
    if "torch" not in sys.modules:
        require_address_space(_TORCH_BYTES, "load PyTorch")
    return import_package("torch", "PyTorch cannot be imported", extra="torch", engine="pytorch")


@dataclass(frozen=True)
class LoadedModel:
    """A PyTorch module in evaluation mode, with the example of its function, if any.

    Attributes:
        module: Takes tensors; `nested.NestedInputs` wraps a module with a nested example.
        example: The tensors of `forward`'s arguments, by position or by name.
        was_training: Whether the module came in training mode and has layers that depend on it.
        inputs: Of a model by name, or of a captured program.
        output_names: Suggested names; empty to use those of the structure that `forward` returns.
    """

    module: torch.nn.Module
    example: tuple[Any, ...] | dict[str, Any] | None
    was_training: bool = False
    inputs: tuple[TensorInfo, ...] = ()
    output_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


_MAX_SHOWN = 3
_STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "weights")
"""Keys of the model's state dict in the checkpoints of training loops."""


def read_weights(path: Path) -> dict[str, Any]:
    """Return the tensors of a file of weights by name."""
    require_file(path, what="weights")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        with translate_errors(f"{path}: not a readable safetensors file", ModelError, file=path):
            values: Mapping[str, Any] = load_file(path)
    else:
        values = _read_state_dict(path)
    torch = import_torch()
    objects = (f"{name!r} is {type(value).__name__}" for name, value in values.items()
               if not isinstance(value, torch.Tensor))  # fmt: skip
    problem = next(objects, "") if values else "it is empty"
    if problem:
        raise ModelError(
            f"{path}: {problem}; a state dict, name to tensor, is required",
            hint="save it with torch.save(model.state_dict(), FILE) or safetensors.torch.save_model",
            file=path,
        )
    return dict(values)


def load_weights(module: Any, path: Path, label: str, *, classes: int = 0) -> tuple[str, ...]:
    """Load a file of weights into a module; return the names of a new head's tensors, which are not loaded.

    The prefix `module.` (DistributedDataParallel) or `_orig_mod.` (`torch.compile`) is removed if all names
    have it. Tensors of a new head have `classes` rows here and another number of rows in the file.
    """
    values, expected = read_weights(path), module.state_dict()
    for prefix in ("module.", "_orig_mod."):
        is_extra = not any(name.startswith(prefix) for name in expected)
        if is_extra and all(name.startswith(prefix) for name in values):
            values = {name.removeprefix(prefix): value for name, value in values.items()}
    head = tuple(
        name
        for name, value in expected.items()
        if classes and name in values and value.ndim and len(value) == classes
        and len(values[name]) != classes and value.shape[1:] == values[name].shape[1:]
    )  # fmt: skip
    values |= {name: expected[name] for name in head}
    problems = _mismatches(expected, values)
    if problems:
        raise ModelError(
            f"{label}: {path} does not fit the model: {'; '.join(problems)}",
            hint="give the file of this exact model, with its number of classes",
            file=path,
        )
    with translate_errors(f"{label}: {path} cannot be loaded:", ModelError, file=path):
        module.load_state_dict(values, strict=False)
    return head


def _read_state_dict(path: Path) -> Mapping[str, Any]:
    torch = import_torch()
    if is_archive(path):
        check_archive(path, what="a state dict", hint="copy it again, or save it with torch.save once more")
    what = "not a state dict that loads without unpickling code"
    hint = "save it with torch.save(model.state_dict(), FILE) or as .safetensors"
    with translate_errors(f"{path}: {what}", ModelError, hint=hint, file=path):
        values = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(values, Mapping):
        raise ModelError(
            f"{path}: holds {type(values).__name__}; a state dict, name to tensor, is required", file=path
        )
    inner_dicts = (values[key] for key in _STATE_DICT_KEYS if isinstance(values.get(key), Mapping))
    return next(inner_dicts, values)


def _mismatches(expected: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Return mismatches as texts; of tensors that share memory, the file needs only one name."""
    tied: dict[Any, set[str]] = {}
    for name, value in expected.items():
        place = (value.data_ptr(), tuple(value.shape), value.stride()) if value.numel() else name
        tied.setdefault(place, set()).add(name)
    mismatched = [
        f"{name} ({'x'.join(map(str, values[name].shape))} in place of {'x'.join(map(str, value.shape))})"
        for name, value in expected.items()
        if name in values and value.shape != values[name].shape
    ]
    missing = {name for names in tied.values() if not names & values.keys() for name in names}
    kinds = {
        "missing": [name for name in expected if name in missing],
        "unexpected": [name for name in values if name not in expected],
        "of another shape": mismatched,
    }
    problems = []
    for kind, names in kinds.items():
        more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        problems += [f"{kind}: {', '.join(names[:_MAX_SHOWN])}{more}"] if names else []
    return problems


_TRAINING_LAYERS = re.compile("Dropout|DropPath|StochasticDepth|BatchNorm|InstanceNorm|RReLU")
"""Class names of layers with a different computation in training mode."""


def depends_on_training_mode(module: torch.nn.Module) -> bool:
    """Return whether a module is in training mode and holds a layer with a different computation there."""
    return any(part.training and _TRAINING_LAYERS.search(type(part).__name__) for part in module.modules())


def in_evaluation_mode(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module in evaluation mode; torchao's PT2E models are in it already, and `eval()` raises."""
    try:
        return module.eval()
    except NotImplementedError:
        return module


def load_program(path: Path, device: str) -> torch.nn.Module:
    """Return the module of a program that `torch.export.save` wrote."""
    torch = import_torch()
    what = "a program saved by torch.export.save"
    hint = "save it with torch.export.save, with a PyTorch no newer than this one"
    check_archive(path, what=what, hint=hint)
    require_trust(path)
    with translate_errors(f"{path}: not {what}", ModelError, hint=hint, file=path):
        with quiet():  # PyTorch also logs the tracebacks of its errors
            program = torch.export.load(path)
        if device == "cpu":
            return program.module()  # type: ignore[no-any-return]
    # Constants inside the graph must move too, which some versions of PyTorch cannot do.
    hint = "save it with torch.export.save on that device, or run it on the processor"
    with translate_errors(f"{path}: cannot be moved to {device}", ModelError, hint=hint, file=path):
        from torch.export.passes import move_to_device_pass

        return move_to_device_pass(program, device).module()


def program_inputs(program: Any) -> tuple[TensorInfo, ...]:
    """Return the inputs that a program was captured with; empty if they are nested.

    Dynamic axes of the capture are dynamic here; the first axis of an input is named "batch".
    """
    names = list(inspect.signature(program.forward).parameters)
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    groups = program._in_spec.children()
    flat = all(child.is_leaf() for group in groups for child in group.children())
    if not flat or len(names) != len(values) or not all(hasattr(value, "shape") for value in values):
        return ()
    axes: dict[str, str] = {}  # symbol to the name of its axis
    for name, value in zip(names, values, strict=True):
        for axis, extent in enumerate(value.shape):
            if not isinstance(extent, int):
                batch = axis == 0 and "batch" not in axes.values()
                axes.setdefault(str(extent), "batch" if batch else f"{name}_{axis}")
    return tuple(
        TensorInfo(
            name, str(value.dtype).removeprefix("torch."), tuple(axes.get(str(d), d) for d in value.shape)
        )
        for name, value in zip(names, values, strict=True)
    )


def load_torchscript(path: Path, device: str) -> torch.nn.Module:
    """Return the module of an archive that `torch.jit.save` wrote."""
    torch = import_torch()
    names = []  # TorchScript archives are zip files with a `code/` folder, unlike checkpoints
    if is_archive(path):
        hint = "copy it again, or save it with torch.jit.save and CRC-32 enabled (set_crc32_options)"
        check_archive(path, what="a TorchScript archive", hint=hint)
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    if not any("/code/" in name for name in names):
        raise ModelError(
            f"{path}: not a TorchScript archive; a checkpoint of pickled weights is never unpickled",
            hint="write a function that builds the module and loads the weights: model.py:build",
            file=path,
        )
    require_trust(path)
    # torch.jit.load warns that it is deprecated.
    with (
        translate_errors(f"{path}: PyTorch cannot load it", ModelError, errors=(RuntimeError,), file=path),
        quiet(),
    ):
        return torch.jit.load(str(path), map_location=device).eval()  # type: ignore[no-any-return]


class ForeignOutput(ExportError):
    """`forward` returned an object that is not a tensor, such as a cache."""


WITHOUT_CACHE = "the model returns a cache; it is {} with use_cache=False"


def caching(module: Any) -> list[Any]:
    """Return the configurations of a module and its parts with `use_cache` enabled."""
    configs: list[Any] = [getattr(part, "config", None) for part in module.modules()]
    return [config for config in configs if getattr(config, "use_cache", None) is True]


def without_cache(module: Any, outputs: Any, run: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Return outputs without a cache, and the configurations with `use_cache` turned off for a second run.

    Raises:
        ForeignOutput: If the module returns an object that is not a tensor even without caches.
    """
    try:
        flat_tensors(outputs)
        return outputs, []
    except ForeignOutput:
        configs = caching(module)
        if not configs:
            raise
    for config in configs:
        config.use_cache = False
    try:
        outputs = run()
        flat_tensors(outputs)
    except Exception:
        for config in configs:
            config.use_cache = True
        raise
    return outputs, configs


def flat_tensors(outputs: Any) -> list[tuple[str, Any]]:
    """Return (name, tensor) of every tensor in the outputs of `forward`, without numbers, texts and None.

    Names are paths, such as `encoder.hidden_0`; empty if the outermost structure is a tensor, tuple or list.
    """
    named = fields_of(outputs) is not None
    return [(path if named else "", tensor) for path, tensor in _tensors(outputs, "")]


def flat_outputs(outputs: Any) -> tuple[list[str], list[NDArray[Any]]]:
    """Return names (empty if unnamed) and copies of `forward`'s outputs; its next call may reuse memory."""
    tensors = flat_tensors(outputs)
    return [name for name, _ in tensors], [tensor.detach().cpu().numpy().copy() for _, tensor in tensors]


def name_outputs(spelled: Sequence[str], reference: Any, inputs: Collection[str] = ()) -> list[str]:
    """Return a name for every output: from `spelled`, from the structure, or `output`, `output_0`, ...

    Names in a graph are unique: a structure's name that equals one of `inputs` gets the suffix `_out`, and
    `spelled` names must differ from `inputs` and from each other.
    """
    names = [name for name, _ in flat_tensors(reference)]
    if not names:
        raise ExportError(
            f"forward returned {type(reference).__name__}; tensors, or a tuple or dict of them, are required"
        )
    if spelled:
        if len(spelled) != len(names):
            raise InvalidOption(
                f"{counted(len(spelled), 'output name')} for {counted(len(names), 'output')}",
                option="outputs",
            )
        for place, name in enumerate(spelled):
            if name in inputs or name in spelled[:place]:
                owner = "an input" if name in inputs else "another output"
                raise InvalidOption(
                    f"`outputs` {name!r}: {owner} has that name; names of values in a graph are unique",
                    hint=f"give another one, such as {name}_out",
                    option="outputs",
                )
        return list(spelled)
    if not all(names) or len(set(names)) < len(names):
        names = ["output"] if len(names) == 1 else [f"output_{i}" for i in range(len(names))]
    taken = {*names, *inputs}
    for index, name in enumerate(names):
        if name in inputs:
            while name in taken:
                name += "_out"
            taken.add(name)
            names[index] = name
    return names


def is_plain(outputs: Any) -> bool:
    """Return whether PyTorch's exporter flattens a structure like `flat_tensors`: only tensors, no None."""
    if isinstance(outputs, import_torch().Tensor):
        return True
    if type(outputs) in (tuple, list):
        return all(is_plain(item) for item in outputs)
    return type(outputs) is dict and all(is_plain(item) for item in outputs.values())


def fields_of(value: Any) -> list[tuple[str, Any]] | None:
    """Return the named parts of a dict, dataclass or named tuple; None for other types."""
    if isinstance(value, Mapping):
        return [(str(name), item) for name, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(getattr(value, "_fields"), value, strict=True))  # noqa: B009
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(item.name, getattr(value, item.name)) for item in dataclasses.fields(value)]
    return None


def join_path(path: str, name: str | int) -> str:
    """Return a longer path: `batch.image` by name, `features_0` by position; other characters become `_`."""
    if isinstance(name, int):
        return f"{path}_{name}" if path else str(name)
    plain = "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in name)
    return f"{path}.{plain}" if path else plain


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, import_torch().Tensor):
        yield path, value
    elif value is not None and not isinstance(value, bool | int | float | str):
        fields = fields_of(value)
        parts: list[tuple[Any, Any]]
        # Older caches of transformers are dataclasses with lists that grow while the model runs.
        if fields is not None and not type(value).__name__.endswith("Cache"):
            parts = list(fields)
        elif isinstance(value, tuple | list):
            parts = list(enumerate(value))
        else:
            raise ForeignOutput(
                f"forward returned {type(value).__name__} "
                f"({f'output {path}' if path else 'its only output'}); "
                "tensors, or tuples, dicts and dataclasses of them, are required",
                hint="wrap the model in an nn.Module that returns the tensors alone",
                output=path,
            )
        for name, item in parts:
            yield from _tensors(item, join_path(path, name))
