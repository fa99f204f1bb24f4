"""Take Keras models and a SavedModel down the road, from export to INT8, and print decibels and accuracy.

    python benchmarks/tensorflow_road.py tf/bin/python [digits mobilenetv2 lstm two_outputs]

The first argument is an interpreter with tensorflow and tf2onnx; it writes the models by this same file.
Nothing is timed: `qcompile bench` does that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NAMES = {
    "digits": "digits.keras",
    "mobilenetv2": "mobilenetv2.keras",
    "lstm": "lstm.keras",
    "two_outputs": "two_outputs",
}


def write(folder: Path, names: list[str]) -> None:
    """Write the models; TensorFlow's interpreter runs this."""
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    import keras
    import numpy as np
    from keras import layers

    keras.utils.set_random_seed(0)
    if "digits" in names:
        with np.load(folder / "digits.npz") as stored:
            images, labels = stored["image"], stored["labels"]
        cnn = keras.Sequential(
            [
                keras.Input((8, 8, 1), name="image"),
                layers.Conv2D(16, 3, padding="same", activation="relu"),
                layers.Conv2D(32, 3, padding="same"),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.MaxPooling2D(),
                layers.Conv2D(48, 3, padding="same", activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(10, name="logits"),
            ]
        )
        cnn.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        cnn.fit(images, labels, epochs=8, batch_size=32, verbose=0)
        cnn.save(folder / "digits.keras")
    if "mobilenetv2" in names:
        mobilenet = keras.applications.MobileNetV2(
            weights=None, input_shape=(96, 96, 3), alpha=0.35, classes=10, classifier_activation=None
        )
        draw(mobilenet)
        mobilenet.save(folder / "mobilenetv2.keras")
    if "lstm" in names:
        parts = [
            keras.Input((None, 6), name="series"),
            layers.LSTM(24, return_sequences=True),
            layers.LSTM(16),
        ]
        keras.Sequential([*parts, layers.Dense(3, name="out")]).save(folder / "lstm.keras")
    if "two_outputs" in names:
        tokens = keras.Input((16,), dtype="int32", name="tokens")
        hidden = layers.Dense(64, activation="gelu")(layers.Embedding(100, 32)(tokens))
        score = layers.Dense(4, name="score")(layers.GlobalAveragePooling1D()(hidden))
        tags = layers.Dense(8, name="tags")(hidden)
        keras.Model(tokens, {"score": score, "tags": tags}).export(folder / "two_outputs", verbose=False)


def draw(model: Any) -> None:
    """Draw weights with He's variance: with Keras's own the signal dies out, and the output is constant."""
    import numpy as np

    generator = np.random.default_rng(0)
    for variable in model.weights:
        shape = variable.shape
        if len(shape) == 4:
            fan_in = 9 if "depthwise" in variable.path else np.prod(shape[:3])
            variable.assign(generator.normal(0, (2 / fan_in) ** 0.5, shape))
        elif variable.path.endswith("gamma"):
            variable.assign(generator.uniform(0.5, 1.5, shape))
        elif variable.path.endswith(("beta", "mean")):
            variable.assign(generator.normal(0, 0.2, shape))


def write_data(folder: Path) -> None:
    """Write samples for each model; of the digits, those that the CNN does not see are held out."""
    import numpy as np
    from sklearn.datasets import load_digits

    data, generator = load_digits(), np.random.default_rng(0)
    order = generator.permutation(len(data.target))
    images, labels = (data.images[order, :, :, None] / 16).astype(np.float32), data.target[order]
    np.savez(folder / "digits.npz", image=images[:1400], labels=labels[:1400])
    np.savez(folder / "held.npz", image=images[1400:], labels=labels[1400:])
    pixels = generator.random((64, 96, 96, 3)).astype(np.float32) * 2 - 1
    np.savez(folder / "mobilenetv2.npz", input_layer=pixels)
    np.savez(folder / "lstm.npz", series=generator.standard_normal((64, 20, 6)).astype(np.float32))
    np.savez(folder / "two_outputs.npz", tokens=generator.integers(0, 100, (64, 16)).astype(np.int32))


def take(folder: Path, name: str, python: str) -> str:
    """Return a row of the table: export, simplify, calibrate, quantize and build one model."""
    import qcompile
    from qcompile.compiler.quantize.calibrate import calibrate

    data = str(folder / f"{name}.npz")
    exported = qcompile.export(
        str(folder / NAMES[name]), folder / f"{name}.onnx", data=data, python=[f"tensorflow={python}"]
    )
    simple = qcompile.simplify(exported.path, folder / f"{name}.s.onnx")
    ranges = calibrate(simple.path, data, folder / f"{name}.ranges", threads=1)
    int8 = qcompile.quantize(
        simple.path, folder / f"{name}.q.onnx", target="onnxruntime", precision="int8",
        ranges=ranges.path, data=data, allow_loss=True,
    )  # fmt: skip
    built = qcompile.build(
        int8.path, folder / f"{name}.int8.onnx", target="onnxruntime", precision="int8", allow_loss=True
    )
    against = "; ".join(check.detail for check in exported.manifest.checks[1:])
    lost = next((check.detail for check in int8.manifest.checks if "noise" in check.name), "not compared")
    layers = built.manifest.proof["layers_by_precision"]
    accuracy = held_out(folder, simple.path, int8.path) if name == "digits" else "-"
    return f"| {name} | {against} | {layers} | {lost} | {accuracy} |"


def held_out(folder: Path, *models: Path) -> str:
    """Return the top-1 accuracy of files on the digits that were held out."""
    import numpy as np
    import onnxruntime

    with np.load(folder / "held.npz") as stored:
        images, labels = stored["image"], stored["labels"]
    found = []
    for model in models:
        outputs = onnxruntime.InferenceSession(str(model)).run(None, {"image": images})[0]
        found.append(f"{(outputs.argmax(-1) == labels).mean():.2%}")
    return " -> ".join(found)


def main() -> None:
    """Write the models by TensorFlow's interpreter, and print the table."""
    python, names = sys.argv[1], sys.argv[2:] or list(NAMES)
    with tempfile.TemporaryDirectory(prefix="qcompile-tensorflow-road-") as text:
        folder = Path(text)
        write_data(folder)
        command = [python, __file__, "--write", text, *names]
        subprocess.run(command, check=True, capture_output=True)
        print("| model | ONNX against TensorFlow | layers | INT8 against float | top-1, held out |")
        print("|---|---|---|---|---|")
        for name in names:
            print(take(folder, name, python), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
