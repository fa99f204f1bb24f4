"""Serve one TensorFlow model over standard streams: load it, convert it to ONNX, run it.

It is run by its path in any interpreter that has TensorFlow and tf2onnx. qcompile need not be installed
there: nothing of it is imported but `keras_config`, by its path. One JSON object per line
in, one out.

| request                                                | answer                                            |
|--------------------------------------------------------|---------------------------------------------------|
| `{"do": "hello"}`                                      | `{"versions", "missing"}`; nothing is imported    |
| `{"do": "load", "path", "kind", "signature", "trust"}` | `{"inputs", "outputs"}`                           |
| `{"do": "convert", "shapes", "opset", "output"}`       | `{"versions"}`; the file is written to `output`   |
| `{"do": "infer", "feeds", "output"}`                   | `{}`; `.npz` of `arr_0`, ... in the model's order |

Inputs are `{"name", "dtype", "shape"}` each, outputs are names. A dynamic axis is null. An answer has
`"ok": true`, or `"ok": false` with the error's `type` (of `qcompile.errors`), `message` and `hint`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

_PACKAGES = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
    "tf2onnx": ("tf2onnx",),
    "keras": ("keras",),
    "onnx": ("onnx",),
    "numpy": ("numpy",),
}
_NEEDED = ("tensorflow", "tf2onnx")
_TOUCHES = ("ReadFile", "WriteFile", "MatchingFiles", "PyFunc", "PyFuncStateless", "EagerPyFunc")
"""Operators by which a graph reads or writes files of its choice, or calls back into Python."""


class Refused(Exception):
    """What is said to the user: the type of the error, its message and the way out."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind, self.hint = kind, hint


class Served:
    """The model that was loaded.

    Attributes:
        path: Where it lies.
        call: Takes the inputs in order, returns the outputs in order.
        inputs: Name, dtype and shape of each input; a dynamic axis is None.
        outputs: Names.
    """

    def __init__(self) -> None:
        self.path = ""
        self.call: Callable[..., Any] | None = None
        self.inputs: list[dict[str, Any]] = []
        self.outputs: list[str] = []

    def do_hello(self, request: dict[str, Any]) -> dict[str, Any]:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        return {"versions": _versions(), "missing": missing}

    def do_load(self, request: dict[str, Any]) -> dict[str, Any]:
        self.path = request["path"]
        load = self._load_keras if request["kind"] == "keras" else self._load_saved
        load(request)
        odd = [one["name"] for one in self.inputs if one["dtype"] in ("string", "variant", "resource")]
        if odd:
            raise Refused(
                "ExportError",
                f"{self.path}: input {', '.join(odd)} takes no numbers, which no runtime here does",
                "save the part of the model behind its text processing",
            )
        return {"inputs": self.inputs, "outputs": self.outputs}

    def do_convert(self, request: dict[str, Any]) -> dict[str, Any]:
        import tensorflow as tf
        import tf2onnx

        specs = [
            tf.TensorSpec(shape, one["dtype"], name=f"input_{index}")
            for index, (one, shape) in enumerate(zip(self.inputs, request["shapes"]))  # noqa: B905
        ]
        call = self.call
        assert call is not None, "load comes first"

        @tf.function  # type: ignore[untyped-decorator, unused-ignore]
        def traced(*tensors: Any) -> Any:
            return tuple(tf.identity(tensor) for tensor in call(*tensors))

        try:
            made, _ = tf2onnx.convert.from_function(
                traced,
                input_signature=specs,
                opset=request["opset"],
                custom_op_handlers={"Erfc": (_erfc, [])},
            )
        except Exception as error:
            raise Refused(
                "ExportError",
                f"{self.path}: tf2onnx cannot convert it ({_first_line(error)})",
                "give `inputs` with fixed extents, or save a SavedModel of the part to be converted",
            ) from error
        _rename(made.graph, [one["name"] for one in self.inputs], self.outputs)
        Path(request["output"]).write_bytes(made.SerializeToString())
        return {"versions": _versions()}

    def do_infer(self, request: dict[str, Any]) -> dict[str, Any]:
        import numpy as np
        import tensorflow as tf

        with np.load(request["feeds"], allow_pickle=False) as stored:
            feeds = [tf.constant(stored[f"arr_{index}"]) for index in range(len(self.inputs))]
        assert self.call is not None, "load comes first"
        try:
            made = self.call(*feeds)
        except Exception as error:
            raise Refused("ModelError", f"{self.path}: TensorFlow raised {_first_line(error)}") from error
        np.savez(request["output"], *(tensor.numpy() for tensor in made))
        return {}

    def _load_keras(self, request: dict[str, Any]) -> None:
        _refuse_code(request)
        keras: Any = importlib.import_module("keras")
        try:
            model = keras.models.load_model(self.path, compile=False, safe_mode=not request["trust"])
        except Exception as error:
            raise Refused(
                "ModelError",
                f"{self.path}: Keras {keras.__version__} cannot load it ({_first_line(error)})",
                "save it with model.save('model.keras'), or as a SavedModel: model.export('folder')",
            ) from error
        if not hasattr(model, "inputs") or not model.inputs:
            raise Refused(
                "ModelError", f"{self.path}: a model without declared inputs", "save it with model.export"
            )
        structure = getattr(
            model, "_inputs_struct", model.inputs[0] if len(model.inputs) == 1 else model.inputs
        )
        self.inputs = [_described(_name(tensor), tensor.dtype, tensor.shape) for tensor in model.inputs]
        self.outputs = _output_names(model)

        def call(*tensors: Any) -> list[Any]:
            given = keras.tree.pack_sequence_as(structure, list(tensors))
            return list(keras.tree.flatten(model(given, training=False)))

        self.call = call

    def _load_saved(self, request: dict[str, Any]) -> None:
        _check_graph(request)
        import tensorflow as tf

        try:
            loaded = tf.saved_model.load(self.path)
        except Exception as error:
            raise Refused(
                "ModelError", f"{self.path}: TensorFlow cannot load it ({_first_line(error)})"
            ) from error
        signatures = dict(loaded.signatures)
        name = request["signature"] or ("serving_default" if "serving_default" in signatures else "")
        if not name and len(signatures) == 1:
            name = next(iter(signatures))
        if name not in signatures:
            there = ", ".join(sorted(signatures)) or "none"
            raise Refused(
                "ModelError",
                f"{self.path}: signature {name or 'serving_default'!r} is not there; there are: {there}",
                f"write {self.path}:SIGNATURE" if signatures else "save it with signatures=...",
            )
        chosen = signatures[name]
        keywords = dict(sorted(chosen.structured_input_signature[1].items()))
        names = list(keywords)
        if not all(isinstance(spec, tf.TensorSpec) for spec in keywords.values()):
            raise Refused("ExportError", f"{self.path}: signature {name!r} takes ragged or sparse tensors")
        self.inputs = [_described(key, spec.dtype.name, spec.shape) for key, spec in keywords.items()]
        self.outputs = sorted(chosen.structured_outputs)

        def call(*tensors: Any) -> list[Any]:
            made = chosen(**dict(zip(names, tensors)))  # noqa: B905
            return [made[key] for key in self.outputs]

        self.keeps = loaded  # its variables go with it
        self.call = call


def _refuse_code(request: dict[str, Any]) -> None:
    """Refuse a Keras file that holds code, before Keras sees it."""
    path = request["path"]
    spec = importlib.util.spec_from_file_location("keras_config", Path(__file__).with_name("keras_config.py"))
    assert spec is not None
    assert spec.loader is not None
    checks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checks)
    if path.endswith(".keras"):
        config = checks.read_keras_config(path)
    else:
        h5py: Any = importlib.import_module("h5py")
        try:
            with h5py.File(path, "r") as stored:
                text = stored.attrs.get("model_config")
        except OSError as error:
            raise Refused("ModelError", f"{path}: no HDF5 file ({_first_line(error)})") from error
        if text is None:
            raise Refused(
                "ModelError",
                f"{path}: holds weights alone; a model is required",
                "build the model, load the weights into it, and save it with model.save('model.keras')",
            )
        config = json.loads(text.decode() if isinstance(text, bytes) else text)
    refused = checks.refusal(path, config, trust=request["trust"])
    if refused is not None:
        raise Refused("ModelError", *refused)


def _check_graph(request: dict[str, Any]) -> None:
    """Refuse a SavedModel with operators that are unknown, or that touch files."""
    from tensorflow.core.protobuf import saved_model_pb2
    from tensorflow.python.framework import op_def_registry

    path, saved = request["path"], saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString((Path(path) / "saved_model.pb").read_bytes())
    except Exception as error:  # protobuf's own errors differ between its versions
        raise Refused("ModelError", f"{path}: saved_model.pb is damaged ({_first_line(error)})") from error
    graphs = [meta.graph_def for meta in saved.meta_graphs]
    used = {node.op for graph in graphs for node in graph.node}
    used |= {node.op for graph in graphs for one in graph.library.function for node in one.node_def}
    functions = {one.signature.name for graph in graphs for one in graph.library.function}
    unknown = sorted(op for op in used - functions if op_def_registry.get(op) is None)
    if unknown:
        raise Refused(
            "UnsupportedOperator",
            f"{path}: custom operators that this TensorFlow does not have: {', '.join(unknown)}",
            "save the model without them: their libraries are not loaded",
        )
    touching = sorted(used & set(_TOUCHES))
    if touching and not request["trust"]:
        raise Refused(
            "ModelError",
            f"{path}: its graph touches files or calls Python ({', '.join(touching)})",
            "give `trust` if you know where it comes from",
        )


def _described(name: str, dtype: Any, shape: Any) -> dict[str, Any]:
    if getattr(shape, "rank", 0) is None:
        raise Refused(
            "ExportError",
            f"input {name!r} has no known rank",
            "save it with an input_signature of known rank",
        )
    return {"name": name, "dtype": str(dtype), "shape": [None if dim is None else int(dim) for dim in shape]}


def _name(tensor: Any) -> str:
    """The name of the layer that makes a Keras tensor; a tensor's own name is numbered anew by each load."""
    history = getattr(tensor, "_keras_history", None)
    operation = getattr(history, "operation", None) or getattr(history, "layer", None)
    return str(getattr(operation, "name", "") or tensor.name)


def _output_names(model: Any) -> list[str]:
    structure = getattr(model, "_outputs_struct", None)
    named = [str(key) for key in sorted(structure)] if isinstance(structure, dict) else []
    names = named if len(named) == len(model.outputs) else [_name(tensor) for tensor in model.outputs]
    taken: dict[str, int] = {}
    unique = []
    for name in names:
        taken[name] = taken.get(name, 0) + 1
        unique.append(name if taken[name] == 1 else f"{name}_{taken[name]}")
    return unique


def _erfc(graph: Any, node: Any, *_: Any) -> Any:
    """Write Erfc, which Keras's GELU has, as 1 - Erf: tf2onnx 1.17 has no form for it."""
    import numpy as np
    from tf2onnx import utils

    value = node.input[0]
    one = graph.make_const(
        utils.make_name("one"), np.ones((), utils.map_onnx_to_numpy_type(graph.get_dtype(value)))
    )
    erf = graph.make_node("Erf", [value], dtypes=[graph.get_dtype(value)], shapes=[graph.get_shape(value)])
    node.type, node.domain = "Sub", ""
    graph.replace_inputs(node, [one.output[0], erf.output[0]])
    return node


def _rename(graph: Any, inputs: list[str], outputs: list[str]) -> None:
    """Give the inputs and outputs of a graph their names in the model, in every graph inside it too."""
    named = {f"input_{index}": name for index, name in enumerate(inputs)}
    new = {value.name: named[value.name.partition(":")[0]] for value in graph.input}
    new |= {value.name: name for value, name in zip(graph.output, outputs)}  # noqa: B905
    others = {name for node in graph.node for name in node.output} - set(new)
    new = {old: name if name not in others else f"{name}_io" for old, name in new.items()}
    _rename_in(graph, new)


def _rename_in(graph: Any, new: dict[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = new.get(value.name, value.name)
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = new.get(name, name)
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename_in(inner, new)


def _versions() -> dict[str, str]:
    found = {}
    for name, distributions in _PACKAGES.items():
        for one in distributions:
            try:
                found[name] = importlib.metadata.version(one)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return {**found, "python": platform.python_version()}


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until they end."""
    served = Served()
    for line in requests:
        try:
            request = json.loads(line)
            reply = {"ok": True, **getattr(served, f"do_{request['do']}")(request)}
        except Refused as error:
            reply = {"ok": False, "type": error.kind, "message": str(error), "hint": error.hint}
        except Exception as error:  # whatever TensorFlow raises is the caller's to report
            reply = {"ok": False, "type": "ModelError", "message": _first_line(error), "hint": ""}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def main() -> None:
    """Serve on the standard streams; whatever libraries print goes to standard error."""
    for name in ("SIGTERM", "SIGHUP"):  # Slurm sends them to all processes; the caller ends this one
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is signal.SIG_DFL:
            signal.signal(getattr(signal, name), lambda *_: None)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
