"""Run a copy of an artifact's graph with taps (observed tensors) as outputs, next to links to its weights."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.artifact import digest_artifact, read_manifest
from ..core.files import manifest_path, write_json
from ..model import onnx
from ..model.graph.onnx_file import Graph
from ..spec.tensors import Feeds


@contextmanager
def run_from_file(
    open_artifact: Callable[[str], Any],
    weightless: Graph,
    model: onnx.ModelProto,
    outputs: Mapping[str, str],
    folder: Path,
) -> Iterator[Callable[[Feeds], dict[str, Any]]]:
    """Write the tapped graph next to links to the weights; yield a function from feeds to taps and outputs.

    The artifact's manifest is written, too, because runners read the precision from it. `open_artifact` opens
    a file with the engine's runner.
    """
    place = folder / "tapped"
    place.mkdir()
    path = weightless.path.resolve()
    for file in [path, *weightless.beside]:
        try:  # a hard link, because a runtime may refuse symbolic links to other folders
            os.link(file, place / file.name)
        except OSError:  # another file system, or one without links
            shutil.copyfile(file, place / file.name)
    tapped = place / "tapped.onnx"
    onnx.save(model, str(tapped))
    if (manifest := read_manifest(path)) is not None:
        write_json(manifest_path(tapped), replace(manifest, digest=digest_artifact(tapped)).as_json())
    with open_artifact(str(tapped)) as runner:
        shown = with_others(outputs, runner.io.outputs)

        def infer(feeds: Feeds) -> dict[str, Any]:
            arrays = runner.infer(feeds)
            return {name: arrays[output] for name, output in shown.items()}

        yield infer


def with_others(outputs: Mapping[str, str], every: Iterable[Any]) -> dict[str, str]:
    """Map each tap to its output, and the graph's other outputs to themselves."""
    taps = set(outputs.values())
    return {**outputs, **{output.name: output.name for output in every if output.name not in taps}}
