"""Behaviours of TensorRT's runtime objects, as far as a build and its proof need them."""

from __future__ import annotations

from typing import Any

from recorded_tensorrt import stored
from simulated_inspector import Inspector, listed_profiles
from simulated_network import say
from simulated_plan import read_plan, write_plan
from simulated_process import missing_plugin, registered_logger, registry_of

_NO_HOST_CODE = (
    "Cannot deserialize engine with lean runtime since IRuntime::getEngineHostCodeAllowed() is false"
)


class Runtime:
    """Runtime: gives None, with a logged error, for a plan of another version or device, or a damaged one."""

    engine_host_code_allowed = False
    DLA_core = -1

    @property
    def num_DLA_cores(self) -> int:  # noqa: N802
        # Source: NvInferRuntime.h of release/10.16, IRuntime::getNbDLACores.
        return int(self._module._circumstances.dla_cores)

    def __init__(self, log: Any) -> None:
        self._log = registered_logger(self, log, "Runtime")

    def get_plugin_registry(self) -> Any:
        return registry_of(self)

    def deserialize_cuda_engine(self, plan: Any) -> Any:
        content = read_plan(plan)
        reason = self._why_not(content)
        if reason or content is None:
            say(self, "ERROR", f"IRuntime::deserializeCudaEngine: Error Code 1: Serialization ({reason})")
            return None
        if missing := missing_plugin(self, content):
            say(self, "ERROR", missing)
            return None
        return self._module.ICudaEngine(self._log, content)

    def _why_not(self, content: dict[str, Any] | None) -> str:
        if content is None or content["module"] != self._module.__name__:
            return "Serialization assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match"
        # Source: public notes of runs of 11.1.0.106, "Version compatibility and the lean runtime": also of
        # its own version; without the lean runtime inside, it loads what it built itself.
        if content["lean_runtime"] and not stored(self, "engine_host_code_allowed", False):
            return _NO_HOST_CODE
        here, major = self._module.__version__, self._module.__version__.split(".")[0]
        same_major = content["version_compatible"] and content["version"].split(".")[0] == major
        if content["version"] != here and not same_major:
            return (
                "Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does "
                f"not match. Note: Current Version: {here}, Serialized Engine Version: {content['version']}"
            )
        device = self._module._circumstances.device
        if device in content["devices"]:
            return ""
        return (
            "The engine plan file is generated on an incompatible device, expecting compute "
            f"{device} got compute {content['devices'][0]}, please rebuild."
        )


class Engine:
    """ICudaEngine of a plan.

    Source: NvInferRuntime.h of release/8.5 to 10.13, `ICudaEngine`.
    """

    def __init__(self, log: Any, plan: dict[str, Any]) -> None:
        self._log, self._plan = log, plan

    @property
    def num_layers(self) -> int:
        # Source: Polygraphy, backend/trt/util.py `str_from_engine`: before 10, those of all profiles.
        return len(self._plan["layers"]) * listed_profiles(self._module, self._plan)

    @property
    def refittable(self) -> bool:
        return bool(self._plan["refittable"])

    @property
    def device_memory_size(self) -> int:
        return int(self._plan["memory_bytes"])

    @property
    def device_memory_size_v2(self) -> int:
        return int(self._plan["memory_bytes"])

    def get_engine_stat(self, stat: Any) -> int:
        entries = self._plan["weights"].values()
        if stat.name == "TOTAL_WEIGHTS_SIZE":
            return sum(entry["bytes"] for entry in entries)
        return sum(entry["bytes"] for entry in entries if not entry["sha256"])

    @property
    def streamable_weights_size(self) -> int:
        entries = self._plan["weights"].values() if self._plan.get("streams_weights") else ()
        return sum(entry["bytes"] for entry in entries)

    @property
    def weight_streaming_budget_v2(self) -> int:
        return int(vars(self).get("_budget", self.streamable_weights_size))

    @weight_streaming_budget_v2.setter
    def weight_streaming_budget_v2(self, value: int) -> None:
        # Source: NvInferRuntime.h of release/10.16, setWeightStreamingBudgetV2: "must be a non-negative
        # value", "cannot be modified while there are active IExecutionContexts"; pyCore.cpp drops the answer.
        if value < 0 or vars(self).get("_has_contexts"):
            say(self, "ERROR", "ICudaEngine::setWeightStreamingBudgetV2: Error Code 3: API Usage Error")
        else:
            self._budget = value

    def get_tensor_dtype(self, name: str) -> Any:
        return self._module.DataType[self._tensor(name)["dtype"]]

    def create_engine_inspector(self) -> Any:
        return self._module.EngineInspector(self)

    def create_execution_context(self, *_: Any) -> Any:
        self._has_contexts = True
        return self._module.IExecutionContext(self)

    def create_serialization_config(self) -> Any:
        return self._module.ISerializationConfig(excluded=self._plan["stripped"])

    def serialize(self) -> Any:
        return self._written(with_weights=not self._plan["stripped"])

    def serialize_with_config(self, config: Any) -> Any:
        excluded = config._flags >> int(self._module.SerializationFlag.EXCLUDE_WEIGHTS) & 1
        return self._written(with_weights=not excluded)

    def _written(self, *, with_weights: bool) -> Any:
        plan = {**self._plan, "stripped": not with_weights}
        return self._module.IHostMemory(write_plan(plan, with_weights=with_weights))

    def _tensor(self, name: str) -> dict[str, Any]:
        return next((tensor for tensor in self._plan["io"] if tensor["name"] == name), {})


class Context:
    """IExecutionContext, as far as shapes go."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._profile = engine, 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    @property
    def engine(self) -> Any:
        return self._engine

    @property
    def active_optimization_profile(self) -> int:
        return self._profile

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self._profile = index
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        profiles, shape = self._engine._plan["profiles"], tuple(shape)
        if profiles and name in profiles[self._profile]:
            low, _, high = profiles[self._profile][name]
            if len(shape) != len(low) or any(
                not a <= b <= c for a, b, c in zip(low, shape, high, strict=True)
            ):
                return False
        self._shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Source: NvInferRuntime.h, `setTensorAddress`: false for a name that is no input or output."""
        self._addresses[name] = memory
        return bool(self._engine._tensor(name))

    def _all_known(self) -> bool:
        return all(
            tensor["name"] in self._shapes or min(tensor["shape"], default=0) >= 0
            for tensor in self._engine._plan["io"]
            if tensor["mode"] == "INPUT"
        )


BEHAVIOURS: dict[str, Any] = {
    "Runtime": Runtime,
    "ICudaEngine": Engine,
    "EngineInspector": Inspector,
    "IExecutionContext": Context,
}
