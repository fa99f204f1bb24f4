"""Artifacts on another processor than that of their build: refused where they would compute wrong values.

Weights for AVX2 are right on every x86 processor. Others overflow where a processor has no VNNI. The tests
change manifests to tell another processor, so that every processor runs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Qc
from mode_models import normal, written

import qcompile
from qcompile.core.artifact import Manifest, int8_isa, read_manifest
from qcompile.core.files import manifest_path
from qcompile.core.processes import child
from qcompile.core.processor import isa_here
from qcompile.errors import ArtifactError
from qcompile.model.graph.graph import count_operators
from qcompile.model.graph.onnx_file import read_graph

OnProcessor = Callable[..., None]
MakePath = Callable[..., Path]
MEANS = (
    "its INT8 is for avx512-vnni, and this processor (Some CPU) has no VNNI: "
    "its kernels add two products in 16 bits, which overflow"
)
WAY_OUT = "build it again here, or with --isa avx2, which every x86 processor computes exactly"
XEON = ["avx", "avx2", "avx512f", "avx512_vnni"]


def told(path: Path, **tables: dict[str, Any]) -> Path:
    """Let the manifest beside a file tell something else."""
    beside = manifest_path(path)
    beside.write_text(json.dumps(json.loads(beside.read_text()) | tables))
    return path


@pytest.fixture
def ranges(tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> Path:
    """Ranges of the tiny residual model, which lies beside them."""
    return qcompile.calibrate(tiny_file("residual"), str(samples("residual")), tmp_path / "m.ranges").path


@pytest.fixture
def quantized(ranges: Path, on_processor: OnProcessor) -> MakePath:
    """`quantized("openvino")` is a graph for AVX2 whose manifest says AVX-512 VNNI, or what is given."""

    def make(target: str = "onnxruntime", isa: str = "avx512-vnni") -> Path:
        on_processor()
        path = ranges.with_name(f"{target}-{isa}.onnx")
        qcompile.quantize(ranges.with_name("residual.onnx"), path, target=target, ranges=ranges, isa="avx2")  # type: ignore[arg-type]
        return told(path, options={"isa": isa})

    return make


@pytest.fixture
def built(ranges: Path, on_processor: OnProcessor) -> MakePath:
    """As `quantized`, built for the target."""

    def make(target: str = "onnxruntime", isa: str = "avx512-vnni") -> Path:
        pytest.importorskip(target)
        on_processor()
        path = ranges.with_name(f"built-{target}-{isa}.onnx")
        qcompile.build(
            ranges.with_name("residual.onnx"), path, target=target, precision="int8", ranges=ranges,  # type: ignore[arg-type]
            isa="avx2", allow_fallback=True,
        )  # fmt: skip
        return told(path, options={"isa": isa}, device={"processor": "x86", "isa": isa})

    return make


@pytest.fixture
def workers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are on the processor of `on_processor()`, too."""
    here = (
        "import qcompile.core.processor as here\n"
        "here._read_cpuinfo = lambda: ({'avx2', 'avx512f'}, 'Some CPU')\n"
    )
    monkeypatch.setattr(child, "_START", child._START.replace("runpy.run_", f"{here}runpy.run_"))


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_int8_for_vnni_is_not_loaded_where_there_is_none(
    target: str, quantized: MakePath, built: MakePath, on_processor: OnProcessor
) -> None:
    for path in (built(target), quantized(target)):
        with pytest.raises(ArtifactError) as caught:
            qcompile.load(path)
        assert caught.value.message == f"{path}: {MEANS}"
        assert caught.value.data["file"] == path
        assert caught.value.hint == WAY_OUT.replace("--isa", "`isa`")
        with pytest.raises(ArtifactError, match="has no VNNI"):
            qcompile.load(path, trust=True)
        on_processor("avx512_vnni")
        with qcompile.load(path) as runner:
            assert runner.infer({"x": np.zeros((1, 4, 8, 8), np.float32)})["y"].shape == (1, 3)
        on_processor()


@pytest.mark.parametrize("isa", ["avx-vnni", "amx", "neon", "avx512-vnni"])
def test_every_other_isa_is_refused(isa: str, quantized: MakePath, tmp_path: Path) -> None:
    path = quantized(isa=isa)
    for file in (path, qcompile.simplify(path, tmp_path / "simplified.onnx").path):
        with pytest.raises(ArtifactError, match=f"its INT8 is for {isa}, and this processor"):
            qcompile.load(file)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_int8_for_avx2_is_loaded_everywhere(target: str, built: MakePath, on_processor: OnProcessor) -> None:
    path = built(target, "avx2")
    for features in ((), ("avx512_vnni",), ("avx_vnni",), ("amx_int8", "avx512_vnni")):
        on_processor(*features)
        qcompile.load(path).close()


@pytest.mark.usefixtures("workers_too")
def test_diff_refuses_either_side_and_bench_says_so_in_place_of_figures(
    built: MakePath, ranges: Path, qc: Qc, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model = built(), ranges.with_name("residual.onnx")
    monkeypatch.chdir(path.parent)
    for sides in ((model.name, path.name), (path.name, model.name), (model.name, path.name, "--layers")):
        said = qc("diff", *sides)
        assert said.code == 1
        assert said.err.endswith(f"{path.name}: {MEANS}\n  hint: {WAY_OUT}\n")
    said = qc("bench", path, "--baseline", model, "--max-time", 0.2)
    assert said.code == 1
    words = " ".join((said.out + said.err).split())
    assert f"{path.name}: failed: " in words
    assert f"{MEANS}; {WAY_OUT}" in words


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_it_is_not_packaged(target: str, built: MakePath, qc: Qc, tmp_path: Path) -> None:
    path = built(target)
    said = qc("package", "triton", path, "--name", "m", "-o", tmp_path / "repository")
    assert said.code == 1
    hint = "package it on a processor like the server's, or build it with --isa avx2, which every x86"
    assert f"{path}: {MEANS}\n  hint: {hint} processor computes exactly\n" in said.err
    assert not (tmp_path / "repository" / "m").exists()
    told(path, options={"isa": "avx2"})
    assert qc("package", "triton", path, "--name", "m", "-o", tmp_path / "repository").code == 0


def test_avx2_takes_no_vnni(quantized: MakePath, qc: Qc, on_processor: OnProcessor, tmp_path: Path) -> None:
    """Neither here, nor for AVX2 by a processor with VNNI: the artifact would say that it is exact."""
    path, output = quantized(), tmp_path / "n.onnx"
    build = ("build", path, "--target", "onnxruntime", "--precision", "int8", "-o", output)
    hint = f"quantize the float model again here, or {WAY_OUT.removeprefix('build it again here, or ')}"
    said = qc(*build)
    assert (said.code, f"{path}: {MEANS}\n  hint: {hint}\n" in said.err) == (1, True)
    on_processor("avx512_vnni")
    said = qc(*build, "--isa", "avx2")
    assert (said.code, "for avx512-vnni; on avx2 sums of products would overflow" in said.err) == (1, True)
    assert not output.exists()
    assert qc(*build).code == 0


def of(stage: str = "build", **more: Any) -> Manifest:
    return Manifest("onnx", stage, **{"target": "onnxruntime", "precision": "int8", **more})


@pytest.mark.parametrize(
    ("manifest", "isa"),
    [
        (of("quantize"), "auto"),
        (of("quantize", options={"isa": "avx2"}), "avx2"),
        (of(device={"architecture": "x86_64", "features": XEON}), "avx512-vnni"),
        (of(device={"architecture": "x86_64", "features": ["avx2"]}), "avx2"),
        (of(device={"architecture": "aarch64", "features": ["asimd", "asimddp"]}), "neon-dotprod"),
        (of(device={"architecture": "x86_64", "features": XEON}, options={"isa": "avx2"}), "avx2"),
        (of(device={"architecture": "arm64", "features": []}), "auto"),
        (of("quantize", options={"mode": "weights"}), "auto"),
        (of("quantize", target="tensorrt"), "auto"),
        (of(precision="fp32", options={"isa": "amx"}), "auto"),
        (of("export", target=""), "auto"),
        (None, "auto"),
    ],
)
def test_what_int8_is_for_is_read_from_any_manifest(manifest: Manifest | None, isa: str) -> None:
    assert int8_isa(manifest) == isa


def convolution(path: Path) -> Path:
    """A convolution that ONNX Runtime computes in blocks of 8 or 16 channels."""
    body = "(float[1,16,8,8] x) => (float[1,16,8,8] y) { y = Conv <pads=[1,1,1,1]> (x, w) }"
    return written(path, body, w=normal(16, 16, 3, 3, scale=1))


def test_layouts_of_another_processor_are_refused(
    tmp_path: Path, on_processor: OnProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = qcompile.build(convolution(tmp_path / "m.onnx"), tmp_path / "f.onnx", target="onnxruntime").path
    assert any("nchwc" in name for name in count_operators(read_graph(path).load())), (
        "only a real file shows it"
    )
    told(path, device={"architecture": "x86_64", "features": ["avx2"], "isa": "avx2"})
    on_processor("avx512_vnni")
    with pytest.raises(ArtifactError, match=r"in blocks of 8 channels.* in blocks of 16 here") as caught:
        qcompile.load(path)
    assert caught.value.hint == "build it again on this machine, or there with `isa` avx512-vnni"
    told(path, device={"architecture": "x86_64", "features": ["avx2", "avx512f"], "isa": "avx2"})
    qcompile.load(path).close()
    monkeypatch.setattr("qcompile.core.processor._read_cpuinfo", lambda: ({"avx2"}, "Some CPU"))
    with pytest.raises(ArtifactError, match="for a processor with avx512f, which this one lacks"):
        qcompile.load(path)


def test_a_file_without_layouts_names_its_processor_and_does_not_care_for_the_size_of_blocks(
    tiny_file: MakePath, tmp_path: Path, on_processor: OnProcessor
) -> None:
    path = qcompile.build(tiny_file("mlp"), tmp_path / "f.onnx", target="onnxruntime").path
    manifest = read_manifest(path)
    assert manifest is not None
    assert manifest.device["isa"] == manifest.options["isa"] == isa_here()
    told(path, device={"architecture": "x86_64", "features": ["avx2"]})
    on_processor("avx512_vnni")
    qcompile.load(path).close()


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_builds_for_avx2_have_no_layouts(target: str, tmp_path: Path, on_processor: OnProcessor) -> None:
    pytest.importorskip(target)
    on_processor("avx512_vnni")
    model = convolution(tmp_path / "m.onnx")
    built = qcompile.build(model, tmp_path / "b.onnx", target=target, isa="avx2")  # type: ignore[arg-type]
    assert built.manifest.device == {"processor": "x86", "architecture": "x86_64", "isa": "avx2"}
    assert list(built.manifest.warnings) == [
        "built for avx2 on another processor, whose speed does not apply to it",
        "kernels on avx2 are not verified: layer precisions were checked on this processor (avx512-vnni)",
    ]
    assert {node.domain for node in read_graph(built.path).load().graph.node} <= {"", "com.microsoft"}
    on_processor()
    qcompile.load(built.path).close()
    here = qcompile.build(model, tmp_path / "h.onnx", target=target, isa="avx2").manifest  # type: ignore[arg-type]
    assert here.device["features"] == ["avx2", "avx512f"]
    assert not here.warnings
