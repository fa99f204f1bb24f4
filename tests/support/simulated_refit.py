"""Behaviours of TensorRT's refitters, and of what an engine is serialized with."""

from __future__ import annotations

from typing import Any

from simulated_network import say
from simulated_process import registered_logger


class SerializationConfig:
    """ISerializationConfig; of a stripped engine it leaves the weights out unless told otherwise.

    Source: NvInferRuntime.h of release/10.13, `ISerializationConfig` and `SerializationFlag`;
    docs.nvidia.com, "Weight-stripped engines", on what a stripped engine leaves out.
    """

    def __init__(self, *, excluded: bool) -> None:
        self._flags = int(excluded) << int(self._module.SerializationFlag.EXCLUDE_WEIGHTS)

    def clear_flag(self, flag: Any) -> bool:
        self._flags &= ~(1 << int(flag))
        return True


class Refitter:
    """Refitter: takes all weights that are missing before it refits.

    Source: NvInferRuntime.h of release/10.13, `IRefitter`: false if `getMissingWeights() != 0`, and for a
    name, count or type that is not the prototype's.
    """

    def __init__(self, engine: Any, log: Any) -> None:
        self._engine, self._log = engine, registered_logger(self, log, "Refitter")
        self._given: dict[str, dict[str, Any]] = {}
        if not engine._plan["refittable"]:
            say(self, "ERROR", "IRefitter: Error Code 4: API Usage Error (engine is not refittable)")

    def get_all_weights(self) -> list[str]:
        return list(self._engine._plan["weights"])

    def get_missing_weights(self) -> list[str]:
        return self._missing()

    def set_named_weights(self, name: str, weights: Any, *_: Any) -> bool:
        import numpy as np

        return self._give(name, np.asarray(getattr(weights, "_array", weights)))

    def refit_cuda_engine(self) -> bool:
        if self._missing() or not self._engine._plan["refittable"]:
            missing = ", ".join(self._missing())
            say(self, "ERROR", f"IRefitter::refitCudaEngine: Error Code 4: missing weights: {missing}")
            return False
        self._engine._plan["weights"] |= self._given
        self._engine._plan["stripped"] = False
        return True

    def _missing(self) -> list[str]:
        entries = self._engine._plan["weights"]
        if not self._given:
            return [name for name, entry in entries.items() if not entry["sha256"]]
        return [name for name, entry in entries.items() if not entry["sha256"] and name not in self._given]

    def _give(self, name: str, array: Any) -> bool:
        import hashlib

        entry = self._engine._plan["weights"].get(name)
        if entry is None or list(array.shape) != entry["shape"] or str(array.dtype) != entry["dtype"]:
            found = f"{array.dtype} {list(array.shape)}"
            wanted = f"{entry['dtype']} {entry['shape']}" if entry else "no such weights"
            say(self, "ERROR", f"IRefitter::setNamedWeights: Error Code 3: {name}: {found}; {wanted}")
            return False
        self._given[name] = {**entry, "sha256": hashlib.sha256(array.tobytes()).hexdigest()}
        return True


class ParserRefitter:
    """OnnxParserRefitter: gives a refitter the weights of an ONNX file, by their names.

    Source: NvOnnxParser.h of onnx-tensorrt 10.0-GA, `IParserRefitter`; ModelRefitter.cpp.
    """

    def __init__(self, refitter: Any, log: Any) -> None:
        self._refitter, self._log = refitter, log
        self._errors: list[Any] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return self._errors[index]

    def refit_from_file(self, path: str) -> bool:
        import onnx
        from onnx import numpy_helper

        items = {item.name: item for item in onnx.load(path).graph.initializer}
        for name in self._refitter._engine._plan["weights"]:
            item = items.get(name)
            if item is None or not self._refitter._give(name, numpy_helper.to_array(item)):
                self._errors.append(self._error(name, "not found" if item is None else "of another shape"))
                return False
        return True

    def _error(self, name: str, reason: str) -> Any:
        return self._module.ParserError(
            code=self._module.ErrorCode.REFIT_FAILED,
            desc=f"Failed to refit weights {name}: {reason}",
            file="ModelRefitter.cpp",
            line=0,
            func="refitOnnxWeights",
            node=-1,
            name="",
            operator="",
        )


BEHAVIOURS: dict[str, Any] = {
    "ISerializationConfig": SerializationConfig,
    "Refitter": Refitter,
    "OnnxParserRefitter": ParserRefitter,
}
