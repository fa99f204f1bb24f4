"""Convert TensorFlow models to ONNX files with `python -m tf2onnx.convert`.

The interpreter may be another one, as TensorFlow often has a separate environment; it does not need qcompile.
A Keras file is a JSON tree of classes. Code in it is an error: bytecode in a Lambda, a pickled module, or a
class or function of another package.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.figures import counted
from ...core.files import temporary_folder
from ...core.installation import install_hint
from ...core.processes.child import Child
from ...errors import (
    EngineUnavailable,
    InvalidOption,
    MissingFile,
    ModelError,
    UnsupportedOperator,
)
from .. import onnx
from ..graph.graph_edits import store
from ..graph.graph_names import Names, rename_inputs
from .archives import check_archive
from .source import Source

ANOTHER = (
    "python -m venv tf && tf/bin/pip install tensorflow tf2onnx, and give `python` tensorflow=tf/bin/python"
)
_SAVE_HINT = "save a SavedModel: model.export('folder')"
_CODE_CLASSES = ("Lambda", "__lambda__", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer")
_SAFE_FUNCTIONS = re.compile(r"(builtins|keras\.(src\.)?(activations|ops))(\.|$)")
"""Modules with computing functions; functions of other modules can load and download files."""
_FILE_OPERATORS = (b"ReadFile", b"WriteFile", b"MatchingFiles", b"PyFunc")
"""Graph operators that read or write arbitrary files, or call Python."""
_VERSIONS = """
import importlib.metadata, importlib.util, json
names = {d.name.lower().replace("_", "-"): d.version for d in importlib.metadata.distributions() if d.name}
print(json.dumps({name: names.get(name) or names.get(name + "-cpu") or "unknown"
    for name in ("tensorflow", "tf2onnx", "keras") if importlib.util.find_spec(name)}))
"""
_H5_CONFIG = "import h5py, sys; print(h5py.File(sys.argv[1], 'r').attrs.get('model_config', '{}'))"


def tensorflow_python(texts: Sequence[str]) -> str:
    """Return the interpreter of `tensorflow=INTERPRETER`, by default the current one."""
    for text in texts:
        name, _, python = text.partition("=")
        if name != "tensorflow" or not python or len(texts) > 1:
            raise InvalidOption(
                f"`python` {text!r}: tensorflow=INTERPRETER is required once", option="python"
            )
        if not shutil.which(python):
            raise MissingFile(f"`python` {text}: there is no executable {python}", file=python)
        return os.path.abspath(str(shutil.which(python)))  # no resolve(): a venv's python is a link
    return sys.executable


def tensorflow_versions(python: str) -> dict[str, str]:
    """Return the versions of TensorFlow, tf2onnx and Keras in an interpreter, without missing packages."""
    with temporary_folder("tensorflow") as folder:
        versions: dict[str, str] = json.loads(_run([python, "-c", _VERSIONS], folder, "TensorFlow"))
    return versions


def convert(
    source: Source, python: str, output: Path, names: Sequence[str] = (), *, opset: int, trust: bool
) -> dict[str, str]:
    """Write the ONNX file of a model with an interpreter's tf2onnx; return package to version.

    Inputs and outputs are named after the model's layers or signature; `names` replace the output names. With
    `trust`, the graph of a SavedModel may access files. The opset is at most `NEWEST_BY_TF2ONNX`.
    """
    path, config = source.file.resolve(), {}
    if path.suffix == ".keras":  # needs no TensorFlow
        check_archive(path, what="a Keras file", hint="save it again: model.save('model.keras')")
        try:
            with zipfile.ZipFile(path) as archive:
                config = json.loads(archive.read("config.json"))
        except (KeyError, ValueError, RecursionError) as error:
            message = f"{path}: not a Keras file: no readable config.json ({error})"
            raise ModelError(message, hint=_SAVE_HINT, file=path) from error
        _refuse_code(path, config)
    versions = tensorflow_versions(python)
    if missing := " and ".join(name for name in ("tensorflow", "tf2onnx") if name not in versions):
        raise EngineUnavailable(
            f"{source.spec}: {missing} cannot be imported by {python}",
            hint=f"{install_hint('tensorflow')}, or {ANOTHER}",
            engine="tensorflow",
            reason=f"{missing} missing",
        )
    with temporary_folder("tensorflow") as folder:
        arguments = {source.kind.replace("savedmodel", "saved-model"): path, "output": output, "opset": opset}
        if source.kind == "savedmodel":
            content = (path / "saved_model.pb").read_bytes()
            file_operators = [name.decode() for name in _FILE_OPERATORS if name in content]
            if file_operators and not trust:
                raise ModelError(
                    f"{path}: its graph accesses files or calls Python ({', '.join(file_operators)})",
                    hint="give `trust` if you know where it comes from",
                    file=path,
                )
            arguments |= {"signature_def": source.function} if source.function else {}
        elif source.kind == "keras" and not config:
            config = json.loads(_run([python, "-c", _H5_CONFIG, str(path)], folder, source.spec))
            _refuse_code(path, config)
        options = [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
        _run([python, "-m", "tf2onnx.convert", *options], folder, source.spec)
    _clean_up(output, source.spec, config.get("config", {}), names)
    return versions


def _run(command: list[str], folder: Path, label: str) -> str:
    """Return a process's output. Python imports from the working folder, so it must be empty."""
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
    variables = {**settings, "KERAS_HOME": str(folder)}
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as log,
        Child(command, variables=variables, folder=folder, stdout=output, stderr=log) as child,
    ):
        if code := child.wait():
            last = child.last_output().rpartition("\n")[2] or "no output"
            raise ModelError(
                f"{label}: the process with TensorFlow ended with exit code {code}: {last}",
                hint=f"{_SAVE_HINT}; or convert it by `python -m tf2onnx.convert`, and give the ONNX file",
            )
        output.seek(0)
        return output.read().decode(errors="replace")


def _refuse_code(path: Path, config: Any) -> None:
    for layer, code in _code_entries(config):
        raise ModelError(
            f"{path}: layer {layer!r} ({code}) is Python code, which loading would run; Keras's own layers "
            "are required",
            hint=f"where its class is known, {_SAVE_HINT}",
            file=path,
        )


def _code_entries(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the layer and the class or function of each code entry in a Keras configuration."""
    pending = [(config, "")]
    while pending:
        value, layer = pending.pop()
        if isinstance(value, list):
            pending += [(item, layer) for item in value]
        if not isinstance(value, dict):
            continue
        kind, module, inner = value.get("class_name"), value.get("module"), value.get("config")
        registered = f"{value.get('registered_name') or ''}{kind or ''}"
        if isinstance(kind, str):
            layer = str(inner["name"]) if isinstance(inner, dict) and "name" in inner else layer or kind
            foreign = isinstance(module, str) and module.split(".")[0] not in ("keras", "builtins")
            calls = kind == "function" and isinstance(module, str) and not _SAFE_FUNCTIONS.match(module)
            if kind.rpartition(">")[2] in _CODE_CLASSES or foreign or calls or ">" in registered:
                yield layer, f"{module}.{inner}" if calls else f"{module}.{kind}" if foreign else kind
        pending += [(item, layer) for item in value.values()]


def _clean_up(path: Path, label: str, config: Any, outputs: Sequence[str]) -> None:
    """Name inputs and outputs, rewrite Erfc (Keras's GELU) as 1 - Erf, reject operators without ONNX form."""
    model = onnx.load(path)
    names: dict[str, str] = {}
    for key, values in (("input_layers", model.graph.input), ("output_layers", model.graph.output)):
        layers = re.findall(r'\["([^"]+)", \d+, \d+\]', json.dumps(config.get(key)))
        if "layers" in config and key not in config:  # Sequential
            layers = [config["layers"][0 if key == "input_layers" else -1]["config"].get("name", "")]
        plain = [value.name.removeprefix("serving_default_").removesuffix(":0") for value in values]
        new_names = layers if len(layers) == len(values) else plain
        if outputs and key == "output_layers":
            if len(outputs) != len(values):
                required = f"{counted(len(values), 'output')}: {', '.join(new_names)}"
                raise InvalidOption(
                    f"`outputs`: {counted(len(outputs), 'name')}; the model has {required}", option="outputs"
                )
            new_names = list(outputs)
        names |= {value.name: name for value, name in zip(values, new_names, strict=True)}
    new = Names(model.graph)
    new.taken -= set(names)
    names = {old: new.fresh(name) for old, name in names.items()}
    for value in (*model.graph.input, *model.graph.output):
        value.name = names[value.name]
    rename_inputs(model.graph, names)
    for node in list(model.graph.node):
        node.output[:] = [names.get(name, name) for name in node.output]
        if node.op_type == "Erfc":
            result, name = new.fresh(f"{node.output[0]}/erf"), new.fresh(f"{node.name}/erf")
            erf = onnx.helper.make_node("Erf", list(node.input), [result], name)
            model.graph.node.insert(list(model.graph.node).index(node), erf)
            node.op_type, node.domain = "Sub", ""
            node.input[:] = [
                store(model.graph, new.fresh(f"{node.output[0]}/1"), np.float32(1)),
                erf.output[0],
            ]
    del model.graph.value_info[:]
    unsupported = {n.op_type for n in model.graph.node if not n.domain and not onnx.defs.has(n.op_type)}
    if unsupported:
        raise UnsupportedOperator(
            f"{label}: tf2onnx cannot convert TensorFlow's {', '.join(sorted(unsupported))}",
            hint="save a SavedModel of the part without them",
            operator=min(unsupported),
        )
    onnx.save(model, path)
