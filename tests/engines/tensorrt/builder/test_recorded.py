"""The stand-ins for four TensorRT versions have exactly what each of them has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tensorrt_rtx
from recorded_tensorrt import VERSIONS, NotSimulated, recorded_module
from simulated_builder import simulated_tensorrt
from tensorrt_bench import listen


@pytest.mark.parametrize(
    ("version", "absent"),
    [
        ("8.5.3", "NetworkDefinitionCreationFlag.STRONGLY_TYPED IProgressMonitor OnnxParserRefitter "
                  "IBuilderConfig.builder_optimization_level IBuilderConfig.hardware_compatibility_level "
                  "BuilderFlag.STRIP_PLAN DataType.INT64 DataType.BF16 LayerType.CAST ILayer.metadata "
                  "ParserError.node_name Builder.get_plugin_registry EngineStat Runtime.get_engine_validity"),
        ("10.16", "ComputeCapability IBuilderConfig.set_compute_capability LayerType.FULLY_CONNECTED "
                  "ICudaEngine.num_bindings IBuilderConfig.max_workspace_size"),
        ("11.4", "BuilderFlag.FP16 BuilderFlag.INT8 IBuilderConfig.int8_calibrator IInt8EntropyCalibrator2 "
                 "NetworkDefinitionCreationFlag.EXPLICIT_BATCH ILayer.precision "
                 "ICudaEngine.device_memory_size Builder.platform_has_fast_fp16 ITensor.dynamic_range"),
        ("rtx", "BuilderFlag.FP16 BuilderFlag.INT8 IBuilderConfig.int8_calibrator ILayer.precision "
                "NetworkDefinitionCreationFlag.EXPLICIT_BATCH ComputeCapability.SM90 ITensor.location"),
    ],
)  # fmt: skip
def test_what_a_version_lacks_is_absent_from_its_stand_ins(version: str, absent: str) -> None:
    for module in (recorded_module(version), simulated_tensorrt(version)):
        for path in absent.split():
            *owner, name = path.split(".")
            holder = getattr(module, owner[0]) if owner else module
            assert not hasattr(holder, name), path
            with pytest.raises(AttributeError):
                getattr(holder, name)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_member_is_there_and_none_beside(version: str) -> None:
    folder = Path(recorded_module.__code__.co_filename).parent / "trt_api"
    prefix = "tensorrt_rtx" if version == "rtx" else f"tensorrt-{version}"
    (file,) = folder.glob(f"{prefix}*.json")
    names = json.loads(file.read_text())["names"]
    for module in (recorded_module(version), simulated_tensorrt(version)):
        assert module.__version__ in file.name
        public = {name for name in vars(module) if not name.startswith("_")}
        assert public - {"recorded_calls"} == set(names)
        for name, entry in names.items():
            if "enum" in entry:
                assert sorted(getattr(module, name).__members__) == sorted(entry["enum"])
            elif "members" in entry:
                found = {member for member in dir(getattr(module, name)) if not member.startswith("_")}
                built_in = set(dir(bytes)) if name == "IHostMemory" else set()
                assert found - built_in | set(entry["members"]) & built_in == set(entry["members"]), name


def test_the_recorded_names_are_those_of_the_installed_rtx() -> None:
    module = recorded_module("rtx")
    if module.__version__ != tensorrt_rtx.__version__:
        pytest.skip(f"recorded {module.__version__}, installed {tensorrt_rtx.__version__}")
    assert module.__name__ == tensorrt_rtx.__name__
    for name in (name for name in vars(module) if name[0] != "_" and name != "recorded_calls"):
        ours, theirs = getattr(module, name), getattr(tensorrt_rtx, name)
        if hasattr(ours, "__members__"):
            assert set(ours.__members__) == set(theirs.__members__), name
        elif isinstance(ours, type):
            assert all(hasattr(theirs, member) for member in ours._members), name


@pytest.mark.parametrize(
    "name",
    [
        "DataType", "TensorIOMode", "TensorFormat", "ProfilingVerbosity", "EngineCapability", "ErrorCode",
        "HardwareCompatibilityLevel", "ComputeCapability", "EngineInvalidityDiagnostics",
    ],
)  # fmt: skip
def test_numbers_that_code_may_rely_on_are_the_real_ones(name: str) -> None:
    ours, theirs = getattr(recorded_module("rtx"), name), getattr(tensorrt_rtx, name)
    assert {key: int(value) for key, value in ours.__members__.items()} == {
        key: int(value) for key, value in theirs.__members__.items()
    }


@pytest.mark.parametrize("module", [recorded_module("rtx"), tensorrt_rtx], ids=["recorded", "real"])
def test_enumerations_and_classes_behave_as_bindings_do(module: Any) -> None:
    severity = module.ILogger.Severity
    assert severity.ERROR <= severity.WARNING
    assert severity.ERROR == module.ILogger.ERROR
    assert severity.ERROR != 1
    assert (str(severity.ERROR), severity.VERBOSE.name, int(severity.INFO)) == (
        "Severity.ERROR",
        "VERBOSE",
        3,
    )
    assert module.DataType.FLOAT is not None
    assert module.DataType.FLOAT != 0
    assert str(module.float16) == "DataType.HALF"
    with pytest.raises(TypeError):
        assert module.DataType.FLOAT < module.DataType.HALF

    class Unfinished(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            self.own = 1

    with pytest.raises(TypeError, match=re.escape("__init__() must be called when overriding __init__")):
        Unfinished()


def test_own_attributes_are_for_python_subclasses_alone() -> None:
    module = recorded_module("10.16")
    config = module.IBuilderConfig()
    with pytest.raises(AttributeError, match="'IBuilderConfig' object has no attribute 'max_workspace'"):
        config.max_workspace = 1
    with pytest.raises(AttributeError):
        _ = config.max_workspace
    log, said = listen(module)
    log.errors = ["mine"]
    log.log(module.ILogger.Severity.INFO, "hello")
    assert (log.errors, said) == (["mine"], [("INFO", "hello")])


def test_a_member_without_behaviour_is_there_and_cannot_be_used() -> None:
    config = recorded_module("8.5.3").IBuilderConfig()
    assert hasattr(config, "set_flag")
    assert isinstance(config.set_flag, NotSimulated)
    with pytest.raises(NotImplementedError, match=r"IBuilderConfig\.set_flag: recorded, and not simulated"):
        config.set_flag(1)


def test_every_use_is_recorded_and_a_behaviour_loses_what_a_version_lacks() -> None:
    class Behaviour:
        DLA_core = -1
        max_aux_streams = -1

        def set_flag(self, flag: int) -> str:
            return f"flag {flag}"

    old = recorded_module("8.5.3", {"IBuilderConfig": Behaviour})
    config = old.IBuilderConfig()
    config.DLA_core = 1
    assert (config.set_flag(3), config.DLA_core) == ("flag 3", 1)
    assert not hasattr(config, "max_aux_streams")
    assert [(call.owner, call.member, call.args, call.written) for call in old.recorded_calls] == [
        ("IBuilderConfig", "__init__", (), False),
        ("IBuilderConfig", "DLA_core", (1,), True),
        ("IBuilderConfig", "set_flag", (3,), False),
    ]
