"""Change bytes of files that have a checksum, a manifest or a record, and count what is taken all the same.

    python benchmarks/reliability/integrity.py --seed 0
    python benchmarks/reliability/integrity.py --manifests 20000 --inputs 500 --records 2000

| part        | what is changed                                            | what must happen                |
|-------------|------------------------------------------------------------|---------------------------------|
| ranges      | every byte of a ranges file, no manifest beside it         | refused, or exactly equal ranges|
| checkpoints | every 7th byte of a checkpoint of a calibration            | begun anew, or equal counts     |
| manifests   | a random value or byte of a manifest; `inspect` looks      | refused, or it fits its types   |
| inputs      | a random byte of a model or ranges file with its manifest; | exit code 1, both digests named |
|             | `quantize` is given it                                     |                                 |
| records     | a random value or byte of a record of a finished stage     | no file outside the output      |

Exits with 1 if anything else happens.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qcompile.artifact import Manifest, commit, read_manifest
from qcompile.calibration import Ranges, load_ranges, save_ranges
from qcompile.calibration.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.ranges import Portion
from qcompile.cli import main as command_line
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.compiler.simplify.simplify import simplify
from qcompile.errors import QCompileError
from qcompile.files import manifest_path, writing
from qcompile.pipeline.store import Store

Trial = Callable[[], str]


def some_ranges() -> Ranges:
    generator = np.random.default_rng(0)
    ranges = Ranges("sha256:aa", {"sha256:dd": Portion(8)}, shared={"both": ("x", "y")}, skipped={"i": "int"})
    for name in ("x", "y"):
        ranges.histograms[name] = Histogram()
        ranges.histograms[name].add(generator.standard_normal(400).astype(np.float32))
    return ranges


def flipped(content: bytes, place: int, change: int) -> bytes:
    broken = bytearray(content)
    broken[place] ^= change
    return bytes(broken)


def ranges(folder: Path, rng: random.Random, count: int) -> Counter[str]:
    """Every byte, in one of 255 ways; `count` of 0 leaves it out."""
    path, again = folder / "a.ranges", folder / "b.ranges"
    save_ranges(some_ranges(), path)
    content, found = path.read_bytes(), Counter[str]()
    for place in range(0, len(content), max(1, count)) if count else ():
        path.write_bytes(flipped(content, place, rng.randrange(1, 256)))
        try:
            save_ranges(load_ranges(path), again)
        except QCompileError:
            found["refused"] += 1
            continue
        found["equal" if again.read_bytes() == content else "WRONG: other ranges were taken"] += 1
    return found


def checkpoints(folder: Path, rng: random.Random, count: int) -> Counter[str]:
    path, key = folder / "c.checkpoint", {"model": "sha256:aa"}
    save_checkpoint(Checkpoint(key, 3, 3, some_ranges().histograms), path)
    content, found = path.read_bytes(), Counter[str]()
    for place in range(0, len(content), 7 * count) if count else ():
        path.write_bytes(flipped(content, place, rng.randrange(1, 256)))
        read = load_checkpoint(path, key)
        if read is None:
            found["begun anew"] += 1
            continue
        save_checkpoint(read, path)
        found["equal" if path.read_bytes() == content else "WRONG: other counts were taken"] += 1
    return found


def some_json(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(9 if depth else 7)
    if kind == 7:
        return [some_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {rng.choice("abx"): some_json(rng, depth - 1) for _ in range(rng.randrange(4))}
    plain = (None, True, rng.randrange(-9, 1 << 70), rng.uniform(-1, 1), float("nan"), "\ud800é", "x" * 9)
    return plain[kind]


def places(value: Any, *at: Any) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [place for key, one in inner for place in places(one, *at, key)]


def changed(value: Any, rng: random.Random) -> str:
    """The JSON with one value replaced, or one byte of its text."""
    text = json.dumps(value)
    if rng.random() < 0.5:
        place = rng.randrange(len(text))
        return text[:place] + chr(rng.randrange(1, 0x2FF)) + text[place + 1 :]
    copy = json.loads(text)
    *path, last = rng.choice(places(copy))
    inner = copy
    for step in path:
        inner = inner[step]
    inner[last] = some_json(rng)
    return json.dumps(copy)


def manifests(folder: Path, rng: random.Random, count: int) -> Counter[str]:
    simplify(model_in(folder), folder / "s.onnx")
    engine = folder / "m.engine"
    with writing(engine) as path:
        path.write_bytes(b"plan")
        io_of = read_manifest(folder / "s.onnx")
        assert io_of is not None
        proof = {"layers_by_precision": {"int8": {"Conv": 2}}, "profiles": [{"x": {"min": [1]}}]}
        commit(path, Manifest(kind="engine", stage="build", io=io_of.io, device={"gpus": ["sm86"]},
                              options={"plugins": ["a.so"]}, proof=proof, warnings=["w"]))  # fmt: skip
    value, found = json.loads(manifest_path(engine).read_text()), Counter[str]()
    for _ in range(count):
        manifest_path(engine).write_text(changed(value, rng), encoding="utf-8", errors="surrogatepass")
        code, said = command("inspect", engine)
        if "Traceback" in said or "defect of qcompile" in said or code not in (0, 1):
            found[f"WRONG: {said.strip().splitlines()[-1]}"] += 1
        else:
            found["refused" if code else "taken: it fits its types"] += 1
    return found


def model_in(folder: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4, 8, 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    path = folder / "f.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def command(*words: object) -> tuple[int, str]:
    """Exit code, and what was printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            command_line([str(word) for word in words])
        except SystemExit as done:
            return int(done.code or 0), out.getvalue()
    return 0, out.getvalue()


def inputs(folder: Path, rng: random.Random, count: int) -> Counter[str]:
    simplify(model_in(folder), folder / "s.onnx")
    np.savez(folder / "x.npz", x=np.random.default_rng(0).standard_normal((4, 4, 8, 8)).astype(np.float32))
    calibrate(folder / "s.onnx", str(folder / "x.npz"), folder / "s.ranges")
    found = Counter[str]()
    for number in range(count):
        path = folder / ("s.onnx" if number % 2 else "s.ranges")
        content = path.read_bytes()
        path.write_bytes(flipped(content, rng.randrange(len(content)), rng.randrange(1, 256)))
        words = ("quantize", folder / "s.onnx", "--ranges", folder / "s.ranges", "-o", folder / "q.onnx")
        code, said = command(*words)
        named = "digest sha256:" in said and "differs from its manifest's sha256:" in said
        written = (folder / "q.onnx").exists()
        found["refused" if code == 1 and named and not written else f"WRONG: exit code {code}"] += 1
        path.write_bytes(content)
    return found


def records(folder: Path, rng: random.Random, count: int) -> Counter[str]:
    store, found = Store(folder / "out"), Counter[str]()
    store.folder.mkdir(parents=True)
    (folder / "secret").write_text("key")

    def work(stage: Path) -> None:
        (stage / "m.onnx").write_text("graph")

    before = sorted(path.name for path in folder.iterdir())
    for _ in range(count):
        stored = store.run("export", {}, work)
        path = stored.folder / "stage.json"
        value = json.loads(path.read_text())
        name = rng.choice(["../../secret", "../../../x", "..", str(folder / "secret"), "a/b", "m.onnx"])
        if rng.random() < 0.5:
            value["files"] = {name: value["files"]["m.onnx"]}
            value["stats"] = {name: value["stats"]["m.onnx"]}
        path.write_text(changed(value, rng), encoding="utf-8", errors="surrogatepass")
        again = store.run("export", {}, work)
        whole = (store.output / "m.onnx").read_text() == "graph" and sorted(
            one.name for one in folder.iterdir()
        ) == before
        kind = "taken: it says the same" if again.was_done else "made again"
        found[kind if whole else "WRONG: a file elsewhere"] += 1
    return found


PARTS = {
    "ranges": (ranges, 1), "checkpoints": (checkpoints, 1), "manifests": (manifests, 5000),
    "inputs": (inputs, 300), "records": (records, 2000),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    for name, (_, count) in PARTS.items():
        words = "step between places" if name in ("ranges", "checkpoints") else "trials"
        parser.add_argument(f"--{name}", type=int, default=count, help=f"{words}; 0 leaves it out")
    given = parser.parse_args()
    wrong = 0
    for name, (part, _) in PARTS.items():
        with tempfile.TemporaryDirectory(prefix="qcompile-integrity-") as folder:
            found = part(Path(folder), random.Random(given.seed), getattr(given, name))
        print(f"{name}: {sum(found.values())} changes: {dict(found.most_common())}", flush=True)
        wrong += sum(count for kind, count in found.items() if kind.startswith("WRONG"))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
