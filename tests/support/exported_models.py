"""A module, exported and compared with its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from written_models import run_file

from qcompile.compiler.export import export
from qcompile.core.artifact import Artifact


def export_alike(
    module: torch.nn.Module,
    folder: Path,
    inputs: list[str],
    *samples: dict[str, NDArray[Any]],
    exporter: str = "dynamo",
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> Artifact:
    """Export a module by this exporter; the file must compute what it does, in its types, on each sample."""
    artifact = export(module, folder / "m.onnx", inputs=inputs)
    assert artifact.manifest.options["exporter"] == exporter
    for feeds in samples:
        with torch.no_grad():
            outputs = module.eval()(**{name: torch.from_numpy(array) for name, array in feeds.items()})
        expected = outputs if isinstance(outputs, tuple) else (outputs,)
        for array, other in zip(run_file(artifact.path, **feeds).values(), expected, strict=True):
            assert array.dtype == other.numpy().dtype
            np.testing.assert_allclose(array, other.numpy(), rtol=rtol, atol=atol)
    return artifact
