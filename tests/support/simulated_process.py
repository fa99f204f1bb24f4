"""What TensorRT keeps once for a process: its logger and its registry of plugins."""

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

    Source: TensorRT-RTX 1.7.1, tried, for the words; NvInferRuntime.h of release/8.6,
    `IPluginRegistry::loadLibrary`.
    """

    def __init__(self, owner: Any) -> None:
        self._log, self._circumstances = owner._log, owner._module._circumstances
        self._creators: set[str] = set()

    def load_library(self, path: str) -> Any:
        if path in self._circumstances.plugins:
            self._creators |= set(self._circumstances.plugins[path])
            return object()
        # As TensorRT-RTX 1.7.1 logs it.
        text = f"Unable to load library: {path}: cannot open shared object file: No such file or directory"
        error = self._module.ILogger.Severity.ERROR  # type: ignore[attr-defined]
        self._log.log(error, f"IPluginRegistry::loadLibrary: Error Code 6: API Usage Error ({text})")
        return None


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


BEHAVIOURS: dict[str, Any] = {"IPluginRegistry": PluginRegistry}
