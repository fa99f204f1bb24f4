"""Every verb under strace: whom it connects to, and where it writes.

    python benchmarks/reliability/connections.py [--only VERB] [--keep FOLDER] [--json FILE]

Each command runs with a fresh home and a temporary folder of its own, all its processes watched. A connection
is to loopback, to a socket of this machine, or away. A file that is opened for writing, made,
renamed or removed lies among the outputs, the temporary files, the home, or elsewhere; devices and /proc are
left out. Nothing away and nothing elsewhere is required: else the exit code is 1. Needs strace, and the
packages of the extras cpu, torch, openvino, tensorrt-rtx and report.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import qcompile

CALLS = (
    "connect,sendto,sendmsg,sendmmsg,open,openat,openat2,creat,rename,renameat,renameat2,mkdir,mkdirat,link,linkat,"
    "symlink,symlinkat,unlink,unlinkat,rmdir,truncate,mknod,mknodat,chmod,fchmodat,utimensat"
)
TIMEOUT_S = 900.0
_FAMILY = re.compile(r'sa_family=(AF_INET6?)\b.*?(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]*)"')
_CALL = re.compile(r"^\d+\s+(\w+)\((.*)\)\s+=\s+(-?\d+)(?:<(.*?)>)?")
_PATHS = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_WRITES = re.compile(r"O_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND)")
_UNWATCHED = ("/dev/", "/proc/", "/sys/", "pipe:", "socket:", "anon_inode:", "/memfd:")

_PLACES = ("outputs", "temporary", "home", "compiled")


@dataclass
class Watched:
    """What one command did.

    Attributes:
        words: As typed.
        code: Its exit code.
        away: Addresses that are not of this machine.
        loopback: Number of connections to it.
        places: Number of files written in "outputs", "temporary", "home", and "compiled": `__pycache__` of
            the package, where numba keeps what it compiled.
        elsewhere: Files written anywhere else.
        at_home: Files written in the fresh home.
    """

    words: list[str]
    code: int
    away: list[str] = field(default_factory=list)
    loopback: int = 0
    places: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_PLACES, 0))
    elsewhere: list[str] = field(default_factory=list)
    at_home: list[str] = field(default_factory=list)


def commands() -> Iterator[list[str]]:
    """Yield the words of every verb, in an order in which each finds what the earlier ones made."""
    model, data, ranges = "m.onnx", "data.npz", "m.ranges"
    yield ["completion", "bash"]
    yield ["doctor"]
    yield ["export", "model.py:build", "-o", "t.onnx", "-i", "x:[batch,4,8,8]"]
    yield ["simplify", model, "-o", "s.onnx"]
    yield ["calibrate", model, "--data", data, "-o", ranges, "--threads", "1"]
    yield ["ranges", "show", ranges, "--plot", "ranges.svg"]
    yield ["ranges", "merge", ranges, "-o", "merged.ranges"]
    yield ["ranges", "cache", ranges, "-o", "m.cache", "--tensorrt", "8.5.3"]
    yield ["quantize", model, "-o", "q.onnx", "--ranges", ranges, "--data", data]
    yield ["build", model, "--target", "onnxruntime", "-o", "ort.onnx"]
    yield ["build", model, "--target", "openvino", "-o", "ov.onnx"]
    yield ["build", model, "--target", "tensorrt-rtx", "--gpu", "sm86", "-o", "rtx.engine"]
    yield ["build", model, "--target", "tensorrt-rtx", "--gpu", "sm86", "--refit", "-o", "refit.engine"]
    yield ["build", "model.py:build", "--target", "torchscript", "-i", "x:1x4x8x8", "-o", "t.pt"]
    yield ["refit", "refit.engine", model, "-o", "again.engine"]
    yield ["inspect", model, "--nodes"]
    yield ["inspect", "rtx.engine"]
    yield ["inspect", model, "--untrusted"]
    yield ["diff", model, "ort.onnx", "--data", data, "--metric", "top1"]
    yield ["diff", model, "q.onnx", "--layers", "--data", data, "--samples", "2", "-o", "layers.json"]
    bench = ["--threads", "1", "--max-time", "0.5", "--evaluation", data]
    yield [
        "bench",
        "ort.onnx",
        "ov.onnx",
        "t.pt",
        "--baseline",
        model,
        *bench,
        "-o",
        "r.json",
        "--csv",
        "r.csv",
    ]
    yield ["bench", "compare", "r.json", "r.json"]
    yield ["report", "r.json", "-o", "r.html", "--ranges", ranges, "--layers", "layers.json"]
    yield ["package", "triton", "ort.onnx", "--name", "served", "-o", "repository"]
    yield ["package", "ep-context", "rtx.engine", "-o", "context.onnx"]
    yield ["migrate", f"trtexec --onnx={model} --fp16", "--target", "tensorrt-rtx", "-o", "migrated.toml"]
    targets = ["--target", "onnxruntime"]
    yield ["init", model, "--data", data, "-o", "recipe.toml", *targets, "--max-time", "1"]
    yield ["run", "recipe.toml", "--dry-run"]
    yield ["run", "recipe.toml"]
    drop = ["--max-drop", "100"]
    yield ["tune", model, "--data", data, *drop, *targets, "--threads", "1", "--max-time", "1", "-o", "tuned"]
    yield ["auto", model, "--data", data, *drop, *targets, "--max-time", "1", "-o", "compiled"]
    yield ["export", "hf:nobody/nothing", "-o", "none.onnx"]  # is not in the cache: nothing is asked for
    yield ["export", "timm:resnet18", "-o", "none.onnx"]


def make_files(folder: Path) -> None:
    """Write the model, as ONNX and as a function, and 64 samples with labels."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = 0.3 * generator.standard_normal(shape)
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "conv1", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("GlobalAveragePool", ["r1"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], "gemm", transB=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    weights = [weight("w1", 16, 4, 3, 3), weight("w2", 3, 16), weight("b2", 3)]
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "m.onnx")
    samples = generator.standard_normal((64, 4, 8, 8)).astype(np.float32)
    np.savez(folder / "data.npz", x=samples, labels=generator.integers(0, 3, 64))
    (folder / "model.py").write_text(
        "from torch import nn\n\ndef build():\n"
        "    layers = nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()\n"
        "    return nn.Sequential(*layers, nn.Linear(16, 3))\n"
    )


def watch(words: list[str], work: Path, home: Path, temporary: Path, calls: Path) -> Watched:
    """Run a command with all its processes traced; return what it did."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    environment = kept | {
        "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "TMPDIR": str(temporary),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    environment.pop("XDG_CONFIG_HOME", None)
    trace = [
        "strace",
        "-f",
        "-qq",
        "-y",
        "--seccomp-bpf",
        "-s",
        "4096",
        "-e",
        f"trace={CALLS}",
        "-o",
        str(calls),
    ]
    command = [*trace, sys.executable, "-P", "-m", "qcompile", *words]
    done = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    found = Watched(words, done.returncode)
    folders = {"temporary": temporary, "home": home, "outputs": work}
    folders["compiled"] = Path(str(qcompile.__file__)).parent
    for line in calls.read_text(errors="replace").splitlines():
        if address := _FAMILY.search(line):
            if address[2].startswith("127.") or address[2] == "::1":
                found.loopback += 1
            else:
                found.away.append(address[2])
            continue
        for path in _written(line, work):
            where = next((name for name, one in folders.items() if path.is_relative_to(one)), "")
            if where == "compiled" and "__pycache__" not in path.parts:
                where = ""
            if where:
                found.places[where] += 1
            if where == "home":
                found.at_home.append(str(path.relative_to(home)))
            if not where:
                found.elsewhere.append(str(path))
    found.elsewhere, found.at_home = sorted(set(found.elsewhere)), sorted(set(found.at_home))
    return found


def _written(line: str, work: Path) -> Iterator[Path]:
    """The files that a call wrote to, made, renamed or removed; nothing of one that failed."""
    call = _CALL.match(line)
    if call is None or int(call[3]) < 0 or call[1] in ("connect", "sendto", "sendmsg", "sendmmsg"):
        return
    if call[1].startswith("open") or call[1] == "creat":
        if call[1] != "creat" and not _WRITES.search(call[2]):
            return
        texts = [call[4] or ""]
    else:
        texts = [os.path.join(folder or str(work), name) for folder, name in _PATHS.findall(call[2])]
        if call[1] in ("symlink", "symlinkat"):
            texts = texts[1:]
    for text in texts:
        if text and not text.startswith(_UNWATCHED):
            yield Path(os.path.normpath(os.path.join(work, text.removesuffix("(deleted)"))))


def main() -> int:
    """Run every verb, and print what each did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="run the commands that begin with this word")
    parser.add_argument("--keep", type=Path, help="folder for the traces, kept")
    parser.add_argument("--json", type=Path, help="file for what was seen")
    given = parser.parse_args()
    if shutil.which("strace") is None:
        parser.error("strace is not installed")
    seen = []
    with tempfile.TemporaryDirectory(prefix="qcompile-connections-") as place:
        work, home, temporary = (Path(place, name) for name in ("work", "home", "tmp"))
        for folder in (work, home, temporary):
            folder.mkdir()
        make_files(work)
        for number, words in enumerate(commands()):
            if given.only and words[0] != given.only:
                continue
            kept = given.keep or Path(place)
            kept.mkdir(parents=True, exist_ok=True)
            one = watch(words, work, home, temporary, kept / f"{number:02}-{words[0]}.strace")
            seen.append(one)
            bad = f"  AWAY {one.away[:3]}" if one.away else ""
            bad += f"  ELSEWHERE {one.elsewhere[:5]}" if one.elsewhere else ""
            print(
                f"{' '.join(words)[:60]:60} exit {one.code}  {one.loopback} loopback  {one.places}{bad}",
                flush=True,
            )
        left = [str(path) for path in temporary.iterdir()]
        at_home = sorted({path for one in seen for path in one.at_home})
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in seen], indent=1) + "\n")
    away = sum(len(one.away) for one in seen)
    elsewhere = sum(len(one.elsewhere) for one in seen)
    failed = sum(one.code not in (0, 1) for one in seen)
    print(f"{len(seen)} commands: {away} connections away, {elsewhere} files written elsewhere")
    print(f"{failed} exit codes above 1; left in the temporary folder: {left or 'nothing'}")
    print(f"written at home: {at_home or 'nothing'}")
    return 1 if away or elsewhere else 0


if __name__ == "__main__":
    sys.exit(main())
