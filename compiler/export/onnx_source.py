"""Check and copy an ONNX file that is given as MODEL."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...artifact import Artifact, Check, commit
from ...artifact.int8_isa import carried_isa
from ...data.batches import Data
from ...files import writing
from ...model.onnx_file import check_onnx, external_files, load_checked, load_onnx, model_io, opset, save_onnx
from ...model.preprocessing import Preprocessing
from ...model.random_input import run_on
from ...model.source import Source
from ...model.source_paths import strip_source_paths
from ..check import OnnxReference
from .manifest import export_manifest
from .preprocessing import note_preprocessing, with_preprocessing


def take_onnx(
    source: Source,
    output: Path,
    data: str | None,
    preprocessing: Preprocessing | None = None,
    converter: Mapping[str, str] | None = None,
) -> Artifact:
    """Check and copy an ONNX file, and note how samples become its inputs, where that is said.

    Args:
        source: The file.
        output: The .onnx file to write.
        data: Samples to run it on; a random input by default.
        preprocessing: How samples become the inputs.
        converter: Package to version of what tf2onnx converted the file with.

    Raises:
        ModelError: If the checker refuses it, or it does not run.
    """
    proto = load_checked(source.file)
    with writing(output) as path:
        beside = external_files(source.file, load_onnx(source.file, external_data=False))
        if strip_source_paths(proto) or beside:
            save_onnx(proto, path)  # a side file gets the new name
        else:
            shutil.copyfile(source.file, path)
        check_onnx(path)
        inputs = with_preprocessing(model_io(proto).inputs, preprocessing)
        sample = next(iter(Data(data, inputs))).feeds if data else None
        feeds, _ = run_on(proto, sample, OnnxReference(path))
        checks = [
            Check("ONNX checker and shape inference", True, f"opset {opset(proto)}"),
            Check("runs in ONNX Runtime", True, "the data" if data else "one random input"),
        ]
        if preprocessing is not None:
            note_preprocessing(path, preprocessing, feeds)
            proto = load_onnx(path)
        options = {"model": source.spec, "opset": opset(proto), **carried_isa(source.file)}
        options |= {"exporter": "tf2onnx"} if converter else {}
        manifest = export_manifest(proto, options, checks)
        manifest = commit(path, replace(manifest, tools={**manifest.tools, **(converter or {})}))
    return Artifact(output, manifest)
