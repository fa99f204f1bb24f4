"""Parse the MODEL argument (docs/models.md), and compute the digest that detects changes of a model.

A function takes no argument and returns the module, or `(module, example)` with `forward`'s arguments as a
tuple or dict: tensors, or dicts, dataclasses, tuples and lists of them. Nested inputs are named by their path
(`batch.image`, `features_0`). Checkpoints are never unpickled: files of pickled weights are errors, as are
`.pt2` and TorchScript files without `trust` (`archives`).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

from ...core.artifact import checked_input, is_manifest
from ...core.files import absolute_path, digest_files, manifest_path, nearest_name, require_file
from ...errors import InvalidOption, MissingFile
from ...version import tool_versions
from ..graph.source_paths import packages_around

RANDOM = "random"
_MAX_DIGITS = 19  # of an int64


@dataclass(frozen=True)
class SourceOptions:
    """Options after the `?` of MODEL; empty and 0 select the model's defaults. `size` is height and width."""

    weights: str = ""
    download: bool = False
    classes: int = 0
    size: tuple[int, ...] = ()
    task: str = ""
    seed: int = 0

    @property
    def file(self) -> str:
        """The file with the weights, or empty."""
        return "" if self.weights == RANDOM else self.weights

    @property
    def query(self) -> str:
        """The options as `?key=value&...`; empty if all have their defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        spelled = [
            f"{key}={_format(value)}" for key, value in values.items() if value != getattr(_DEFAULTS, key)
        ]
        return "?" + "&".join(spelled) if spelled else ""


_DEFAULTS = SourceOptions()


def parse_query(query: str, spec: str, keys: Iterable[str] = ()) -> SourceOptions:
    """Parse `key=value&key=value`; `keys` limits the allowed keys, by default to all options."""
    keys = tuple(keys) or tuple(_KEYS)
    values: dict[str, Any] = {}
    for part in query.split("&"):
        key, equals, text = part.partition("=")
        if key not in keys or not equals:
            raise InvalidOption(
                f"model {spec}: {part!r} is none of its options: {', '.join(keys)}",
                hint=did_you_mean(key, keys) if key not in keys else f"write {key}=VALUE",
            )
        if key in values:
            raise InvalidOption(f"model {spec}: {key} is given twice; once is required")
        pattern, read, required = _KEYS[key]
        value = unquote(text, errors="surrogateescape")
        if not re.fullmatch(pattern, value, re.ASCII | re.DOTALL):
            raise InvalidOption(f"model {spec}: {key}={text or 'nothing'}; {required} is required")
        values[key] = read(value)
    return SourceOptions(**values)


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return "did you mean ...?" with the closest name, after a prefix; empty if no name is close."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {prefix + near[0]!r}?" if near else ""


def _format(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return quote(str(value), safe="/:~+,@=!()' \\", errors="surrogateescape")


def _extents(text: str) -> tuple[int, ...]:
    height, _, width = text.partition("x")
    return int(height), int(width or height)


_POSITIVE = rf"(?=0*[1-9])\d{{1,{_MAX_DIGITS}}}"
_KEYS: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "weights": (".+", str, "random, or a file"),
    "download": ("0|1|false|true", ("1", "true").__contains__, "0 or 1"),
    "classes": (_POSITIVE, int, "a number of 1 or more"),
    "size": (
        f"{_POSITIVE}(x{_POSITIVE})?", _extents, "HEIGHT or HEIGHTxWIDTH, such as 224 or 224x320,",
    ),
    "task": (".+", str, "a task, such as text-classification,"),
    "seed": (rf"\d{{1,{_MAX_DIGITS}}}", int, "a number of 0 or more"),
}  # fmt: skip
"""Key to the pattern of its value, its parser, and the requirement for error messages."""


SourceKind = Literal[
    "file", "module", "pt2", "torchscript", "onnx", "torchvision", "timm", "hf", "keras", "savedmodel",
    "tflite",
]  # fmt: skip

NAMED: tuple[SourceKind, ...] = ("torchvision", "timm", "hf")
"""Packages with models that are given by name."""
TRUSTED_KINDS: tuple[SourceKind, ...] = ("pt2", "torchscript")
"""PyTorch files that may run code during loading."""
TENSORFLOW_KINDS: tuple[SourceKind, ...] = ("keras", "savedmodel", "tflite")
"""Kinds that TensorFlow runs and tf2onnx converts."""
_BY_SUFFIX: dict[str, SourceKind] = {
    ".keras": "keras", ".h5": "keras", ".hdf5": "keras", ".tflite": "tflite", ".onnx": "onnx", ".pt2": "pt2",
    ".pt": "torchscript", ".pth": "torchscript", ".ts": "torchscript", ".jit": "torchscript",
    ".torchscript": "torchscript",
}  # fmt: skip
_TENSOR_SUFFIXES = ".safetensors .pt .pth .pt2 .ckpt .bin .npz .npy .csv .parquet".split()
_SETTINGS_SUFFIXES = ".json .yaml .yml .txt".split()
_HASHED_SUFFIXES = [*_TENSOR_SUFFIXES, *_SETTINGS_SUFFIXES, ".py", ".onnx"]
_HASHED_BYTES = 1 << 30  # about a second of every run
_READ_BYTES = 1 << 20  # of a file that may name more files
_ENDING = re.compile(rf"[\w.-]{{0,99}}(?:{'|'.join(map(re.escape, _HASHED_SUFFIXES))})(?!\w)")
_STEM = re.compile(r"[\"'/]([\w.-]+)(?=[\"'])")
_READS_ANY = re.compile(
    r"\b(?:iterdir|listdir|scandir|walk|from_pretrained|load_dataset|environ|getenv|argv)\b|\.[{%]"
    r"|glob\([rf]*[\"'][^\"']*\*[\"']"
)
_IMPORTED = re.compile(rb"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A parsed MODEL or DATA argument.

    `function` is the signature of a SavedModel; `path` of an "hf" source is its folder, if it is local.
    `options` hold the absolute path of a weights file.
    """

    spec: str
    kind: SourceKind
    path: Path | None = None
    module: str = ""
    function: str = ""
    name: str = ""
    options: SourceOptions = _DEFAULTS

    @property
    def is_named(self) -> bool:
        """Whether the source is a package's model, by its name."""
        return self.kind in NAMED

    @property
    def absolute(self) -> str:
        """The argument with absolute paths, for another process or working folder."""
        path = str(self.path.resolve()) if self.path else ""
        if self.is_named:
            return f"{self.kind}:{path or self.name}{self.options.query}"
        if self.function:
            return f"{path or self.module}:{self.function}{self.options.query}"
        return path

    def refusal(self, problem: str, hint: str = "") -> InvalidOption:
        """Return the error for a model that is incompatible with its options."""
        return InvalidOption(f"model {self.spec}: {problem}", hint=hint)

    @property
    def file(self) -> Path:
        """The path of the source; raises InvalidOption if the source is not a file."""
        if self.path is None:
            raise InvalidOption(f"{self.spec!r} is not a file")
        return self.path


def parse_source(spec: str, *, base: Path | None = None, weights: str = "", download: bool = False) -> Source:
    """Parse a MODEL argument; `weights` and `download` have the effect of its options of these names."""
    head, mark, query = spec.partition("?")
    kind, colon, name = head.partition(":")
    if kind in NAMED and colon:
        options = parse_query(query, spec) if mark else SourceOptions()
        source = _parse_named(spec, kind, name, base)
    elif (function := _parse_function(head, base)) is not None:
        options = parse_query(query, spec, ("weights",)) if mark else SourceOptions()
        source = function
    elif weights or download:
        option = "weights" if weights else "download"
        raise InvalidOption(
            f"`{option}`: model {spec} contains its weights; a model by name, or a function, is required",
            hint="leave it out",
            option=option,
        )
    else:
        return _parse_file(spec, base)
    if download and not source.is_named:
        raise InvalidOption(
            f"`download`: {head} downloads nothing; a model by name is required", option="download"
        )
    if weights and options.weights and weights != options.weights:
        raise InvalidOption(
            f"`weights` {weights}: the model {source.spec} has weights={options.weights}; one value is "
            "required",
            option="weights",
        )
    options = replace(options, weights=weights or options.weights, download=download or options.download)
    if options.weights == RANDOM and not source.is_named:
        raise InvalidOption(
            f"`weights` random: the function {head} chooses its weights itself; a file is required",
            option="weights",
        )
    spec = head + options.query
    if options.file:
        path = require_file(absolute_path(options.file, base), what="weights")
        options = replace(options, weights=str(path.resolve()))
    return replace(source, spec=spec, options=options)


def _parse_named(spec: str, kind: SourceKind, name: str, base: Path | None) -> Source:
    if not name:
        raise InvalidOption(f"model {spec!r}: names no model", hint=f"write {kind}:NAME")
    folder = absolute_path(name, base) if kind == "hf" else None
    if folder is not None and folder.is_dir():
        return Source(spec, kind, folder, name=name)
    if folder is not None and (name.startswith(("/", ".", "~")) or name.count("/") > 1):
        raise MissingFile(f"model {spec}: no such folder", hint=nearest_name(folder), file=folder)
    return Source(spec, kind, name=name)


def _parse_function(spec: str, base: Path | None) -> Source | None:
    head, colon, function = spec.rpartition(":")
    if not (colon and function.isidentifier() and head):
        return None
    if head.endswith(".py"):
        path = require_file(absolute_path(head, base), what="model file")
        return Source(spec, "file", path, function=function)
    if _is_saved_model(absolute_path(head, base)):
        return None
    if all(part.isidentifier() for part in head.split(".")):
        return Source(spec, "module", module=head, function=function)
    return None


def _parse_file(spec: str, base: Path | None) -> Source:
    head, _, signature = spec.rpartition(":")
    if head and signature.isidentifier() and _is_saved_model(absolute_path(head, base)):
        return Source(spec, "savedmodel", absolute_path(head, base), function=signature)
    path = absolute_path(spec, base)
    if _is_saved_model(path):
        return Source(spec, "savedmodel", path)
    if kind := _BY_SUFFIX.get(path.suffix.lower()):
        return Source(spec, kind, require_file(path, what="model"))
    if path.suffix.lower() == ".py":
        require_file(path, what="model file")
        raise InvalidOption(
            f"model {spec!r} names a file but no function",
            hint=f"write {spec}:FUNCTION, a function that returns the nn.Module",
        )
    if not path.exists() and ("/" in spec or "." in spec):
        raise MissingFile(f"model {spec} does not exist", hint=nearest_name(path), file=path)
    raise InvalidOption(
        f"model {spec!r} is none of: file.py:function, package.module:function, torchvision:NAME, timm:NAME, "
        "hf:NAME_OR_FOLDER, .pt2, TorchScript (.pt, .torchscript), .onnx, a SavedModel, .keras, .h5, .tflite"
    )


def digest_source(source: Source, *, depends: Sequence[Path] = ()) -> str:
    """Return a digest that changes when the source may have changed.

    The digest of a function covers the Python files beside it, the packages there that they import, and the
    files with weights or settings, there and weights one folder below, that this code may open
    (`_files_in_use`). Artifacts with a manifest are excluded. `depends` adds other files. Files after the
    first `_HASHED_BYTES`, by ascending size, count by size and modification time.
    """
    files = source_files(source, depends=depends)
    if source.kind in ("file", "module"):
        explicit = len(depends) + bool(source.options.file)
        files = [*files[:explicit], *_files_in_use(files[explicit:])]
    names, read = [path.name for path in files], files
    if source.kind in ("file", "module"):
        stats = sorted(((path.stat(), path) for path in files), key=lambda pair: pair[0].st_size)
        totals = accumulate(stat.st_size for stat, _ in stats)
        large = {path: stat for (stat, path), end in zip(stats, totals, strict=True) if end > _HASHED_BYTES}
        read = [path for path in files if path not in large]
        names += [f"{large[path].st_size} {large[path].st_mtime_ns}" for path in files if path in large]
    names_digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    digest = f"{digest_files(read)}:{names_digest}"
    if source.is_named:  # the package's version determines the model and its file of weights
        package = "transformers" if source.kind == "hf" else source.kind
        weights = "file" if source.options.file else source.options.weights
        query = replace(source.options, weights=weights, download=False).query
        head = hub_cache() / f"models--{source.name.replace('/', '--')}" / "refs" / "main"
        is_cached = source.kind == "hf" and not source.path and not weights and head.is_file()
        revision = head.read_text().strip() if is_cached else ""
        name = "" if source.path else source.name
        return f"{digest}:{source.kind}:{name}{query}:{tool_versions(package).get(package, '')}:{revision}"
    if source.kind == "module":
        root = source.module.split(".")[0]
        version = hashlib.sha256(tool_versions(root).get(root, "").encode()).hexdigest()
        return f"{digest}:{version[:16]}:{source.module}:{source.function}"
    if source.kind in ("file", "savedmodel"):
        return f"{digest}:{source.function}"
    return digest_files(files)


def source_files(source: Source, *, depends: Sequence[Path] = ()) -> list[Path]:
    """Return the files that a source may read, in the digest's order; the digest of code covers a part."""
    files: list[Path] = [require_file(path, what="depends: file") for path in depends]
    if source.options.file:
        files.append(require_file(Path(source.options.file), what="weights"))
    if source.is_named:
        if source.path:
            files += sorted([*_hashed_files(source.path), *source.path.glob("*.model")])
    elif source.kind == "module":
        spec = importlib.util.find_spec(source.module.split(".")[0])
        origin = [spec.origin] if spec and spec.has_location and spec.origin else []
        for place in map(Path, (spec and spec.submodule_search_locations) or origin):
            if "site-packages" not in place.parts:
                files += _hashed_tree(place) if place.is_dir() else _hashed_files(place.parent)
    elif source.kind == "file":
        files += _function_files(source.file)
    elif source.kind == "savedmodel":
        files += sorted(path for path in source.file.rglob("*") if path.is_file())
    else:
        files.insert(0, checked_input(source.file, what="model"))
    return files


def _is_saved_model(path: Path) -> bool:
    return (path / "saved_model.pb").is_file()


def _function_files(file: Path) -> list[Path]:
    """Return a function's files: those beside it, packages that these import, tensors one folder below."""
    folder = file.parent
    files = _hashed_files(folder)
    code = [file.read_bytes(), *(path.read_bytes() for path in files if path.suffix == ".py")]
    imported = {folder / match[1].decode() for text in code for match in _IMPORTED.finditer(text)}
    packages = {*packages_around(file.resolve())[:1], *(path for path in imported if path.is_dir())}
    for package in sorted(packages):
        files += _hashed_tree(package)
    for subfolder in sorted(path for path in folder.iterdir() if path.is_dir() and _is_source(path)):
        if subfolder not in packages:
            tensors = sorted(path for path in subfolder.iterdir() if path.suffix in _TENSOR_SUFFIXES)
            files += [path for path in tensors if path.is_file() and not manifest_path(path).exists()]
    return files


def _files_in_use(files: Sequence[Path]) -> list[Path]:
    """Return the Python files, and the files that they may open.

    The code may open a file if a text in it ends like the file's name (`.json`, `labels.json`) or is the name
    without its suffix. It may open all files if it lists folders, reads the environment, or makes suffixes.
    A file of settings may name more files.
    """
    code = [path for path in files if path.suffix == ".py"]
    texts, in_use = [_read_text(path) for path in code], set(code)
    while texts:
        text = "\n".join(texts)
        if _READS_ANY.search(text):
            return list(files)
        endings, stems = tuple(_ENDING.findall(text)), {*_STEM.findall(text)}
        opened = {path for path in files if path.name.endswith(endings) or path.stem in stems} - in_use
        in_use |= opened
        texts = [_read_text(path) for path in opened if path.suffix in _SETTINGS_SUFFIXES]
    return [path for path in files if path in in_use]


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_READ_BYTES).decode(errors="replace")


def _hashed_tree(folder: Path) -> list[Path]:
    """Return the relevant files of a folder and its subfolders, in a fixed order."""
    inner = (path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    below = sorted(filter(_is_source, inner))
    return [*_hashed_files(folder), *(path for place in below for path in _hashed_tree(place))]


def _is_source(folder: Path) -> bool:
    """Return whether a folder is neither hidden nor a recipe's output, which changes with every run."""
    return folder.name[0] != "." and not (folder / ".qcompile").exists()


def _hashed_files(folder: Path) -> list[Path]:
    files = {path for path in folder.iterdir() if path.is_file() and path.suffix in _HASHED_SUFFIXES}
    # Outputs of other stages are not part of the source: they would change it with every run.
    manifests = {path for path in folder.glob("*.json") if is_manifest(path)}
    return sorted(files - manifests - {path.with_suffix("") for path in manifests})


def hub_cache() -> Path:
    """Return the folder of Hugging Face's cache, located as by huggingface_hub."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("HF_HOME") or Path(cache, "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
