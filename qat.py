"""Quantization-aware training, in three lines of a training loop.

    model = qcompile.qat.prepare(model, example_inputs, target="onnxruntime")
    ...                                     # the usual loop, a few epochs at a small rate
    model = qcompile.qat.convert(model)     # `qcompile export` writes it with its trained scales

See `compiler.qat` for what happens.
"""

from .compiler.qat.train import convert, freeze, onnx_translations, prepare

__all__ = ["convert", "freeze", "onnx_translations", "prepare"]
