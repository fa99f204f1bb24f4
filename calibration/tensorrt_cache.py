"""Write and read TensorRT's calibration cache.

    TRT-8503-EntropyCalibration2
    input: 3c010a14

The first line is TensorRT's version and the calibrator; then one line per tensor, its scale (amax / 127)
as the hexadecimal digits of a float32, most significant first.
"""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path

from ..core.figures import counted
from ..core.files import require_file
from ..errors import CalibrationError, InvalidOption, translate_errors
from ..model.graph.onnx_file import read_weightless
from .qparams import INT8
from .ranges import Portion, Ranges
from .thresholds import Method

CALIBRATORS = ("EntropyCalibration2", "EntropyCalibration", "MinMaxCalibration")

_MIN_SCALE = 2.0**-149  # smallest float32: prevents that a small scale rounds to zero
_HEADER = re.compile(r"TRT-([0-9A-Za-z.]+)-(\w+)")
# Names that TensorRT's ONNX parser invents for constants and layers.
_INTERNAL = re.compile(r"\(Unnamed Layer\* \d+\)|ONNXTRT_|\[trainStation")


def version_code(version: str) -> str:
    """Return a cache's spelling of a version: "8.5.3" is 8503, "10.1.0" is 100100; digits are unchanged."""
    if version.isascii() and version.isdigit():
        return version
    match = re.fullmatch(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:\.\d{1,9})?", version, re.ASCII)
    if match is None:
        raise InvalidOption(f"TensorRT version {version!r}: digits such as 8.5.3 or 8503 are required")
    major, minor, patch = (int(part or 0) for part in match.groups())
    return str(major * (1000 if major < 10 else 10000) + minor * 100 + patch)


def format_cache(
    ranges: Ranges, *, version: str, calibrator: str = "EntropyCalibration2", method: Method | None = None
) -> str:
    """Return the text of a cache with every tensor that has a range, observed or shared.

    A tensor that was always zero gets the scale 1 / 127: zero is exact at any scale, and TensorRT accepts a
    scale of zero without a warning. `method` None means `ranges.method`.
    """
    if calibrator not in CALIBRATORS:
        raise InvalidOption(f"calibrator {calibrator!r} is unknown; known are {', '.join(CALIBRATORS)}")
    lines = [f"TRT-{version_code(version)}-{calibrator}"]
    for name in sorted(ranges.names()):
        if "\n" in name:
            raise CalibrationError(f"tensor {name!r}: a cache cannot hold this name", tensor=name)
        # A line encodes amax, so a small scale is not replaced by 1, as `choose_qparams` does.
        scale = max((ranges.amax(name, method) or 1.0) / INT8.qmax, _MIN_SCALE)
        try:
            lines.append(f"{name}: {struct.pack('>f', scale).hex()}")
        except OverflowError as error:
            raise CalibrationError(
                f"tensor {name!r} has the scale {scale:.3g}, beyond float32", tensor=name
            ) from error
    if len(lines) == 1:
        raise CalibrationError("no tensor has a range; a cache would be empty")
    return "\n".join(lines) + "\n"


def is_cache(path: Path) -> bool:
    """Return whether a file begins like a calibration cache."""
    with require_file(path, what="ranges file").open("rb") as file:
        return file.read(4) == b"TRT-"


def read_cache(path: Path, model: Path) -> Ranges:
    """Return the scales of a cache as ranges of a model, without tensors that TensorRT adds."""
    scales = parse_cache(require_file(path, what="cache").read_bytes(), path)
    weightless = read_weightless(model)
    graph = weightless.model.graph
    tensors = {value.name for value in graph.input} | {name for node in graph.node for name in node.output}
    weights = {tensor.name for tensor in graph.initializer}  # TensorRT may name constants after them
    unknown = sorted(set(scales) - tensors - weights - {name for name in scales if _INTERNAL.search(name)})
    if unknown:
        raise CalibrationError(
            f"{path}: names {len(unknown)} of {counted(len(scales), 'tensor')} that {model} does not have: "
            f"{', '.join(unknown[:3])}{', …' if len(unknown) > 3 else ''}",
            hint="a cache belongs to the file that it was made with",
            file=path,
            tensor=unknown[0],
        )
    fixed = {name: scale * INT8.qmax for name, scale in scales.items() if name in tensors}
    if not fixed:
        raise CalibrationError(f"{path}: holds no tensor of {model}", file=path)
    return Ranges(weightless.digest(), {f"TensorRT's cache {path.name}": Portion(0)}, fixed=fixed)


def parse_cache(content: bytes | str, path: Path) -> dict[str, float]:
    """Parse the content of a file; return tensor name to scale."""
    with translate_errors(f"{path}: not a TensorRT calibration cache", CalibrationError, file=path):
        text = content if isinstance(content, str) else content.decode("utf-8")
    lines = text.replace("\r\n", "\n").split("\n")
    if not _HEADER.fullmatch(lines[0].strip()):
        raise CalibrationError(
            f"{path}: not a TensorRT calibration cache; line 1 must be TRT-VERSION-CALIBRATOR", file=path
        )
    scales: dict[str, float] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        name, colon, digits = line.rpartition(": ")
        if not colon or not re.fullmatch(r"[0-9a-fA-F]{1,8}", digits.strip()):
            raise CalibrationError(
                f"{where}: {line!r}; NAME: HEX with up to eight digits is required", file=path
            )
        (scale,) = struct.unpack(">f", bytes.fromhex(digits.strip().zfill(8)))
        if not (math.isfinite(scale) and scale > 0):
            raise CalibrationError(
                f"{where}: tensor {name!r} has the scale {scale}; above zero and finite is required",
                hint="calibrate again; TensorRT would accept this scale",
                file=path,
                tensor=name,
            )
        if name in scales:
            raise CalibrationError(f"{where}: tensor {name!r} is listed twice", file=path, tensor=name)
        scales[name] = scale
    return scales
