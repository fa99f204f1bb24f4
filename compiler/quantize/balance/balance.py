"""`qcompile balance`: a float model that computes the same and is easier to quantize."""

from __future__ import annotations

from pathlib import Path

from ....artifact import Artifact, Manifest, commit, tool_versions
from ....data.batches import Data
from ....errors import InvalidOption, QuantizationError
from ....files import writing
from ....model.graph import graph_precision
from ....model.graph_edits import fix_initializers
from ....model.onnx_file import add_external_data, check_onnx, digest_model, load_onnx, model_io, save_onnx
from ....model.random_input import run_on
from ....progress import Progress, silent
from ...check import OnnxReference, compare_outputs
from ..activations import channel_amax
from .equalize import equalizable, equalize
from .rows import observe_rows
from .smooth import smooth, smoothable

DEFAULT_SAMPLES = 32


def balance(
    model: str | Path,
    output: str | Path,
    *,
    data: str | None,
    samples: int = DEFAULT_SAMPLES,
    progress: Progress = silent,
) -> Artifact:
    """Even out channels between layers by factors that cancel: one layer divides, the next multiplies.

    Convolutions and products in a row are equalized (`equalize`), outlier channels of what products read
    move into their weights (`smooth`). Factors are powers of two: the function stays as it is. Calibrate and
    quantize the file that is written; `quantize` does the same by itself where it has data.

    Args:
        model: Float ONNX file, simplified.
        output: ONNX file to write.
        data: Samples, on which the largest value of each channel is found. Without them convolutions are
            equalized by their weights alone, which helps where channels differ wildly and costs up to
            1.4 dB where they do not.
        samples: Use at most this many.
        progress: Told of every step.

    Returns:
        The file and its manifest; `proof` tells what was balanced, and why the rest was left alone.

    Raises:
        InvalidOption: If the graph is not float32.
        DataError, CalibrationError: If samples do not fit, or a tensor becomes NaN.
        QuantizationError: If the outputs changed.
    """
    model, output = Path(model), Path(output)
    proto = load_onnx(model, external_data=False)
    digest = digest_model(model, proto)
    add_external_data(proto, model)
    if (precision := graph_precision(proto)) != "fp32":
        raise InvalidOption(
            f"{model}: its graph is {precision} already", hint="balance the float model instead"
        )
    fix_initializers(proto)
    io = model_io(proto)
    given = Data(data, io.inputs, batch_size=1, limit=samples) if data is not None else None
    warnings: list[str] = []
    if given is None:
        proof: dict[str, object] = {"equalized pairs": equalize(proto)}
        warnings.append(
            "without data channels were evened out by weights alone; compare INT8 with and without"
        )
    else:
        progress("largest value of each channel")
        axes = equalizable(proto)
        amax = channel_amax(model, axes, given, progress=progress) if axes else {}
        pairs = equalize(proto, amax)
        rows = observe_rows(proto, model, smoothable(proto), given, progress=progress)
        done = smooth(proto, rows)
        proof = {"equalized pairs": pairs, "smoothed": done.places, "left alone": done.left_alone}
    if not (proof["equalized pairs"] or proof.get("smoothed")):
        warnings.append("nothing in this model could be balanced")
    with writing(output) as path:
        save_onnx(proto, path)
        check_onnx(path)
        sample = next(iter(given)).feeds if given is not None else None
        before = OnnxReference(model)
        feeds, expected = run_on(proto, sample, before)
        balanced = OnnxReference(path)(feeds)
        check = compare_outputs("same outputs as before", before.names, [(expected, balanced)])
        if not check.passed:
            raise QuantizationError(f"{model}: balanced, it computes something else: {check.detail}")
        manifest = commit(
            path,
            Manifest(
                kind="onnx",
                stage="balance",
                precision="fp32",
                io=io,
                sources={"model": digest} | ({"data": given.digest()} if given is not None else {}),
                tools=tool_versions("onnx", "onnxruntime", "numpy"),
                options={"samples": samples},
                proof=proof,
                checks=[check],
                warnings=warnings,
            ),
        )
    return Artifact(output, manifest)
