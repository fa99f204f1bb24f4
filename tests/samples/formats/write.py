"""Write a file of each format with the code that runs this: `write.py FOLDER`."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import qcompile
from qcompile.calibration import save_ranges
from qcompile.calibration.tensorrt_cache import read_cache

HERE = Path(__file__).resolve().parent
RECIPE = """\
version = 1
name = "small"
output = "out"

[model]
source = "small.onnx"

[data]
calibration = "samples.npz"

[calibrate]
method = "minmax"

[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"

[bench]
max_time_s = 1
threads = 1
"""
KEPT = "int8.onnx", "int8.onnx.json", "results.json", "small.ranges", "small.ranges.json"


def main(target: Path) -> None:
    """Write everything to a temporary folder, and copy what is kept."""
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for name in ("small.onnx", "samples.npz"):
            shutil.copy(HERE / name, folder)
        (folder / "recipe.toml").write_text(RECIPE)
        qcompile_(folder, "run", "recipe.toml")
        qcompile_(
            folder,
            "calibrate",
            "small.onnx",
            "--data",
            "samples.npz",
            "-o",
            "all.ranges",
            "--method",
            "minmax",
        )
        rtx = ("--target", "tensorrt-rtx", "--precision", "fp16", "--gpu", "sm86")
        qcompile_(folder, "build", "small.onnx", *rtx, "-o", "fp16.engine")
        layers = ("--data", "samples.npz", "--layers", "--output", "layers.json")
        qcompile_(folder, "diff", "small.onnx", "out/int8.onnx", *layers)
        qcompile_(folder, "ranges", "cache", "all.ranges", "-o", "small.cache", "--tensorrt", "8.5.3")
        save_ranges(read_cache(folder / "small.cache", folder / "small.onnx"), folder / "fixed.ranges")
        _interrupt_a_calibration(folder)
        kept = [
            *(f"out/{name}" for name in KEPT),
            "layers.json",
            "small.cache",
            "fixed.ranges",
            "fp16.engine.json",
        ]
        for name in kept:
            path = target / Path(name).name
            shutil.copy(folder / name, path)
            if path.name == "results.json":
                path.write_text(path.read_text().replace(f"{folder}/", ""))
        shutil.copy(folder / ".interrupted.ranges.checkpoint", target / "interrupted.checkpoint")
        for record in folder.glob("out/.qcompile/[bc]*-*/stage.json"):
            if not record.parent.name.startswith("bench"):
                (target / "store" / record.parent.name).mkdir(parents=True)
                shutil.copy(record, target / "store" / record.parent.name)


def qcompile_(folder: Path, *words: str) -> None:
    """Run a command of the code that this runs with."""
    subprocess.run([sys.executable, "-P", "-m", "qcompile", *words], cwd=folder, check=True)


def _interrupt_a_calibration(folder: Path) -> None:
    """End it after five of eight samples, with a checkpoint after each."""
    module = importlib.import_module("qcompile.calibration.calibrate")
    original = module._Keeper.save_now_and_then

    def save(keeper: object, units: int) -> None:
        vars(keeper)["_last"] = -1e9
        original(keeper, units)
        if units == 5:
            raise KeyboardInterrupt

    module._Keeper.save_now_and_then = save
    try:
        output = folder / "interrupted.ranges"
        qcompile.calibrate(folder / "small.onnx", str(folder / "samples.npz"), output, method="minmax")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
