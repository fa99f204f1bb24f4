"""The recipe: a TOML file that says which model becomes which artifacts, and how they are measured.

Frozen, validated, versioned. A wrong key is named with its path and the nearest right one; paths in a
recipe are relative to the recipe.
"""

from __future__ import annotations

import difflib
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from .artifact import require_file
from .engines.gpu import parse_devices
from .engines.tensorrt.options import TensorRTOptions
from .errors import InvalidOption, RecipeError, UsageError
from .recipe_batches import find_contradiction
from .shapes import parse_dynamic_axis, parse_input, parse_shapes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECIPE_VERSION = 1
METRICS = ("top1", "top5", "miou", "cosine", "mse")
_TORCH_MODES = ("trace", "script", "freeze", "compile")
_METHODS = ("minmax", "percentile", "entropy", "mse", "auto")

BASELINE = "pytorch"
"""Name of the row that is the model itself."""


@dataclass(frozen=True)
class ModelSection:
    """`[model]`: the source and how it is exported."""

    source: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    opset: int = 20
    depends: tuple[str, ...] = ()
    simplify: bool = True
    trust: bool = False


@dataclass(frozen=True)
class DataSection:
    """`[data]`: samples for calibration and for accuracy."""

    calibration: str = ""
    evaluation: str = ""
    depends: tuple[str, ...] = ()


@dataclass(frozen=True)
class CalibrateSection:
    """`[calibrate]`."""

    method: str = "auto"
    samples: int = 0
    balance: bool = False


@dataclass(frozen=True)
class ArtifactSection:
    """`[[artifact]]`: one thing to build."""

    name: str
    target: str
    precision: str = "fp32"
    mode: str = "static"
    method: str = ""
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    rest: str = "fp32"
    processor: str = "vnni"
    correct_bias: bool = True
    block_size: int = 64
    rounding: str = "rtn"
    form: str = ""
    gpus: tuple[str, ...] = ()
    min_shapes: tuple[str, ...] = ()
    opt_shapes: tuple[str, ...] = ()
    max_shapes: tuple[str, ...] = ()
    allow_fallback: bool = False
    strict: bool = False
    allow_loss: bool = False
    calibrator: str = ""
    tensorrt: TensorRTOptions = field(default_factory=TensorRTOptions)

    @property
    def needs_ranges(self) -> bool:
        """Whether its activations need calibrated ranges."""
        static = self.precision in ("int8", "fp8", "best") and self.mode == "static"
        return static and self.calibrator in ("", "ours")

    @property
    def layer_precisions(self) -> dict[str, str]:
        """`layers` as name, glob or operator type to precision."""
        return {name: precision for name, _, precision in (text.rpartition("=") for text in self.layers)}


@dataclass(frozen=True)
class BenchSection:
    """`[bench]`."""

    batch_size: int = 1
    threads: int = 0
    max_time_s: float = 60.0
    precision_target: float = 0.01
    metric: str = "top1"
    baseline: str = BASELINE
    batch_sizes: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    torch_modes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Recipe:
    """A whole recipe; `path` is the file it was read from."""

    version: int
    name: str
    model: ModelSection
    artifact: tuple[ArtifactSection, ...]
    data: DataSection = field(default_factory=DataSection)
    calibrate: CalibrateSection = field(default_factory=CalibrateSection)
    bench: BenchSection | None = None
    output: str = "out"
    path: Path = Path("recipe.toml")

    @property
    def folder(self) -> Path:
        """The folder that the recipe's paths are relative to."""
        return self.path.resolve().parent

    @property
    def data_depends(self) -> tuple[Path, ...]:
        """Files elsewhere that the data's function reads."""
        return tuple(self.folder / name for name in self.data.depends)


def read_recipe(path: str | Path) -> Recipe:
    """Read and validate a recipe.

    Raises:
        MissingFile: If it is not there.
        RecipeError: Naming the key, what was found and what is required.
    """
    path = require_file(Path(path), what="recipe")
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not TOML: {error}", file=path) from error
    if "path" in value:
        raise _error(path, "path", "is unknown", "")
    version = value.get("version")
    if version != RECIPE_VERSION:
        raise _error(path, "version", f"is {version!r}; {RECIPE_VERSION} is required", "version = 1")
    recipe: Recipe = _build(Recipe, {**value, "path": path}, path, "")
    _check(recipe)
    return recipe


def _build(kind: Any, value: Mapping[str, Any], path: Path, prefix: str) -> Any:
    known = {item.name: item for item in fields(kind)}
    hints = typing.get_type_hints(kind)
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            shown = ", ".join(name for name in known if name != "path")
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known keys: {shown}"
            raise _error(path, f"{prefix}{key}", "is unknown", hint)
    for name, item in known.items():
        if item.default is MISSING and item.default_factory is MISSING and name not in value:
            raise _error(path, f"{prefix}{name}", "is missing", "")
    values = {key: _convert(hints[key], item, path, f"{prefix}{key}") for key, item in value.items()}
    try:
        return kind(**values)
    except UsageError as error:  # what TensorRTOptions refuses
        raise _error(path, prefix.rstrip("."), f"holds {error.message}", error.hint) from error


def _convert(kind: Any, value: Any, path: Path, key: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        kind = next(item for item in typing.get_args(kind) if item is not type(None))
        origin = typing.get_origin(kind)
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        if not isinstance(value, list):
            raise _error(path, key, f"is {_kind(value)}; a list is required", "")
        return tuple(_convert(inner, v, path, f"{key}[{i}]") for i, v in enumerate(value))
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise _error(path, key, f"is {_kind(value)}; a table is required", "")
        return _build(kind, value, path, f"{key}.")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise _error(path, key, f"is {_kind(value)}; {_NAMES.get(kind, kind)} is required", "")
    return value


_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _kind(value: Any) -> str:
    return f"{_NAMES.get(type(value), type(value).__name__)} ({value!r})"


def _check(recipe: Recipe) -> None:
    """Everything that can be wrong before any work is done."""
    path = recipe.path
    if not _is_plain(recipe.name):
        raise _error(path, "name", f"is {recipe.name!r}; a plain file name is required", "")
    if not recipe.artifact:
        raise _error(path, "artifact", "is empty; at least one [[artifact]] is required", "")
    seen: set[str] = set()
    for index, one in enumerate(recipe.artifact):
        key = f"artifact[{index}]"
        if not _is_plain(one.name):
            raise _error(path, f"{key}.name", f"is {one.name!r}; a plain file name is required", "")
        if one.name in seen or one.name in (recipe.name, BASELINE):
            raise _error(path, f"{key}.name", f"is {one.name!r}, which is taken", "")
        seen.add(one.name)
        _check_artifact(one, recipe, key)
    _check_values(recipe)
    if recipe.bench and recipe.bench.baseline not in (*seen, BASELINE):
        raise _error(
            path,
            "bench.baseline",
            f"is {recipe.bench.baseline!r}; one of {', '.join((BASELINE, *sorted(seen)))} is required",
            "",
        )
    for spelled, read in (
        *((text, parse_input) for text in recipe.model.inputs),
        *((text, parse_dynamic_axis) for text in recipe.model.dynamic),
    ):
        try:
            read(spelled)
        except UsageError as error:
            raise _error(path, "model", error.message, error.hint) from error
    contradiction = find_contradiction(recipe.model, recipe.artifact, recipe.bench)
    if contradiction:
        raise _error(path, *contradiction)


def _is_plain(name: str) -> bool:
    return bool(name) and not any(letter in name for letter in "/\\\0") and name[0] != "."


def _names_a_function(text: str) -> bool:
    head, _, function = text.rpartition(":")
    return bool(head) and function.isidentifier()


def _check_values(recipe: Recipe) -> None:
    path, bench = recipe.path, recipe.bench or BenchSection()
    methods = {f"artifact[{i}].method": one.method for i, one in enumerate(recipe.artifact) if one.method}
    for key, method in {"calibrate.method": recipe.calibrate.method, **methods}.items():
        name, _, value = method.partition(":")
        number = value.replace(".", "", 1).isdigit() if name == "percentile" else not value
        if name not in _METHODS or (":" in method and not number):
            raise _error(
                path, key, f"is {method!r}; {', '.join(_METHODS)} or percentile:NUMBER is required", ""
            )
    counts = {
        "calibrate.samples": (recipe.calibrate.samples, 0),
        "bench.batch_size": (bench.batch_size, 1),
        "bench.threads": (bench.threads, 0),
        **{f"bench.batch_sizes[{i}]": (found, 1) for i, found in enumerate(bench.batch_sizes)},
        **{f"bench.clients[{i}]": (found, 1) for i, found in enumerate(bench.clients)},
    }
    for key, (found, least) in counts.items():
        if found < least:
            raise _error(path, key, f"is {found}; at least {least} is required", "")
    for index, mode in enumerate(bench.torch_modes):
        if mode not in _TORCH_MODES:
            known = ", ".join(_TORCH_MODES)
            raise _error(path, f"bench.torch_modes[{index}]", f"is {mode!r}; one of {known} is required", "")
    try:
        parse_devices(bench.devices)
    except InvalidOption as error:
        raise _error(path, "bench.devices", f"holds {error.message}", error.hint) from error
    if bench.metric not in METRICS and not _names_a_function(bench.metric):
        known = f"{', '.join(METRICS)} or file.py:function"
        raise _error(path, "bench.metric", f"is {bench.metric!r}; {known} is required", "")


def _check_artifact(one: ArtifactSection, recipe: Recipe, key: str) -> None:
    path = recipe.path
    choices = {
        "target": ("onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript"),
        "precision": ("fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4", "best"),
        "calibrator": ("", "ours", "native", "entropy", "minmax"),
        "mode": ("static", "dynamic", "weights"),
        "rest": ("fp32", "fp16", "bf16"),
        "processor": ("vnni", "avx2", "arm"),
        "rounding": ("rtn", "gptq"),
        "form": ("", "nbits", "qdq"),
    }
    for name, allowed in choices.items():
        found = getattr(one, name)
        if found not in allowed:
            near = difflib.get_close_matches(found, allowed, n=1)
            raise _error(
                path,
                f"{key}.{name}",
                f"is {found!r}; one of {', '.join(allowed)} is required",
                f"did you mean {near[0]!r}?" if near else "",
            )
    if one.needs_ranges and not recipe.data.calibration:
        raise _error(path, "data.calibration", f"is missing; {one.name!r} is static INT8", "")
    if (one.precision == "int4") != (one.mode == "weights" and one.precision != "int8"):
        raise _error(path, f"{key}.mode", f"is {one.mode!r}; int4 is for weights alone", 'mode = "weights"')
    for index, text in enumerate(one.layers):
        pattern, equals, precision = text.rpartition("=")
        if not (pattern and equals) or precision not in ("fp32", "fp16", "bf16", "int8"):
            raise _error(
                path,
                f"{key}.layers[{index}]",
                f"is {text!r}; PATTERN=PRECISION is required",
                "'/head/*=fp32'",
            )
    if recipe.calibrate.balance and not recipe.data.calibration:
        raise _error(path, "data.calibration", "is missing; calibrate.balance needs it", "")
    if not one.target.startswith("tensorrt"):
        for name in ("tensorrt", "calibrator"):
            if getattr(one, name) != getattr(ArtifactSection("", ""), name):
                raise _error(path, f"{key}.{name}", f"is for TensorRT; the target is {one.target!r}", "")
    if one.calibrator and one.precision != "int8":
        raise _error(path, f"{key}.calibrator", f"is for int8; the precision is {one.precision!r}", "")
    for kind in ("min_shapes", "opt_shapes", "max_shapes"):
        try:
            parse_shapes(getattr(one, kind), option=f"{key}.{kind}")
        except UsageError as error:
            raise _error(path, f"{key}.{kind}", error.message, error.hint) from error


def _error(path: Path, key: str, problem: str, hint: str) -> RecipeError:
    return RecipeError(f"{path}: key '{key}' {problem}", hint=hint, file=path, key=key)
