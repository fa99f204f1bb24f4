"""A verb in a process of its own: its end is told, and nothing of it is left.

The data of a calibration does what a hostile file would make native code do.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import parser

from qcompile.core.processes.child import module_command
from qcompile.core.processes.untrusted import Limits, run_untrusted
from qcompile.errors import InvalidOption, WorkerError

MakePath = Callable[..., Path]
_DATA = """
import os, signal, subprocess, sys, time
import numpy as np


def sample():
    return {{"x": np.zeros((1, 16), np.float32)}}


def harm():
{body}
    return [sample(), sample()]
"""


@pytest.fixture
def calibration(tiny_file: MakePath, tmp_path: Path) -> Callable[[str], list[str]]:
    """`calibration("os.abort()")` is the command line of a calibration during which that is run."""

    def words(body: str) -> list[str]:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (tmp_path / "data.py").write_text(_DATA.format(body=lines))
        data, output = f"{tmp_path / 'data.py'}:harm", str(tmp_path / "m.ranges")
        return ["calibrate", str(tiny_file("mlp")), "--data", data, "-o", output]

    return words


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The names of what a command has left beside its output and among the temporary files."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    before = {"mlp.onnx", "data.py", "temporary", "__pycache__"}
    return lambda: sorted({path.name for path in [*tmp_path.iterdir(), *place.iterdir()]} - before)


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
Words = Callable[[str], list[str]]
Left = Callable[[], list[str]]
UNFINISHED = """\
from qcompile.core.files import temporary_folder, writing
from pathlib import Path
with temporary_folder("test") as made, writing(Path(__file__).with_name("half.onnx")) as path:
    path.write_text("half")
    (made / "file").write_text("temporary")
    os.kill(os.getpid(), signal.{name})
    time.sleep(60)"""


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_a_crash_is_an_error_and_no_file_is_left(calibration: Words, left: Left, name: str) -> None:
    with pytest.raises(WorkerError, match=rf"calibrate: its process .*\({name}\)") as raised:
        run_untrusted(calibration(UNFINISHED.format(name=name)))
    assert raised.value.exit_code == 1
    assert not left()


def test_a_verb_that_takes_too_long_is_ended(calibration: Words, left: Left) -> None:
    with pytest.raises(WorkerError, match=r"took more than 1\.5 s") as raised:
        run_untrusted(calibration("time.sleep(600)"), Limits(time_s=1.5))
    assert "time_limit_s" in raised.value.hint
    assert not left()


def test_memory_counts_that_of_processes_it_starts(calibration: Words, left: Left, tmp_path: Path) -> None:
    """As the workers of bench, the started one leads a session of its own."""
    hold = "import time, sys; held = bytearray(2**29); sys.stdin.read()"
    body = (
        f"held = subprocess.Popen([sys.executable, '-c', {hold!r}], stdin=subprocess.PIPE, "
        f"start_new_session=True)\nopen({str(tmp_path / 'temporary' / 'pid')!r}, 'w').write(str(held.pid))\n"
        "time.sleep(600)"
    )
    with pytest.raises(WorkerError, match=r"held 0\.\d+ GB of memory; at most 0\.4 GB"):
        run_untrusted(calibration(body), Limits(memory_gb=0.4, time_s=60))
    assert not _alive(int((tmp_path / "temporary" / "pid").read_text()))
    assert left() == ["pid"]


BOMBS = {
    "a constant of 2 GB": """shape = Constant <value = int64[1] {500000000}> ()
        t = ConstantOfShape (shape)  s = ReduceSum (t)""",
    "a loop that doubles": """count = Constant <value = int64 {29}> ()
        none = Constant <value = bool {1}> ()
        t = Loop (count, none, x) <body = b (int64 i, bool go, float[m] held) => (bool on, float[k] twice)
            { on = Identity (go)  twice = Concat <axis = 0> (held, held) }>
        s = ReduceSum (t)""",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_few_bytes_that_make_gigabytes_are_ended(left: Left, tmp_path: Path, bomb: str) -> None:
    header = '<ir_version: 8, opset_import: ["" : 13]> g (float[1] x) => (float[n] y)'
    path = tmp_path / "bomb.onnx"
    onnx.save(parser.parse_model(f"{header} {{ {BOMBS[bomb]}  y = Add (s, x) }}"), path)
    with pytest.raises(WorkerError, match=r"simplify: ended: its processes held [\d.]+ GB of memory"):
        run_untrusted(["simplify", str(path), "-o", str(tmp_path / "s.onnx")], Limits(memory_gb=0.4))
    assert left() == ["bomb.onnx"]


def test_a_verb_that_ends_by_itself_gives_its_exit_code_and_output(calibration: Words, left: Left) -> None:
    finished = run_untrusted([*calibration("pass"), "--json"])
    assert (finished.code, '"path"' in finished.output) == (0, True)
    assert left() == ["m.ranges", "m.ranges.json"]
    assert run_untrusted(["calibrate", "--no-such-option"]).code == 2


def test_the_process_limits_itself(calibration: Words, tmp_path: Path) -> None:
    told = tmp_path / "told"
    body = (
        "import resource\n"
        "kinds = resource.RLIMIT_CORE, resource.RLIMIT_NOFILE\n"
        "said = [resource.getrlimit(kind)[0] for kind in (*kinds, resource.RLIMIT_CPU)]\n"
        "said.append(int(open('/proc/self/oom_score_adj').read()))\n"
        f"open({str(told)!r}, 'w').write(repr(said))"
    )
    assert run_untrusted(calibration(body), Limits(time_s=50)).code == 0
    core, files, processor_s, first_to_end = json.loads(told.read_text())
    assert (core, first_to_end) == (0, 1000)
    assert 0 < files <= 4096
    assert 50 <= processor_s < 10**7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_ends_with_the_one_that_watches(
    calibration: Words, tmp_path: Path, number: signal.Signals
) -> None:
    told = tmp_path / "told"
    body = (
        f"open({str(told)!r} + '~', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(told)!r} + '~', {str(told)!r})\n"
        "time.sleep(600)"
    )
    command = module_command("qcompile.__main__", *calibration(body), "--untrusted")
    watching = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        pid = int(_wait(lambda: told.is_file() and told.read_text()))
        watching.send_signal(number)
        assert watching.wait(60) != 0
        assert _wait(lambda: not _alive(pid))
    finally:
        watching.kill()
        watching.wait()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait(what: Callable[[], object]) -> object:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("nothing happened for half a minute")


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_are_positive_numbers(value: float) -> None:
    with pytest.raises(InvalidOption, match="memory_limit_gb"):
        Limits(memory_gb=value)
    with pytest.raises(InvalidOption, match="time_limit_s"):
        Limits(time_s=value)
