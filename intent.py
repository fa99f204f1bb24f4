"""The verbs that bring rooms together which do not know each other.

`build`: the graph is brought to what the target needs (`lowering`), then built and proven (`engines/`).
`calibrate`: what quantization will scale (`compiler/`) is observed (`calibration/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .artifact import Artifact
from .building import prepared, request_for
from .engines.tensorrt.options import TensorRTOptions
from .model.pt2_archive import trusting
from .preparation import Intent, Shapes
from .progress import Progress, silent

if TYPE_CHECKING:
    from .compiler.quantize.request import WeightOptions
    from .data.batches import Data
    from .lowering import LoweredGraph


def calibrate(
    model: str | Path,
    data: str | Data,
    output: str | Path,
    *,
    targets: Sequence[str] = ("onnxruntime", "openvino", "tensorrt"),
    method: str = "auto",
    samples: int | None = None,
    shard: str = "1/1",
    threads: int = 0,
    resume: bool = True,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Observe what quantization for the targets will scale, and write a ranges file.

    Args:
        model: Float ONNX file.
        data: Spelling of the samples (`data.batches`), or `Data`.
        output: Ranges file to write.
        targets: What the model will be quantized for: "onnxruntime", "openvino", "tensorrt". Fewer are
            observed faster.
        method, samples, shard, threads, resume, checkpoint, progress: As
            `calibration.calibrate.calibrate`.

    Returns:
        The ranges file and its manifest.

    Raises:
        DataError, CalibrationError, ModelError, InvalidOption: As `calibration.calibrate.calibrate`.
    """
    from .calibration import calibrate as observe_and_write
    from .compiler.quantize.int8.tensors_to_calibrate import tensors_to_calibrate
    from .model.onnx_file import check_onnx
    from .model.weightless import read_weightless

    weightless = read_weightless(Path(model))
    try:
        tensors = tensors_to_calibrate(weightless, targets)  # type: ignore[arg-type]  # checked there
    except (IndexError, KeyError, TypeError, ValueError):
        check_onnx(weightless.path)  # a damaged file says here what is wrong with it
        raise
    return observe_and_write(
        weightless,
        data,
        output,
        method=method,
        samples=samples,
        shard=shard,
        tensors=tensors,
        threads=threads,
        resume=resume,
        checkpoint=checkpoint,
        progress=progress,
    )


def build(
    model: str | Path,
    output: str | Path,
    *,
    target: str,
    precision: str = "fp32",
    ranges: str | Path | None = None,
    method: str | None = None,
    gpus: Sequence[str] = (),
    min_shapes: Shapes | None = None,
    opt_shapes: Shapes | None = None,
    max_shapes: Shapes | None = None,
    inputs: Sequence[str] = (),
    threads: int = 0,
    rest: str = "fp32",
    layers: Mapping[str, str] | None = None,
    allow_fallback: bool = False,
    strict: bool = False,
    allow_loss: bool = False,
    calibrator: str = "",
    data: str | None = None,
    calibration_cache: Path | None = None,
    options: TensorRTOptions | None = None,
    mode: str = "static",
    processor: str = "vnni",
    exclude: Sequence[str] = (),
    only: Sequence[str] = (),
    correct_bias: bool = True,
    search: bool = True,
    weights: WeightOptions | None = None,
    trust: bool = False,
    progress: Progress = silent,
) -> Artifact:
    """Build an artifact for a target and prove that its precision was reached.

    Args:
        model, target, precision, ranges, method, gpus, min_shapes, opt_shapes, max_shapes, inputs, threads,
            rest, layers, calibrator, data, options, mode, processor, exclude, only, correct_bias, search,
            weights: As in `Intent`.
        output: File to write.
        allow_fallback: Keep an artifact that did not reach the precision, with a warning.
        strict: Fail where one planned layer missed the precision. Without it, layers that miss less than 10%
            of the planned multiply-adds are a warning.
        allow_loss: Keep INT8 that loses more on the data than `diff` lets pass.
        calibration_cache: Where to write the scales that TensorRT's own calibrator found.
        trust: Load a `.pt2` that runs code when it is loaded all the same.
        progress: Told of every step.

    Returns:
        The artifact and its manifest with the proof.

    Raises:
        InvalidOption: If the graph has not the precision and cannot be given it.
        EngineUnavailable, BuildError, IntentNotReached: See `engines.build.build_engine`.
    """
    intent = Intent(
        model, target, precision, ranges, method, gpus, min_shapes or {}, opt_shapes or {}, max_shapes or {},
        inputs, threads, rest, layers or {}, calibrator, data, options, strict, allow_loss, mode, processor,
        exclude, only, correct_bias, search, weights,
    )  # fmt: skip
    with trusting(trust):
        return build_intent(
            intent,
            output,
            allow_fallback=allow_fallback,
            calibration_cache=calibration_cache,
            progress=progress,
        )


def build_intent(
    intent: Intent,
    output: str | Path,
    *,
    allow_fallback: bool = False,
    calibration_cache: Path | None = None,
    lowered: LoweredGraph | None = None,
    progress: Progress = silent,
) -> Artifact:
    """Build what an intent says, see `build`; from a graph that was lowered for it, where one is given."""
    from .engines.build import build_engine

    with ExitStack() as stack:
        if lowered is None:
            request = stack.enter_context(prepared(intent, Path(output), calibration_cache, progress))
        else:
            request = request_for(intent, lowered, Path(output), progress)
        return build_engine(
            intent.target,
            request,
            allow_fallback=allow_fallback,
            strict=intent.strict,
            calibration_cache=calibration_cache,
        )


def plan_intent(intent: Intent, *, progress: Progress = silent) -> dict[str, object]:
    """Prepare, parse and check everything that `build` would, and return what would be built.

    Raises:
        InvalidOption, EngineUnavailable, BuildError: As `build`.
    """
    from .engines.build import plan_engine

    with prepared(intent, Path("dry-run"), None, progress) as request:
        return plan_engine(intent.target, request)


def refit(
    engine: str | Path, model: str | Path, output: str | Path, *, progress: Progress = silent
) -> Artifact:
    """Give a built TensorRT engine new weights, without building it again.

    Args:
        engine: Built with `refit` or `strip_weights`.
        model: ONNX file of the same structure: the float model where the engine was built from one (it is
            converted as the build converted it), the quantized one for INT8 and FP8.
        output: Engine to write; may be the same file.
        progress: Told of every step.

    Returns:
        The engine and its manifest.

    Raises:
        InvalidOption: If it is no TensorRT engine.
        EngineUnavailable, ArtifactError, ModelError, BuildError: As `refit_plan`.
    """
    from .artifact import load_artifact
    from .engines.tensorrt.adapter import MODULES, load_adapter
    from .engines.tensorrt.builder.refit import refit_plan
    from .errors import InvalidOption

    path = Path(engine)
    manifest = load_artifact(path).manifest
    if manifest.target not in MODULES:
        raise InvalidOption(
            f"{path}: is for {manifest.target or 'no target'}; an engine of TensorRT is required"
        )
    options, formats = manifest.options, manifest.options.get("io_formats")
    named: dict[str, Any] = {}
    if manifest.precision in ("fp16", "bf16"):  # else the types of its layers are in the quantized graph
        named = {name: options[name] for name in ("layers", "exclude", "only") if name in options}
    intent = Intent(
        model,
        manifest.target,
        manifest.precision,
        rest=str(options.get("rest") or "fp32"),
        options=TensorRTOptions(io_formats=tuple(formats) if isinstance(formats, list) else ()),
        **named,
    )
    with prepared(intent, Path(output), None, progress) as request:
        return refit_plan(
            load_adapter(manifest.target), path, Path(request.model), Path(output),
            source=str(model), progress=progress,
        )  # fmt: skip
