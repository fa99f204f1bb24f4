"""Engines are found by name, and load what their manifest says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qcompile.building import build
from qcompile.engines import load
from qcompile.engines.base import BuildRequest, Engine
from qcompile.engines.build import build_engine
from qcompile.engines.gpu import why_no_gpu
from qcompile.engines.load import engine_of
from qcompile.engines.registry import engine, names, register
from qcompile.errors import ArtifactError, EngineUnavailable, InvalidOption, MissingFile
from qcompile.files import manifest_path
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import PRECISIONS

MakePath = Callable[..., Path]

Feeds = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]


@pytest.fixture
def optimized(tiny_file: MakePath, tmp_path: Path) -> Path:
    """The tiny mlp, built for ONNX Runtime."""
    return build(tiny_file("mlp"), tmp_path / "built.onnx", target="onnxruntime").path


@pytest.fixture
def engine_file(tiny_file: MakePath, tmp_path: Path) -> Path:
    """The tiny mlp, built for a GPU that is not here."""
    spec = BuildSpec(target="tensorrt-rtx", gpus=("sm86",))
    request = BuildRequest(str(tiny_file("mlp")), tmp_path / "built.engine", spec)
    return build_engine(request).path


def feeds(batch: int = 2) -> Feeds:
    """Feeds of the tiny mlp."""
    return {"x": np.random.default_rng(0).standard_normal((batch, 16)).astype(np.float32)}


def change(path: Path, **entries: object) -> None:
    """Change entries of a manifest."""
    manifest = json.loads(manifest_path(path).read_text())
    assert entries.keys() <= manifest.keys()
    manifest_path(path).write_text(json.dumps(manifest | entries))


def test_a_built_model_computes_what_the_model_does(optimized: Path, tiny_file: MakePath) -> None:
    with load(optimized) as built, load(tiny_file("mlp")) as original:
        assert built.io == original.io
        np.testing.assert_allclose(
            built.infer(feeds())["y"], original.infer(feeds())["y"], rtol=1e-4, atol=1e-5
        )


def test_a_file_that_was_changed_is_refused_before_it_is_read(optimized: Path, engine_file: Path) -> None:
    for path in (optimized, engine_file):
        path.write_bytes(b"\0" + path.read_bytes()[1:])
        with pytest.raises(ArtifactError, match="differs from its manifest's") as caught:
            load(path)
        assert caught.value.data["file"] == path


def test_a_file_that_was_changed_is_loaded_by_who_trusts_it(optimized: Path, tiny_file: MakePath) -> None:
    optimized.write_bytes(tiny_file("mlp").read_bytes())
    with load(optimized, trust=True) as runner:
        assert runner.infer(feeds())["y"].shape == (2, 8)


def test_what_has_no_manifest_that_can_be_read_is_refused(optimized: Path, engine_file: Path) -> None:
    manifest_path(optimized).write_text("{")
    with pytest.raises(ArtifactError, match="not a manifest"):
        load(optimized)
    manifest_path(engine_file).unlink()
    with pytest.raises(ArtifactError, match=r"has no manifest \(built\.engine\.json\)"):
        load(engine_file)


def test_a_model_optimized_by_another_onnxruntime_is_refused(optimized: Path) -> None:
    change(optimized, tools={"onnxruntime": "1.0.0"})
    with pytest.raises(ArtifactError, match=r"optimized by ONNX Runtime 1\.0\.0; this is ") as caught:
        load(optimized)
    assert "build it again" in caught.value.hint


@pytest.mark.parametrize(
    ("features", "architecture", "lacking"), [(["avx", "quantum"], None, "quantum"), ([], "sparc", "sparc")]
)
def test_a_model_optimized_for_another_processor_is_refused(
    features: list[str], architecture: str | None, lacking: str, optimized: Path
) -> None:
    device = json.loads(manifest_path(optimized).read_text())["device"]
    device |= {"features": features, "architecture": architecture or device["architecture"]}
    change(optimized, device=device)
    with pytest.raises(ArtifactError, match=f"optimized for a processor with .*{lacking}.* lacks"):
        load(optimized)


@pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")
def test_an_engine_without_its_gpu_is_refused_with_the_reason(engine_file: Path) -> None:
    with pytest.raises(EngineUnavailable, match="cannot run here") as caught:
        load(engine_file)
    assert caught.value.data["reason"] == why_no_gpu()
    assert caught.value.data["engine"] == "tensorrt-rtx"
    assert "NVIDIA GPU" in caught.value.hint


def test_a_file_that_is_missing_or_of_no_known_kind_is_an_error(optimized: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFile) as caught:
        load(optimized.with_name("bulit.onnx"))
    assert "built.onnx" in caught.value.hint
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InvalidOption, match="is none of"):
        load(tmp_path / "notes.txt")


def test_the_engine_follows_from_its_manifest(engine_file: Path, optimized: Path, torch_model: str) -> None:
    assert engine_of(str(engine_file)) == "tensorrt-rtx"
    assert engine_of(str(optimized)) == "onnxruntime"
    assert engine_of(torch_model) == "pytorch"
    change(engine_file, target="tensorrt")
    assert engine_of(str(engine_file)) == "tensorrt"


NEEDED = {
    "onnxruntime": "fp32 fp16 bf16 int8 int4",
    "openvino": "fp32 fp32 fp32 int8 int4",
    "tensorrt-rtx": "fp32 fp32 fp16 bf16 int8 fp8 int4 nvfp4 mxfp8",
    "torchscript": "fp32 fp32 fp32 fp32 fp32",
}
"""Engine that can build here to the precision its graph must have for each of its precisions."""


def test_an_engine_knows_its_name_says_why_it_cannot_and_what_its_graph_must_be() -> None:
    assert names() == ("onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript", "pytorch")
    for name in names():
        found = engine(name)
        assert isinstance(found, Engine)
        assert found.name == name
        assert found.takes in ("onnx", "pytorch")
        assert found.fix() or not found.why_not_run()
        assert set(found.precisions) <= set(PRECISIONS)
        if name in NEEDED:
            assert found.why_not_build() == ""
            assert found.suffix.startswith(".")
            needed = [found.graph_precision(precision) for precision in found.precisions]
            assert needed == NEEDED[name].split()


def test_a_name_that_is_taken_or_unknown_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"engine 'tensorrt' is registered already \(\.tensorrt\)"):
        register("tensorrt", ".elsewhere", "Other")
    assert type(engine("tensorrt")).__name__ == "TensorRT"
    for name, hint in (("onnx-runtime", "did you mean 'onnxruntime'?"), ("zzz", "")):
        said = f"target '{name}' is unknown; known are onnxruntime"
        with pytest.raises(InvalidOption, match=said) as caught:
            engine(name)
        assert (caught.value.hint, caught.value.data["option"]) == (hint, "target")


def test_the_registry_imports_no_runtime() -> None:
    program = (
        "import sys; from qcompile.engines.registry import names; names(); "
        "print(sorted({'onnxruntime', 'torch', 'tensorrt_rtx', 'tensorrt', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not engine("tensorrt").why_not_build(), reason="TensorRT builds here")
def test_an_engine_that_cannot_build_says_so_before_it_looks_at_the_model(tmp_path: Path) -> None:
    request = BuildRequest("nowhere.onnx", tmp_path / "out" / "m.engine", BuildSpec(target="tensorrt"))
    with pytest.raises(EngineUnavailable, match="target tensorrt cannot build here: ") as caught:
        build_engine(request)
    assert caught.value.data["engine"] == "tensorrt"
    assert caught.value.data["reason"] == engine("tensorrt").why_not_build()
    assert caught.value.hint
    assert not (tmp_path / "out").exists()
