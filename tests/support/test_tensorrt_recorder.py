"""The real TensorRT-RTX is recorded and replayed: recordings made here, and one of `tests/samples`."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_builds import build_and_look
from replayed_tensorrt import Differs, Tape
from tensorrt_recorder import record, stop_recording

import qcompile
from qcompile.engines.tensorrt import log
from qcompile.engines.tensorrt.adapter import load_adapter
from qcompile.errors import UnsupportedOperator

tensorrt_rtx = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")

MakeFile = Callable[..., Path]
SUPPORT = Path(__file__).parent
SAMPLES = sorted((SUPPORT.parent / "samples/tensorrt").glob("tensorrt-rtx-*.jsonl"))
LOGGERS: list[dict[Any, Any]] = []
BATCHES = {"min_shapes": (1,), "opt_shapes": (2,), "max_shapes": (4,)}


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """TensorRT-RTX is recorded to this file; afterwards it is as it was."""
    path = tmp_path / "recording.jsonl"
    # As in a process that records from its start: the logger is made while it does. None is ever freed.
    loggers: dict[Any, Any] = {}
    LOGGERS.append(loggers)
    monkeypatch.setattr(log, "_loggers", loggers)
    record(tensorrt_rtx, path)
    yield path
    stop_recording(tensorrt_rtx)
    gc.collect()


def build(model: Path, output: Path, **more: Any) -> str:
    """Build for an sm86 and return the digest of the engine."""
    shapes = {key: {"x": (*value, 16)} for key, value in BATCHES.items()}
    built = qcompile.build(model, output, target="tensorrt-rtx", gpus=["sm86"], **shapes, **more)
    return hashlib.sha256(built.path.read_bytes()).hexdigest()


def events(path: Path) -> list[dict[str, Any]]:
    """The lines of a recording after the header."""
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_a_recorded_build_makes_the_same_engine(tiny_file: MakeFile, tmp_path: Path, recording: Path) -> None:
    with_recorder = build(tiny_file("mlp"), tmp_path / "recorded.engine")
    assert any(event.get("call") == "Builder.build_serialized_network" for event in events(recording))
    stop_recording(tensorrt_rtx)
    size = recording.stat().st_size
    assert build(tiny_file("mlp"), tmp_path / "plain.engine") == with_recorder
    assert recording.stat().st_size == size


def test_the_module_is_given_back_as_it_was(tmp_path: Path) -> None:
    def members() -> dict[str, Any]:
        kinds = [value for value in vars(tensorrt_rtx).values() if isinstance(value, type)]
        return {f"{kind.__name__}.{name}": value for kind in kinds for name, value in vars(kind).items()}

    before = members()
    record(tensorrt_rtx, tmp_path / "recording.jsonl")
    assert members() != before
    stop_recording(tensorrt_rtx)
    assert members() == before


def test_the_header_says_what_was_recorded_and_every_name_there_is(recording: Path) -> None:
    header = json.loads(recording.read_text().splitlines()[0])
    assert (header["recording"], header["module"]) == (1, "tensorrt_rtx")
    assert header["tensorrt"] == tensorrt_rtx.__version__
    assert {"gpu", "driver", "date", "qcompile", "python"} <= header.keys()
    assert header["names"]["DataType"]["enum"]["INT64"] == 8
    assert header["names"]["IBuilderConfig"]["class"]["profiling_verbosity"] == "property"
    assert header["names"]["ILogger"]["class"]["Severity"]["ERROR"] == 1
    public = {name for name in vars(tensorrt_rtx) if not name.startswith("_")}
    assert set(header["names"]) == public


def recording_to(path: Path) -> dict[str, str]:
    """The environment of a process that records from its start."""
    folders = [str(SUPPORT / "recording"), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "QCOMPILE_TENSORRT_RECORD": str(path)}
    return {**os.environ, **variables}


RECORDED = """
import sys
import qcompile
from qcompile.errors import QCompileError
shapes = dict(min_shapes={"x": (1, 16)}, opt_shapes={"x": (2, 16)}, max_shapes={"x": (4, 16)})
shapes = shapes if "mlp" in sys.argv[1] else {}
try:
    qcompile.build(sys.argv[1], sys.argv[2], target="tensorrt-rtx", gpus=["sm86"], **shapes)
except QCompileError as error:
    print(error.message)
"""
"""TensorRT's logger is one for a process, so what it says is recorded where nobody has used it before."""


@pytest.fixture
def record_elsewhere(tmp_path: Path) -> Callable[[Path, Path], tuple[Path, str]]:
    """Record a build in another process: the recording, and the message of what was refused."""

    def run(model: Path, output: Path) -> tuple[Path, str]:
        path = tmp_path / "elsewhere.jsonl"
        done = subprocess.run(
            [sys.executable, "-c", RECORDED, str(model), str(output)],
            capture_output=True, text=True, check=True, timeout=120,
            env=recording_to(path),
        )  # fmt: skip
        return path, done.stdout.strip()

    return run


def test_log_lines_lie_in_the_call_that_made_them(
    tiny_file: MakeFile, tmp_path: Path, record_elsewhere: Any
) -> None:
    path, _ = record_elsewhere(tiny_file("mlp"), tmp_path / "m.engine")
    found = events(path)
    calls = {event["n"]: event["call"] for event in found if "call" in event}
    lines = [event for event in found if event.get("callback") == "ILogger.log"]
    assert {calls[event["in"]] for event in lines} >= {
        "OnnxParser.parse_from_file",
        "Builder.build_serialized_network",
    }
    assert {event["callback"] for event in found if "callback" in event} >= {"IProgressMonitor.phase_start"}
    (plan,) = (event["gives"] for event in found if "IHostMemory" in str(event.get("gives")))
    written = (tmp_path / "m.engine").read_bytes()
    assert (plan["bytes"], plan["sha256"]) == (len(written), hashlib.sha256(written).hexdigest())


def test_a_recorded_build_is_replayed_in_place_of_tensorrt(
    tiny_file: MakeFile, tmp_path: Path, record_elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = record_elsewhere(tiny_file("mlp"), tmp_path / "real.engine")
    tape = Tape.read(path)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", tape.module)
    build(tiny_file("mlp"), tmp_path / "replayed.engine")
    assert tape.is_at_end, tape.next_use
    manifests = [
        qcompile.artifact.read_manifest(tmp_path / f"{name}.engine") for name in ("real", "replayed")
    ]
    assert manifests[0] is not None
    assert manifests[1] is not None
    assert manifests[0].proof == manifests[1].proof
    assert manifests[0].size_bytes == manifests[1].size_bytes


def test_a_refusal_is_recorded_and_replayed(
    tmp_path: Path, record_elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
        tiny (float[2,3] x) => (float[2,3] y) { h = Relu(x) y = com.example.Unknown(h) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    path, said = record_elsewhere(tmp_path / "m.onnx", tmp_path / "m.engine")
    if path.is_file():  # else the node was refused before TensorRT was asked
        monkeypatch.setitem(sys.modules, "tensorrt_rtx", Tape.read(path).module)
    with pytest.raises(UnsupportedOperator) as caught:
        qcompile.build(tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"])
    assert caught.value.message == said
    assert "Unknown" in said


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_recording_kept_here_is_what_the_real_one_says(path: Path, tmp_path: Path) -> None:
    tape = Tape.read(path)
    replayed = build_and_look(tape.module, tmp_path)
    assert tape.is_at_end, tape.next_use
    if tape.header["tensorrt"] != tensorrt_rtx.__version__:
        pytest.skip(f"recorded {tape.header['tensorrt']}, installed {tensorrt_rtx.__version__}")
    real = build_and_look(tensorrt_rtx, tmp_path)
    gc.collect()
    assert replayed == real


def test_there_is_a_recording_of_a_real_tensorrt() -> None:
    assert SAMPLES


def test_the_first_use_that_differs_is_named() -> None:
    module = Tape.read(SAMPLES[0]).module
    listener = type("Log", (module.ILogger,), {"log": lambda *_: None})()
    builder = module.Builder(listener)
    with pytest.raises(Differs, match=r"use 3: recorded call Builder.create_network\(1\), made .*\(2\)"):
        builder.create_network(2)
    with pytest.raises(Differs, match=r"create_network.*made call .*create_builder_config"):
        builder.create_builder_config()
    network = builder.create_network(1)
    with pytest.raises(Differs, match=r"recorded call OnnxParser.__init__.*made get .*num_layers"):
        _ = network.num_layers
    with pytest.raises(AttributeError):
        _ = network.no_such_member


def test_no_recording_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text("of another process")
    (tmp_path / "recording.jsonl.2").write_text("of a third one")
    record(tensorrt_rtx, path)
    stop_recording(tensorrt_rtx)
    assert path.read_text() == "of another process"
    assert (tmp_path / "recording.jsonl.2").read_text() == "of a third one"
    assert (tmp_path / "recording.jsonl.3").read_text().startswith('{"recording": 1')


DIES = """
import os
from qcompile.engines.tensorrt.adapter import load_adapter
module = load_adapter("tensorrt-rtx").module

class Log(module.ILogger):
    def __init__(self):
        module.ILogger.__init__(self)
    def log(self, severity, text):
        os._exit(3)

log = Log()
module.OnnxParser(module.Builder(log).create_network(0), log).parse_from_file("/nonexistent.onnx")
"""


def test_where_a_process_dies_the_last_line_says_in_which_call(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    command = [sys.executable, "-c", DIES]
    assert subprocess.run(command, check=False, timeout=120, env=recording_to(path)).returncode == 3
    assert events(path)[-1]["call"] == "OnnxParser.parse_from_file"


def test_a_monitor_is_called_and_ends_a_build_as_without_a_recorder(
    tiny_file: MakeFile, tmp_path: Path, recording: Path
) -> None:
    def interrupt(step: str, done: int = 0, _: int | None = None) -> None:
        if step == "build" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tiny_file("mlp"), tmp_path / "m.engine", progress=interrupt)
    name = "IProgressMonitor.step_complete"
    assert False in [event.get("gives") for event in events(recording) if event.get("callback") == name]


def test_the_product_records_nothing_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QCOMPILE_TENSORRT_RECORD", str(tmp_path / "recording.jsonl"))
    before = vars(tensorrt_rtx.Builder)["create_network"]
    load_adapter("tensorrt-rtx")
    assert vars(tensorrt_rtx.Builder)["create_network"] is before
