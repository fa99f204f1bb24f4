"""TensorRT's network, and what it keeps once for a process: its logger and its registry of plugins."""

from __future__ import annotations

import types
import weakref
from typing import Any

OWN_PLUGINS = frozenset(["InstanceNormalization_TRT", "InstanceNormalization"])
"""Of those that `init_libnvinfer_plugins` registers: the creator, and the operator it is for."""

_IGNORED = (
    "The logger passed into createInfer{} differs from one already registered for an existing builder, "
    "runtime, or refitter. So the current new logger is ignored, and TensorRT will use the existing one "
    "which is returned by nvinfer1::getLogger() instead."
)
_NO_CREATOR = (
    "1: [pluginV2Runner.cpp::load::300] Error Code 1: Serialization (Serialization assertion creator failed."
    "Cannot deserialize plugin since corresponding IPluginCreator not found in Plugin Registry)"
)


def registered_logger(user: Any, logger: Any, kind: str) -> Any:
    """Return the logger that a new builder, runtime or refitter logs to: the first one that lives.

    Source: NVIDIA/TensorRT issue 1475, and TensorRT-RTX 1.7.1, by `test_plan.py`.

    Args:
        user: The new object; the logger counts as used until it is gone.
        logger: The logger it was given.
        kind: "Builder", "Runtime" or "Refitter".
    """
    process = vars(user._module)
    if not process.get("_logger_users"):
        process["_logger"], process["_logger_users"] = logger, 0
    elif process["_logger"] is not logger:
        logger.log(logger.Severity.WARNING, _IGNORED.format(kind))
    process["_logger_users"] += 1
    weakref.finalize(user, _leave, weakref.ref(user._module))
    return process["_logger"]


def _leave(module: Any) -> None:
    if module() is not None:
        vars(module())["_logger_users"] -= 1


def init_plugins(module: Any) -> Any:
    """Return `init_libnvinfer_plugins`: registers TensorRT's own creators for the whole process.

    Source: plugin/api/inferPlugin.cpp of release/8.6, `PluginCreatorRegistry::addPluginCreator`.
    """
    creators = vars(module).setdefault("_creators", set())

    def init_libnvinfer_plugins(*_: Any) -> bool:
        creators.update(OWN_PLUGINS)
        return True

    return init_libnvinfer_plugins


def known_creators(owner: Any) -> set[str]:
    """The creators that a builder or a runtime finds: its own registry's, then the process's.

    Source: NvInferRuntime.h of release/8.6, `IRuntime::getPluginRegistry`: "the local plugin registry"; RTX
    1.7.1 logs "Local registry attempting to load library".
    """
    registry = vars(owner).get("_registry")
    return vars(owner._module)["_creators"] | (registry._creators if registry is not None else set())


def missing_plugin(runtime: Any, plan: dict[str, Any]) -> str:
    """Return what is logged where a plan holds a plugin without creator; empty where there is none.

    Source: issues wang-xinyu/tensorrtx 1044 and Linaom1214/TensorRT-For-YOLO-Series 97 (logs of 8.5).
    """
    return "" if set(plan.get("plugins", ())) <= known_creators(runtime) else _NO_CREATOR


class PluginRegistry:
    """IPluginRegistry of a builder or a runtime: loads the libraries that the test's circumstances have.

    Source: NvInferRuntime.h of release/8.6, `IPluginRegistry::loadLibrary`.
    """

    def __init__(self, owner: Any) -> None:
        self._circumstances = owner._module._circumstances
        self._creators: set[str] = set()

    def load_library(self, path: str) -> Any:
        self._creators |= self._circumstances.plugins[path]
        return object()


def library_opener(module: Any) -> Any:
    """Return what stands for `dlopen`: of the circumstances' libraries, and of no others.

    Source: samples/trtexec/README.md: libraries with `getCreators` are for a registry; the others register
    their creators for the whole process when they are loaded (NvInferRuntime.h, REGISTER_TENSORRT_PLUGIN).
    """
    circumstances = module._circumstances

    def open_library(path: str) -> Any:
        if path in circumstances.plugins:
            return types.SimpleNamespace(getCreators=None)
        if path in circumstances.registering:
            vars(module)["_creators"].update(circumstances.registering[path])
            return types.SimpleNamespace()
        raise OSError(f"{path}: invalid ELF header")

    return open_library


def registry_of(owner: Any) -> Any:
    """The registry of a builder or a runtime, the same for each call.

    Source: NvInferRuntime.h of release/8.6, `IRuntime::getPluginRegistry`.
    """
    if "_registry" not in vars(owner):
        owner._registry = owner._module.IPluginRegistry(owner)
    return owner._registry


FLOATS = ("FLOAT", "HALF", "BF16", "FP8")


def say(owner: Any, severity: str, text: str) -> None:
    """Log as TensorRT does: to the logger that the builder was given."""
    owner._log.log(owner._module.ILogger.Severity[severity], text)


def usage_error(owner: Any, where: str, text: str) -> None:
    """Log an error of usage; TensorRT's setters then return normally."""
    say(owner, "ERROR", f"{where}: Error Code 3: API Usage Error ({text})")


def complain(owner: Any, text: str) -> bool:
    """Log an error of use, for a call of the runtime that answers False."""
    usage_error(owner, "[executionContext.cpp::check::1]", text)
    return False


def _weak(owner: Any, where: str) -> bool:
    """Whether types can be set; an error is logged where the network's types are strong.

    Source: NvInfer.h of release/8.5 to 10.13, `kSTRONGLY_TYPED`.
    """
    if owner._network._strong:
        usage_error(owner, where, "types and precisions of a strongly typed network cannot be set")
    return not owner._network._strong


def kind_of(layer: Any) -> str:
    """Return a layer's type, such as "CONVOLUTION"."""
    return str(layer._type.name)


def attribute(name: str, *, written: bool = False) -> property:
    """What a private name holds.

    Source: python/src/infer/pyGraph.cpp of release/8.5 to 10.13, `def_property` and `def_property_readonly`.
    """

    def write(self: Any, value: Any) -> None:
        vars(self)[name] = value

    return property(lambda self: vars(self)[name], write if written else None)


def count(name: str) -> property:
    """How many there are."""
    return property(lambda self: len(vars(self)[name]))


class Tensor:
    """ITensor.

    Source: NvInfer.h of release/8.5 to 10.13, `ITensor`, and python/src/infer/pyGraph.cpp;
    TensorRT-RTX 1.7.1, tried.
    """

    name = attribute("_name", written=True)
    is_shape_tensor = attribute("_holds_shape")

    def __init__(self, network: Any, name: str, dtype: str, shape: tuple[int, ...], role: str = "") -> None:
        self._network, self._log = network, network._log
        self._name, self._dtype, self._shape, self._role = name, dtype, shape, role
        self._formats = (1 << len(self._module.TensorFormat.__members__)) - 1
        self._holds_shape = False
        self._range: tuple[float, float] | None = None

    @property
    def dtype(self) -> Any:
        return self._module.DataType[self._dtype]

    allowed_formats = attribute("_formats", written=True)

    def set_dynamic_range(self, low: float, high: float) -> bool:
        self._range = (low, high)
        return True


class Layer:
    """ILayer.

    `_inputs` and `_outputs` are tensors; `_weights` are names of ONNX initializers that are no tensors.

    Source: NvInfer.h of release/8.5 to 10.13, `ILayer`; `kSTRONGLY_TYPED` there for what cannot be set.
    """

    name = attribute("_name", written=True)
    type = attribute("_type")
    num_inputs, num_outputs = count("_inputs"), count("_outputs")

    def __init__(self, network: Any, name: str, kind: str, onnx_name: str = "") -> None:
        self._network, self._log, self._name = network, network._log, name
        self._type = self._module.LayerType[kind]
        self._onnx_name = onnx_name
        self._operator = ""
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._weights: list[str] = []
        self._precision: str | None = None

    @property
    def metadata(self) -> str:
        return f"[ONNX Layer: {self._onnx_name}]" if self._onnx_name else ""

    def get_input(self, index: int) -> Any:
        return self._inputs[index] if 0 <= index < len(self._inputs) else None

    def get_output(self, index: int) -> Any:
        return self._outputs[index] if 0 <= index < len(self._outputs) else None

    @property
    def precision(self) -> Any:
        return self._module.DataType[self._precision or "FLOAT"]

    @precision.setter
    def precision(self, value: Any) -> None:
        if not isinstance(value, self._module.DataType):
            raise TypeError("incompatible function arguments")
        if _weak(self, "ILayer::setPrecision"):
            self._precision = value.name

    def set_output_type(self, index: int, dtype: Any) -> None:
        _weak(self, "ILayer::setOutputType")


class Network:
    """INetworkDefinition, empty until a parser fills it.

    Source: NvInfer.h of release/8.5 to 10.13, `INetworkDefinition` and `NetworkDefinitionCreationFlag`.
    """

    name = "Unnamed Network 0"
    num_layers, num_inputs, num_outputs = count("_layers"), count("_inputs"), count("_outputs")

    def __init__(self, builder: Any, flags: int) -> None:
        creation = self._module.NetworkDefinitionCreationFlag.__members__
        self._builder, self._log, self._flags = builder, builder._log, flags
        self._strong = self._has("STRONGLY_TYPED")
        # What gave the flag up has explicit batches alone; from 10 on it is ignored.
        self._explicit = (
            "EXPLICIT_BATCH" not in creation or "STRONGLY_TYPED" in creation or self._has("EXPLICIT_BATCH")
        )
        self._layers: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._weights: dict[str, Any] = {}

    def _has(self, flag: str) -> bool:
        creation = self._module.NetworkDefinitionCreationFlag.__members__
        return flag in creation and bool(self._flags >> int(creation[flag]) & 1)

    def get_layer(self, index: int) -> Any:
        return self._layers[index]

    def get_input(self, index: int) -> Any:
        return self._inputs[index]

    def get_output(self, index: int) -> Any:
        return self._outputs[index]

    def mark_output(self, tensor: Any) -> None:
        tensor._role = "output"
        self._outputs.append(tensor)

    def _add(self, name: str, kind: str, inputs: list[Any], outputs: list[Any], onnx_name: str = "") -> Any:
        layer = self._module.ILayer(self, name, kind, onnx_name)
        layer._inputs, layer._outputs = inputs, outputs
        self._layers.append(layer)
        return layer

    def _tensor(self, name: str, dtype: str, shape: tuple[int, ...], role: str = "") -> Any:
        return self._module.ITensor(self, name, dtype, shape, role)


BEHAVIOURS: dict[str, Any] = {
    "ITensor": Tensor,
    "ILayer": Layer,
    "INetworkDefinition": Network,
    "IPluginRegistry": PluginRegistry,
}
