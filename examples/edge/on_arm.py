"""Run ONNX artifacts on ARM in emulation, and compare every output with x86 and with the labels.

    python examples/edge/arm_python.py FOLDER
    python examples/edge/on_arm.py FOLDER/arm-python examples/edge/out/onnx-int8-arm.onnx

The very same file of Python runs both sides: this one, with `--outputs`. Emulation says nothing about speed.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES = 200


def outputs(model: str, images: Any) -> Any:
    """Return the first output of an ONNX file for images [N,1,32,32]: [N,10] float32."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = session.get_inputs()[0].name
    return session.run(None, {feeds: images})[0]


def on(
    interpreter: str, model: Path, images: Any, environment: dict[str, str] | None = None
) -> tuple[str, Any]:
    """Return the architecture of an interpreter, and the outputs [N,10] that it computes."""
    with tempfile.TemporaryDirectory() as name:
        given, got = Path(name, "images.npy"), Path(name, "outputs.npy")
        np.save(given, images)
        command = [interpreter, str(Path(__file__).resolve()), "--outputs", str(model), str(given), str(got)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return done.stdout.split()[-1], np.load(got)


def compared(
    model: Path, arm_python: str, images: Any, labels: Any, environment: dict[str, str] | None = None
) -> str:
    """Return one line: bits, decibels, predictions and accuracy of ARM against x86."""
    here, expected = on(sys.executable, model, images)
    there, actual = on(arm_python, model, images, environment)
    noise = np.square(actual.astype(np.float64) - expected).sum()
    snr_db = np.inf if noise == 0 else 10 * np.log10(np.square(expected.astype(np.float64)).sum() / noise)
    rows = (actual == expected).all(axis=1).mean()
    same = (actual.argmax(1) == expected.argmax(1)).mean()
    right = [(scores.argmax(1) == labels).mean() for scores in (expected, actual)]
    return (
        f"{model.name}: {len(labels)} images: {rows:.1%} of the outputs equal bit for bit, {snr_db:.1f} dB, "
        f"{same:.1%} of the predictions equal; accuracy {here} {right[0]:.2%}, {there} {right[1]:.2%}"
    )


def main() -> None:
    """Compare the artifacts of the command line; or, with --outputs, be one of the two sides."""
    if sys.argv[1:2] == ["--outputs"]:
        model, given, got = sys.argv[2:]
        np.save(got, outputs(model, np.load(given)))
        print(platform.machine())
        return
    from data import evaluation

    batches = list(evaluation())
    images = np.concatenate([images for images, _ in batches])[:SAMPLES]
    labels = np.concatenate([labels for _, labels in batches])[:SAMPLES]
    for name in sys.argv[2:]:
        print(compared(Path(name), sys.argv[1], images, labels), flush=True)


if __name__ == "__main__":
    main()
