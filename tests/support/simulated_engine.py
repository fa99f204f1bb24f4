"""Behaviours of TensorRT's runtime, engines and refitters; getters return what the plan says.

Sources: "header" is include/NvInferRuntime.h, "binding" python/src/infer/pyCore.cpp of NVIDIA/TensorRT, at
release/10.16 where no other branch is named.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from recorded_tensorrt import stored
from simulated_inspector import Inspector, listed_profiles
from simulated_network import complain, missing_plugin, registered_logger, registry_of, say, usage_error
from simulated_parser import ErrorList
from simulated_plan import PlanTensor, make_kernel, pack, read_plan

CONTEXT_BYTES = 1 << 20


class Counted:
    """Exists as long as Python holds it.

    Source: NvInferRuntime.h, ~IExecutionContext and ~ICudaEngine free device memory, which needs a context.
    """

    _counts = ""

    def _begin(self) -> None:
        self._gpu = self._module._gpu
        self._gpu.require_context()
        self._gpu.count(self._counts, 1)
        self._alive = True

    def __del__(self) -> None:
        if getattr(self, "_alive", False):
            self._gpu.count(self._counts, -1)
            if not self._gpu.stack:
                self._gpu.complaints.append(f"{self._counts} destroyed without a current context")


class Runtime(Counted):
    """Runtime: gives None, with a logged error, for a plan of another version or device, or a damaged one.

    Source: NvInferRuntime.h, IRuntime::deserializeCudaEngine: "nullptr if it could not be deserialized".
    """

    _counts = "runtime"
    engine_host_code_allowed = False
    DLA_core = -1

    def __init__(self, log: Any) -> None:
        self._log = registered_logger(self, log, "Runtime")
        self._begin()

    @property
    def num_DLA_cores(self) -> int:  # noqa: N802
        # Source: header, IRuntime::getNbDLACores.
        return int(self._module._circumstances.dla_cores)

    def get_plugin_registry(self) -> Any:
        return registry_of(self)

    def deserialize_cuda_engine(self, plan: Any) -> Any:
        content = read_plan(plan)
        reason = "injected" if self._gpu.enter("deserialize_cuda_engine") else self._why_not(content)
        if reason or content is None:
            say(self, "ERROR", f"IRuntime::deserializeCudaEngine: Error Code 1: Serialization ({reason})")
            return None
        if missing := missing_plugin(self, content):
            say(self, "ERROR", missing)
            return None
        engine = self._module.ICudaEngine()  # what is given to a call is recorded, and so kept
        engine._open(self, content)
        return engine

    def _why_not(self, plan: dict[str, Any] | None) -> str:
        if plan is None or plan["module"] != self._module.__name__:
            return "Serialization assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match"
        # Source: public notes of runs of 11.1.0.106, "Version compatibility and the lean runtime": also of
        # its own version; without the lean runtime inside, it loads what it built itself.
        if plan["lean_runtime"] and not stored(self, "engine_host_code_allowed", False):
            allowed = "IRuntime::getEngineHostCodeAllowed() is false"
            return f"Cannot deserialize engine with lean runtime since {allowed}"
        here, major = self._module.__version__, self._module.__version__.split(".")[0]
        same_major = plan["version_compatible"] and plan["version"].split(".")[0] == major
        if plan["version"] != here and not same_major:
            return (
                "Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does "
                f"not match. Note: Current Version: {here}, Serialized Engine Version: {plan['version']}"
            )
        device = self._module._circumstances.device
        if device in plan["devices"]:
            return ""
        return (
            "The engine plan file is generated on an incompatible device, expecting compute "
            f"{device} got compute {plan['devices'][0]}, please rebuild."
        )


class Engine(Counted):
    """ICudaEngine of a plan. Source: NvInferRuntime.h, `ICudaEngine`, also of release/8.5."""

    _counts = "engine"

    def _open(self, runtime: Any, plan: dict[str, Any]) -> None:
        self._runtime, self._log, self._plan = runtime, runtime._log, plan
        self._tensors = {entry["name"]: PlanTensor(**entry) for entry in plan["io"]}
        self._profiles_in_use: dict[int, Any] = {}
        self._contexts = 0
        self._kernel: Any = None
        self._inspectors: list[Any] = []
        self._begin()

    def __del__(self) -> None:
        # Source: what ~Engine of 8.5.3.1 logged on an H200, 2026-11-28.
        if any(inspector() is not None for inspector in self._inspectors):
            reason = "before destroying objects it created leads to undefined behavior"
            self._gpu.complaints.append(f"Destroying an engine object {reason}.")
        Counted.__del__(self)

    def _compute(self, feeds: dict[str, Any]) -> dict[str, Any]:
        plan = self._plan
        self._kernel = self._kernel or make_kernel(plan["model"], [*plan["marked"], *plan["unfused"]])
        return self._kernel(feeds)  # type: ignore[no-any-return]

    def _node_names(self) -> list[str]:
        nodes = onnx.load_from_string(self._plan["model"]).graph.node
        return [node.name or node.op_type for node in nodes]

    @property
    def num_layers(self) -> int:
        # Source: Polygraphy, backend/trt/util.py `str_from_engine`: before 10, those of all profiles.
        return len(self._plan["layers"]) * listed_profiles(self._module, self._plan)

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._plan["profiles"])

    @property
    def refittable(self) -> bool:
        return bool(self._plan["refittable"])

    @property
    def device_memory_size(self) -> int:
        # Source: header, getDeviceMemorySizeV2: the maximum "across all profiles"; here twice for each.
        return CONTEXT_BYTES << (len(self._plan["profiles"]) - 1)

    device_memory_size_v2 = device_memory_size

    def get_engine_stat(self, stat: Any) -> int:
        entries = self._plan["weights"].values()
        whole = stat.name == "TOTAL_WEIGHTS_SIZE"
        return sum(entry["bytes"] for entry in entries if whole or not entry["sha256"])

    @property
    def streamable_weights_size(self) -> int:
        entries = self._plan["weights"].values() if self._plan["streams_weights"] else ()
        return sum(entry["bytes"] for entry in entries)

    @property
    def weight_streaming_budget_v2(self) -> int:
        return int(vars(self).get("_budget", self.streamable_weights_size))

    @weight_streaming_budget_v2.setter
    def weight_streaming_budget_v2(self, value: int) -> None:
        # Source: header, setWeightStreamingBudgetV2: "must be a non-negative value", "cannot be modified
        # while there are active IExecutionContexts"; the binding drops the answer.
        if value < 0 or self._contexts:
            usage_error(self, "ICudaEngine::setWeightStreamingBudgetV2", "the budget cannot be set")
        else:
            self._budget = value

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_dtype(self, name: str) -> Any:
        return self._module.DataType[self._tensors[name].dtype]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def get_tensor_mode(self, name: str) -> Any:
        return self._module.TensorIOMode[self._tensors[name].mode]

    def get_tensor_location(self, name: str) -> Any:
        return self._module.TensorLocation["HOST" if self._tensors[name].holds_shape else "DEVICE"]

    def get_tensor_format(self, name: str, profile: int = 0) -> Any:
        return self._module.TensorFormat[self._tensors[name].format]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        return [tuple(shape) for shape in self._plan["profiles"][profile_index][name]]

    def is_shape_inference_io(self, name: str) -> bool:
        return self._tensors[name].holds_shape

    def get_tensor_profile_values(self, profile: int, name: str) -> list[list[int]]:
        # Source: binding, get_tensor_profile_values.
        if not (self._tensors[name].holds_shape and self._tensors[name].is_input):
            raise RuntimeError("Binding index does not correspond to an input shape tensor.")
        return list(self._plan["values"][profile].get(name, []))

    def create_engine_inspector(self) -> Any:
        # Source: binding, create_engine_inspector: what keeps the engine alive, `keep_alive<0, 1>`, is not in
        # release/8.5.
        inspector = self._module.EngineInspector()
        is_first = self._module.__version__.startswith("8.5")
        inspector._engine = weakref.proxy(self) if is_first else self
        self._inspectors.append(weakref.ref(inspector))
        return inspector

    def create_runtime_config(self) -> Any:
        return self._module.IRuntimeConfig()

    def create_execution_context(self, *config: Any) -> Any:
        # Source: binding, create_execution_context: None for C++'s nullptr.
        if self._gpu.enter("create_execution_context"):
            complain(self, "out of memory")
            return None
        context = self._module.IExecutionContext()
        context._open(self, *config)
        return context

    def create_serialization_config(self) -> Any:
        return self._module.ISerializationConfig(excluded=self._plan["stripped"])

    def serialize(self) -> Any:
        return self._module.IHostMemory(pack(self._plan))

    def serialize_with_config(self, config: Any) -> Any:
        excluded = config._flags >> int(self._module.SerializationFlag.EXCLUDE_WEIGHTS) & 1
        return self._module.IHostMemory(pack({**self._plan, "stripped": bool(excluded)}))


class SerializationConfig:
    """ISerializationConfig; of a stripped engine it leaves the weights out unless told otherwise.

    Source: NvInferRuntime.h, `ISerializationConfig` and `SerializationFlag`; docs.nvidia.com,
    "Weight-stripped engines", on what a stripped engine leaves out.
    """

    def __init__(self, *, excluded: bool) -> None:
        self._flags = int(excluded) << int(self._module.SerializationFlag.EXCLUDE_WEIGHTS)

    def clear_flag(self, flag: Any) -> bool:
        self._flags &= ~(1 << int(flag))
        return True


class Refitter:
    """Refitter: takes all weights that are missing before it refits.

    Source: NvInferRuntime.h, `IRefitter`: false if `getMissingWeights() != 0`, and for a name, count or type
    that is not the prototype's.
    """

    def __init__(self, engine: Any, log: Any) -> None:
        self._engine, self._log = engine, registered_logger(self, log, "Refitter")
        self._arrays: dict[str, Any] = {}
        if not engine._plan["refittable"]:
            say(self, "ERROR", "IRefitter: Error Code 4: API Usage Error (engine is not refittable)")

    def get_all_weights(self) -> list[str]:
        return list(self._engine._plan["weights"])

    def get_missing_weights(self) -> list[str]:
        entries = self._engine._plan["weights"].items()
        return [name for name, entry in entries if not entry["sha256"] and name not in self._arrays]

    def set_named_weights(self, name: str, weights: Any, *_: Any) -> bool:
        array = np.asarray(getattr(weights, "_array", weights))
        entry = self._engine._plan["weights"].get(name)
        if entry is None or list(array.shape) != entry["shape"] or str(array.dtype) != entry["dtype"]:
            required = f"{entry['dtype']} {entry['shape']}" if entry else "no such weights"
            text = f"{name}: {array.dtype} {list(array.shape)}; {required}"
            usage_error(self, "IRefitter::setNamedWeights", text)
            return False
        self._arrays[name] = np.array(array)
        return True

    def refit_cuda_engine(self) -> bool:
        plan, missing = self._engine._plan, self.get_missing_weights()
        if missing or not plan["refittable"]:
            text = f"IRefitter::refitCudaEngine: Error Code 4: missing weights: {', '.join(missing)}"
            say(self, "ERROR", text)
            return False
        model = onnx.load_from_string(plan["model"])
        for item in model.graph.initializer:
            if item.name in self._arrays:
                item.CopyFrom(numpy_helper.from_array(self._arrays[item.name], item.name))
        for name, array in self._arrays.items():
            plan["weights"][name]["sha256"] = hashlib.sha256(array.tobytes()).hexdigest()
        plan["model"], plan["stripped"], self._engine._kernel = model.SerializeToString(), False, None
        return True


class ParserRefitter(ErrorList):
    """OnnxParserRefitter: gives a refitter the weights of an ONNX file, by their names.

    Source: NvOnnxParser.h of onnx-tensorrt 10.0-GA, `IParserRefitter`; ModelRefitter.cpp.
    """

    def __init__(self, refitter: Any, log: Any) -> None:
        self._refitter, self._log = refitter, log
        self._errors: list[Any] = []

    def refit_from_file(self, path: str) -> bool:
        items = {item.name: item for item in onnx.load(path).graph.initializer}
        for name in self._refitter.get_all_weights():
            item = items.get(name)
            if item is None or not self._refitter.set_named_weights(name, numpy_helper.to_array(item)):
                reason = "not found" if item is None else "of another shape"
                self._add_error(f"Failed to refit weights {name}: {reason}")
                return False
        return True


BEHAVIOURS: dict[str, Any] = {
    "Runtime": Runtime,
    "ICudaEngine": Engine,
    "EngineInspector": Inspector,
    "ISerializationConfig": SerializationConfig,
    "Refitter": Refitter,
    "OnnxParserRefitter": ParserRefitter,
}
