"""What processes do behind a user's back: they report to nobody, and import nothing of the current folder.

Nothing of ours connects but by loopback, or leaves a file under a fresh home. A folder with files named like
the standard library's does nothing to the verbs started in it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from written_models import model_of

from qcompile.cli import main
from qcompile.core.processes.child import module_command

NAMES = ("random", "json", "numpy", "types", "typing", "runpy", "qcompile", "sitecustomize", "onnxruntime")


# ONNX Runtime 1.31.1 resolves its host 8.6 s after its import, OpenVINO 2026.4 at once. All wait together.
ALIVE_S = 10.0

PROGRAM = """
import os, sys, time
import qcompile
from qcompile.core.processes.worker import Worker

model, seconds = sys.argv[1], float(sys.argv[2])
began = time.monotonic()
with Worker("one", module="qcompile.bench.worker", threads=1) as worker:
    worker.ask("load", artifact=model, threads=1, io=None)
    with qcompile.load(model):
        import openvino
        openvino.Core().compile_model(model, "CPU")
        time.sleep(max(began + seconds - time.monotonic(), 0))
"""

_PLACE = re.compile(r'sa_family=(\w+)(?:.*?(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]*)")?')


def why_no_strace() -> str:
    """Why system calls cannot be watched here; empty where they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(["strace", "-f", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "strace is not permitted here"


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process with every runtime; a folder with its fresh home and, where watched, its system calls.

    It sleeps most of the time; the other tests of this file run meanwhile.
    """
    folder = tmp_path_factory.mktemp("runtimes")
    (folder / "home").mkdir()
    model = model_of("(float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }")
    onnx.save(model, folder / "model.onnx")
    # Variables that would change what a runtime reports, or where: as a user has them, without.
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    environment = kept | {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home/.cache")}
    command = [sys.executable, "-c", PROGRAM, str(folder / "model.onnx"), str(ALIVE_S)]
    if not why_no_strace():
        trace = "strace -f -qq -e trace=connect,sendto,sendmsg,sendmmsg -o".split()
        command = [*trace, str(folder / "calls.txt"), *command]
    process = subprocess.Popen(command, env=environment)
    yield process, folder
    process.kill()
    process.wait()


@pytest.mark.usefixtures("runtimes")
def test_a_users_own_setting_does_not_switch_it_on() -> None:
    ask = "import os, qcompile; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "0"}
    done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, check=True)
    assert done.stdout.strip() == b"1"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; a file `ran` appears in it when something of it is imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"open({str(folder / 'ran')!r}, 'a').write('{name} ')\nraise SystemExit(7)\n"
        )
    monkeypatch.chdir(folder)
    return folder


def test_workers_import_nothing_from_the_current_folder(
    hostile: Path, tiny_file: Callable[..., Path], samples: Callable[..., Path]
) -> None:
    model, data = str(tiny_file("residual")), str(samples("residual", 8))
    for words in (
        ["bench", model, "--baseline", model, "--max-time", "0.01", "--threads", "1"],
        ["diff", model, model],
        ["diff", "--layers", model, model, "--data", data, "--samples", "2"],
        ["calibrate", model, "--data", data, "-o", "x.ranges"],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words, "-q"])
        assert ended.value.code == 0, words
    assert not (hostile / "ran").exists(), (hostile / "ran").read_text()


@pytest.mark.parametrize("variable", ["", "PYTHONSAFEPATH"])
def test_a_folder_that_is_named_in_pythonpath_is_still_looked_in(
    hostile: Path, tmp_path: Path, variable: str
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "named.py").write_text("print('found')\n")
    program = packages / "program.py"
    program.write_text("import named, random, sys\nprint(sys.argv[1:])\n")
    environment = {**os.environ, "PYTHONPATH": str(packages)} | ({variable: "1"} if variable else {})
    command = module_command("program", "a b")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "found\n['a b']\n"
    assert not (hostile / "ran").exists()


def test_the_module_run_by_python_m_leaves_the_current_folder_out_of_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "qcompile", "doctor", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "random" not in done.stderr


def test_no_file_is_left_in_a_fresh_home(runtimes: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, folder = runtimes
    assert process.wait(timeout=300) == 0
    assert [str(path) for path in (folder / "home").rglob("*")] == []


@pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())
def test_processes_that_live_for_seconds_connect_to_nobody(
    runtimes: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, folder = runtimes
    assert process.wait(timeout=300) == 0
    calls = (folder / "calls.txt").read_text()
    places = {found.groups() for found in map(_PLACE.search, calls.splitlines()) if found}
    away = {
        (family, address)
        for family, address in places
        if family in ("AF_INET", "AF_INET6") and not (address or "").startswith(("127.", "::1"))
    }
    assert not away
