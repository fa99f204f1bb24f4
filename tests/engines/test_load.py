"""An artifact is loaded by the engine that its manifest names, and only if it is what that says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qcompile.building import build
from qcompile.engines import load
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine
from qcompile.engines.gpu import why_no_gpu
from qcompile.engines.load import engine_of
from qcompile.errors import ArtifactError, EngineUnavailable, InvalidOption, MissingFile
from qcompile.files import manifest_path
from qcompile.spec.artifacts import BuildSpec

Feeds = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]


@pytest.fixture
def optimized(tiny_file: Callable[..., Path], tmp_path: Path) -> Path:
    """The tiny mlp, built for ONNX Runtime."""
    return build(tiny_file("mlp"), tmp_path / "built.onnx", target="onnxruntime").path


@pytest.fixture
def engine_file(tiny_file: Callable[..., Path], tmp_path: Path) -> Path:
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


def test_a_built_model_is_loaded_and_computes_what_the_model_does(
    optimized: Path, tiny_file: Callable[..., Path]
) -> None:
    with load(optimized) as built, load(tiny_file("mlp")) as original:
        assert built.io == original.io
        np.testing.assert_allclose(
            built.infer(feeds())["y"], original.infer(feeds())["y"], rtol=1e-4, atol=1e-5
        )


def test_a_file_that_was_changed_after_it_was_built_is_refused(optimized: Path) -> None:
    optimized.write_bytes(optimized.read_bytes() + b"\0")
    with pytest.raises(ArtifactError, match="differs from its manifest's") as caught:
        load(optimized)
    assert caught.value.data["file"] == optimized


def test_a_file_that_was_changed_is_loaded_by_who_trusts_it(
    optimized: Path, tiny_file: Callable[..., Path]
) -> None:
    optimized.write_bytes(tiny_file("mlp").read_bytes())
    with load(optimized, trust=True) as runner:
        assert runner.infer(feeds())["y"].shape == (2, 8)


def test_a_damaged_manifest_is_an_error(optimized: Path) -> None:
    manifest_path(optimized).write_text("{")
    with pytest.raises(ArtifactError, match="not a manifest"):
        load(optimized)


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


def test_an_engine_without_a_manifest_is_refused(engine_file: Path) -> None:
    manifest_path(engine_file).unlink()
    with pytest.raises(ArtifactError, match=r"has no manifest \(built\.engine\.json\)"):
        load(engine_file)


@pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")
def test_an_engine_without_its_gpu_is_refused_with_the_reason(engine_file: Path) -> None:
    with pytest.raises(EngineUnavailable, match="cannot run here") as caught:
        load(engine_file)
    assert caught.value.data["reason"] == why_no_gpu()
    assert caught.value.data["engine"] == "tensorrt-rtx"
    assert "NVIDIA GPU" in caught.value.hint


def test_a_tampered_engine_is_refused_before_anything_reads_it(engine_file: Path) -> None:
    engine_file.write_bytes(b"\0" + engine_file.read_bytes()[1:])
    with pytest.raises(ArtifactError, match="differs from its manifest's"):
        load(engine_file)


def test_a_missing_file_is_an_error_with_the_nearest_name(optimized: Path) -> None:
    with pytest.raises(MissingFile) as caught:
        load(optimized.with_name("bulit.onnx"))
    assert "built.onnx" in caught.value.hint


def test_a_file_of_no_known_kind_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InvalidOption, match="is none of"):
        load(tmp_path / "notes.txt")


def test_the_engine_follows_from_manifest_and_ending(
    engine_file: Path, optimized: Path, torch_model: str
) -> None:
    assert engine_of(str(engine_file)) == "tensorrt-rtx"
    assert engine_of(str(optimized)) == "onnxruntime"
    assert engine_of(torch_model) == "pytorch"
    change(engine_file, target="tensorrt")
    assert engine_of(str(engine_file)) == "tensorrt"
