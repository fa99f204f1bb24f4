"""The classifiers that fail in INT8 with random weights, trained for minutes, on the same road.

    pip install 'qcompile[cpu,openvino,tensorrt-rtx,coverage]' scikit-learn
    python benchmarks/trained_classifiers.py --results trained.jsonl [--only 'timm_*'] [--steps 300]
    python benchmarks/trained_classifiers.py --results trained.jsonl --table

`benchmarks/architectures.py` walks networks with random weights. This trains some of them, of the same
structure, on the handwritten digits that scikit-learn carries (1,797 real images, 8 x 8, enlarged; 1,297 to
train on), with AdamW and a one-cycle rate, one thread, seed 0. Then it calibrates on 64 training images, and
compares every INT8 artifact with the float model on the first 64 of the 500 others: SNR, and the verdict of
`diff`. Top-1 of the float model is of all 500. Nothing is downloaded. Rows are appended as they are done;
what is finished is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

os.environ.update(ORT_DISABLE_TELEMETRY="1", HF_HUB_OFFLINE="1")
sys.path[:1] = [str(Path(__file__).resolve().parent / "coverage_models")]

import numpy as np  # noqa: E402

FAILING = (
    "timm_dla46_c", "timm_repvgg_a0", "timm_mobileone_s0", "timm_lcnet_035", "timm_mobilevitv2_050",
    "timm_efficientvit_m0", "timm_tf_efficientnetv2_b0", "torchvision_efficientnet_b0",
    "torchvision_efficientnet_v2_s", "torchvision_inception_v3",
)  # fmt: skip
"""Those whose INT8 loses more than `diff` allows, or did, with random weights."""
TRAINED, CALIBRATED, BATCH = 1297, 64, 32
TARGETS = ("onnxruntime", "openvino", "tensorrt-rtx")


def main() -> int:
    """Train and walk what was chosen, or print the table."""
    options = _options()
    rows = _read(options.results)
    if options.table:
        print(as_markdown(rows))
        return 0
    done = {row["architecture"] for row in rows}
    for key in FAILING:
        if key in done or not any(fnmatch(key, glob) for glob in options.only or ["*"]):
            continue
        print(f"{key} ...", flush=True)
        row = walk(key, options.steps)
        print(json.dumps(row), flush=True)
        with options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return 0


def walk(key: str, steps: int) -> dict[str, Any]:
    """Train one architecture and take it down the road."""
    from catalogue import ARCHITECTURES

    import qcompile
    from qcompile.errors import QCompileError

    extent = int(ARCHITECTURES[key].inputs[0].shape[-1])
    images, labels = _digits(extent)
    start = time.monotonic()
    _seed()
    module = _train(ARCHITECTURES[key].module(), images[:TRAINED], labels[:TRAINED], steps)
    row: dict[str, Any] = {"architecture": key, "steps": steps, "train_s": round(time.monotonic() - start, 1)}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        np.savez(folder / "calibration.npz", x=images[:CALIBRATED])
        np.savez(folder / "test.npz", x=images[TRAINED:])
        calibration, test = str(folder / "calibration.npz"), str(folder / "test.npz")
        model, ranges = folder / "model.onnx", folder / "model.ranges"
        try:
            exported = _exported(module, images[:2], folder)
            qcompile.simplify(exported, model, data=calibration)
            qcompile.calibrate(model, calibration, ranges, threads=1)
            expected = _run(model, images[TRAINED:])
            row["top1"] = _top1(expected, labels[TRAINED:])
            for target in TARGETS:
                row[target] = _int8(target, model, ranges, calibration, test, folder)
        except QCompileError as error:
            row["error"] = error.message
    return row


def _int8(
    target: str, model: Path, ranges: Path, calibration: str, test: str, folder: Path
) -> dict[str, Any]:
    """Build for one runtime, and compare with the float model on the test images where it runs here."""
    import qcompile
    from qcompile.errors import QCompileError

    path = folder / f"{target}{'.engine' if target == 'tensorrt-rtx' else '.onnx'}"
    options: dict[str, Any] = {"precision": "int8", "ranges": ranges, "data": calibration}
    if target == "tensorrt-rtx":
        shape = (BATCH, *np.load(test)["x"].shape[1:])
        options |= {"gpus": ["sm86"], "max_shapes": {"x": shape}, "opt_shapes": {"x": shape}}
        options |= {"min_shapes": {"x": (1, *shape[1:])}}
    try:
        built = qcompile.build(model, path, target=target, **options)
    except QCompileError as error:
        return {"built": False, "reason": error.message}
    found: dict[str, Any] = {"built": True, "snr_db": built.manifest.proof.get("snr_db")}
    if target == "tensorrt-rtx":
        return found  # it runs on a GPU; the build compared its graph with the float model
    compared = qcompile.diff(str(model), str(path), data=test, threads=1)
    output = compared.outputs[0]
    return found | {
        "diff": bool(compared),
        "test_snr_db": round(float(output.snr_db), 2),
        "agreement": output.agreement,
    }


def _seed() -> None:
    """Make the first weights, and what dropout leaves out, the same in every run."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)


def _train(module: Any, images: Any, labels: Any, steps: int) -> Any:
    import torch

    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    generator = np.random.default_rng(0)
    for _ in range(steps):
        chosen = generator.choice(len(images), BATCH, replace=False)
        outputs = module(torch.from_numpy(images[chosen]))
        logits = outputs if hasattr(outputs, "shape") else outputs[0]
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[chosen]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return module.eval()


def _exported(module: Any, example: Any, folder: Path) -> Path:
    """Export through a file that MODEL can name."""
    import qcompile

    _exported.module = module  # type: ignore[attr-defined]  # `model.py` finds it in this process
    (folder / "model.py").write_text(
        "import sys\nimport torch\n\n\ndef build():\n"
        "    main = sys.modules['__main__']\n"
        f"    return main._exported.module, (torch.zeros{tuple(example.shape)},)\n"
    )
    path = folder / "exported.onnx"
    qcompile.export(f"{folder / 'model.py'}:build", path, dynamic=["x:0=batch"])
    return path


def _run(model: Path, images: Any) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate(
        [session.run(None, {name: images[i : i + 50]})[0] for i in range(0, len(images), 50)]
    )


def _top1(outputs: Any, labels: Any) -> float:
    return round(float((outputs.argmax(1) == labels).mean()), 4)


def _digits(extent: int) -> tuple[Any, Any]:
    """Images [1797, 3, extent, extent] with mean 0 and deviation 1, and their labels, in a fixed order."""
    import torch
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.from_numpy(found.images.astype(np.float32))[:, None] / 16
    images = torch.nn.functional.interpolate(images, (extent, extent), mode="bilinear", align_corners=False)
    images = ((images - images.mean()) / images.std()).repeat(1, 3, 1, 1).numpy()
    order = np.random.default_rng(0).permutation(len(images))
    return np.ascontiguousarray(images[order]), found.target[order].astype(np.int64)


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/coverage.md."""
    lines = [
        "| architecture | steps | top-1, float | ONNX Runtime INT8 | OpenVINO INT8 | RTX INT8, build |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [_cell(row.get(target, {})) for target in TARGETS]
        if "error" in row:
            cells = [row["error"]] * 3
        first = [row["architecture"], str(row["steps"]), f"{100 * row.get('top1', 0):.1f}%"]
        lines.append(f"| {' | '.join(first + cells)} |")
    return "\n".join(lines)


def _cell(found: dict[str, Any]) -> str:
    if not found.get("built"):
        return "refused"
    if "diff" not in found:
        return "built"
    agreement = "" if found["agreement"] is None else f", {100 * found['agreement']:.1f}% alike"
    return f"{'passed' if found['diff'] else 'failed'}: {found['test_snr_db']} dB{agreement}"


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("trained.jsonl"), help="file of results")
    parser.add_argument("--only", action="append", metavar="GLOB", help="architectures by key; repeat")
    parser.add_argument("--steps", type=int, default=300, help="steps of training, of 32 images")
    parser.add_argument("--table", action="store_true", help="print the results as Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
