"""Write small TensorFlow models of every kind into a folder; run by an interpreter that has TensorFlow.

python tests/support/tensorflow_models.py FOLDER [DIGITS.npz]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def write(folder: Path, digits: Path | None) -> None:
    """Write them; the CNN is trained where digits are given."""
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(0)

    cnn = keras.Sequential(
        [
            keras.Input((8, 8, 1), name="image"),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, name="logits"),
        ]
    )
    if digits is not None:
        with np.load(digits) as stored:
            images, labels = stored["image"], stored["labels"]
        cnn.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        cnn.fit(images, labels, epochs=15, batch_size=32, verbose=0)
    cnn.save(folder / "digits.keras")
    cnn.save(folder / "digits.h5")
    cnn.save_weights(folder / "only.weights.h5")
    (folder / "digits.tflite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(cnn).convert())

    series = [keras.Input((None, 6), name="series"), layers.LSTM(12), layers.Dense(3, name="out")]
    keras.Sequential(series).save(folder / "lstm.keras")

    tokens = keras.Input((16,), dtype="int32", name="tokens")
    hidden = layers.Dense(24, activation="gelu")(layers.Embedding(100, 16)(tokens))
    score = layers.Dense(4, name="score")(layers.GlobalAveragePooling1D()(hidden))
    tags = layers.Dense(8, name="tags")(hidden)
    keras.Model(tokens, {"score": score, "tags": tags}).export(folder / "two_outputs", verbose=False)

    x = keras.Input((8,), name="x")
    code = keras.Model(x, layers.Lambda(lambda t: t * 2, name="mine")(x))
    code.save(folder / "lambda.keras")
    code.save(folder / "lambda.h5")

    class Signatures(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None, 4], name="b"), tf.TensorSpec([None, 4], name="a")])
        def add(self, b: Any, a: Any) -> Any:
            return {"sum": a + b, "difference": a - b}

    class Reads(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([], tf.string, name="file")])
        def read(self, file: Any) -> Any:
            return {"length": tf.strings.length(tf.io.read_file(file))}

    adds, reads = Signatures(), Reads()
    tf.saved_model.save(adds, str(folder / "adds"), signatures={"add": adds.add, "more": adds.add})
    tf.saved_model.save(reads, str(folder / "reads"), signatures={"serving_default": reads.read})


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
