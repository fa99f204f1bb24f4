"""Detectors that suppress overlaps in the graph: INT8 keeps other boxes, and is judged before that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from detectors import detector, images, save_images
from written_models import run_file

import qcompile
from qcompile.errors import QCompileError


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    """A detector's file, its samples, and the ranges of its activations."""
    folder = tmp_path_factory.mktemp("detector")
    onnx.save(detector(), folder / "m.onnx")
    data = save_images(folder / "images", 48)
    ranges = qcompile.calibrate(folder / "m.onnx", data, folder / "m.ranges").path
    return folder / "m.onnx", data, ranges


def test_a_detector_is_quantized_by_what_it_chooses_from(
    road: tuple[Path, str, Path], tmp_path: Path
) -> None:
    path, data, ranges = road
    made = qcompile.quantize(path, tmp_path / "q.onnx", ranges=ranges, data=data)
    [check] = [one for one in made.manifest.checks if one.name == "signal-to-noise ratio"]
    assert "in front of NonMaxSuppression" in check.detail
    nodes = made.manifest.proof["nodes_by_precision"]
    assert isinstance(nodes, dict)
    assert nodes["int8"] == {"Conv": 2}
    counts = np.array(
        [
            [len(run_file(file, x=image[None])["scores"]) for file in (path, made.path)]
            for image in images(32, seed=5)
        ]
    )
    assert counts[:, 0].min() > 0
    assert (counts[:, 0] != counts[:, 1]).any()  # what made its outputs incomparable
    unseen = save_images(tmp_path / "unseen", 16, seed=5)
    compared = qcompile.diff(str(path), str(made.path), data=unseen)
    assert compared
    assert {one.criterion.partition(":")[0] for one in compared.outputs} == {"boxes"}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_a_built_detector_computes_what_its_graph_says(
    road: tuple[Path, str, Path], tmp_path: Path, target: str
) -> None:
    if target == "openvino":
        pytest.importorskip("openvino")
    path, data, ranges = road
    built = qcompile.build(
        path, tmp_path / "b.onnx", target=target, precision="int8", ranges=ranges, data=data
    )
    [check] = [one for one in built.manifest.checks if one.name == "computes what its graph says"]
    assert ", in front of NonMaxSuppression, " in check.detail
    assert "dB" in check.detail or "equal to" in check.detail


def test_an_engine_without_suppression_names_where_to_end(
    road: tuple[Path, str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    with pytest.raises(QCompileError) as caught:
        qcompile.build(road[0], tmp_path / "m.engine", target="tensorrt-rtx", precision="fp16", gpus=["sm86"])
    assert "has no NonMaxSuppression" in caught.value.message
    assert "'all_boxes' and 'all_scores'" in caught.value.hint
