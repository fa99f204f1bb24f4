"""Command lines of trtexec and Polygraphy from public issues, as their reporters typed them.

Each with the inputs that the model of the issue had, as far as the issue tells, and what must become of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from issue_models import Extents

from qcompile.pipeline.migrate.flags import tomllib

_IMAGE: Mapping[str, Extents] = {"images": (1, 3, 32, 32)}


@dataclass(frozen=True)
class IssueCommand:
    """One command line.

    Attributes:
        source: Where it stands.
        command: As it stands there.
        model: Where the ONNX file lies, relative to the working folder.
        precision: What the engine must be proven to compute in.
        inputs: Name to extents; a name is a dynamic axis.
        types: Name to type, of inputs that are not float32.
        layers: Names of its convolutions.
        floats: `float_precision` of the artifact.
        missing: Beginnings of the options that have no equal for TensorRT-RTX, in order.
        data: Whether it must ask for samples first.
        cache: The calibration cache beside it.
        loader: The script of Polygraphy's loader beside it.
        quantized: Whether the file holds Q/DQ.
        paths: Paths of the command, as they are here.
        compares: Options of `qcompile diff` that follow; None where nothing is compared.
        by_layer: Node to the precision that single layers must have.
    """

    source: str
    command: str
    model: str
    precision: str
    inputs: Mapping[str, Extents] = field(default_factory=lambda: _IMAGE)
    types: Mapping[str, str] = field(default_factory=dict)
    layers: Sequence[str] = ()
    floats: str = "fp32"
    missing: Sequence[str] = ()
    data: bool = False
    cache: str = ""
    loader: str = ""
    quantized: bool = False
    paths: Sequence[str] = ()
    compares: Sequence[str] | None = None
    by_layer: Mapping[str, str] = field(default_factory=dict)


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TRTEXEC, POLYGRAPHY = ([IssueCommand(**row) for row in _TABLES[tool]] for tool in ("trtexec", "polygraphy"))
REFUSED: list[dict[str, str]] = _TABLES["refused"]
