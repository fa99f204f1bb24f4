"""Figures that others have published for such a comparison, with what is known of where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qcompile.bench.results.row import Row
from qcompile.figures import DASH, saved, times


@dataclass(frozen=True)
class Published:
    """One published figure and the row of this table that stands for the same thing.

    Attributes:
        what: The method, as its source names it.
        figure: What was published.
        row: Name of the row here.
        ours: Its figure of the same kind.
        source: Key into `SOURCES`.
    """

    what: str
    figure: str
    row: str
    ours: Callable[[Row], str]
    source: str


def _speedup(row: Row) -> str:
    return times(row.speedup.value) if row.speedup else DASH


def _size_saved(row: Row) -> str:
    return saved(row.size_ratio)


SOURCES = {
    "CPU": (
        "“PyTorch CPU Quantization Comparison”, a Markdown document in a public repository: ResNet18, "
        "CIFAR-10, batch 128, 512 samples. Found in a stored copy of public source files, by its text; the "
        "copy names no repository, so there is no address to give. Its “dynamic” is "
        "`torch.quantization.quantize_dynamic`, its “static” Intel Extension for PyTorch. It reports 6.4% "
        "(dynamic) and 10.0% (static) accuracy of ten classes before and after: the network was not trained, "
        "so its drop of 0 says nothing. Its FP32 took 43.4 ms a batch in one run and 51.6 ms in the other."
    ),
    "V100": (
        "As quoted; a source with these figures was not found. Measured "
        "elsewhere on a V100, ResNet50, batch 128, TensorRT 4: 80.6 ms FP32, 21.3 ms FP16 "
        "([1duo, “TensorRT Performance on NVIDIA Volta V100 GPU”]"
        "(https://gist.github.com/1duo/efd3be1dc8eb2c45863b75f20a76f8b2)), without PyTorch beside it."
    ),
}

PUBLISHED = (
    Published("CPU, dynamic INT8: speed-up", "1.30×", "torch.ao INT8 dynamic", _speedup, "CPU"),
    Published("CPU, dynamic INT8: memory saved", "0.0%", "torch.ao INT8 dynamic", _size_saved, "CPU"),
    Published("CPU, static INT8: speed-up", "0.55×", "torch.ao INT8 static (FX, x86)", _speedup, "CPU"),
    Published("CPU, static INT8: memory saved", "0.1%", "torch.ao INT8 static (FX, x86)", _size_saved, "CPU"),
    Published("V100, ResNet50, TensorRT FP32: speed-up", "2.0×", "TensorRT-FP32", _speedup, "V100"),
    Published("V100, ResNet50, TensorRT FP16: speed-up", "3.2×", "TensorRT-FP16", _speedup, "V100"),
    Published("V100, ResNet50, TensorRT INT8: speed-up", "4.7×", "TensorRT-INT8", _speedup, "V100"),
)


def published_table(rows: dict[str, Row]) -> str:
    """Return the published figures beside ours, and their sources, as Markdown."""
    lines = ["| published | figure | here | row | source |", "|---|---:|---:|---|---|"]
    for one in PUBLISHED:
        row = rows[one.row]
        here = one.ours(row)
        if row.status != "measured" and here == DASH:
            here = row.status
        lines.append(f"| {one.what} | {one.figure} | {here} | {one.row} | {one.source} |")
    notes = [f"- **{key}**: {text}" for key, text in SOURCES.items()]
    return "\n".join([*lines, "", *notes])
