"""Batches that cannot be split: a graph has nodes and edges, and no samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches_to_read import Script, npz, rows

from qcompile.data.batches import Data
from qcompile.spec.tensors import TensorInfo

EDGES = {"free": TensorInfo("edges", "int64", ("m",)), "pairs": TensorInfo("edges", "int64", (2, "m"))}


@pytest.mark.parametrize("kind", EDGES)
@pytest.mark.parametrize("source", ["function", "npz", "folder", "json"])
@pytest.mark.parametrize("limit", [1, 16, None])
def test_a_graph_is_read_whole_whatever_the_limit(
    kind: str, source: str, limit: int | None, script: Script, tmp_path: Path
) -> None:
    """Its nodes and edges are no samples, and its first axes differ."""
    shape = (7,) if kind == "free" else (2, 90)
    feeds = {"x": rows(40), "edges": np.zeros(shape, np.int64)}
    (tmp_path / "folder").mkdir()
    if source == "json":
        from polygraphy.json import save_json

        save_json([feeds], str(tmp_path / "graph.json"))
    spec = {
        "function": lambda: script(
            f"yield {{'x': np.repeat(np.arange(40, dtype=np.float32)[:, None], 3, 1), "
            f"'edges': np.zeros({shape}, np.int64)}}"
        ),
        "npz": lambda: npz(tmp_path / "graph.npz", **feeds),
        "folder": lambda: str(Path(npz(tmp_path / "folder" / "0.npz", **feeds)).parent),
        "json": lambda: str(tmp_path / "graph.json"),
    }[source]()
    inputs = [TensorInfo("x", "float32", ("n", 3)), EDGES[kind]]
    data = Data(spec, inputs, batch_size=1, limit=limit)
    for batches in (list(data), list(data)):
        [batch] = batches
        np.testing.assert_array_equal(batch.feeds["x"], feeds["x"])
        np.testing.assert_array_equal(batch.feeds["edges"], feeds["edges"])
    [first] = data.spread(1).batches
    assert first["x"].shape == (40, 3)
