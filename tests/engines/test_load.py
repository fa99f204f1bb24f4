"""Engines are found by name, load what their manifest says, and are weighed by one policy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qcompile.building import build
from qcompile.engines import load
from qcompile.engines.base import BuildOutcome, BuildRequest, Engine, Planned
from qcompile.engines.build import build_engine, weigh
from qcompile.engines.gpu import why_no_gpu
from qcompile.engines.load import engine_of
from qcompile.engines.registry import engine, names, register
from qcompile.errors import ArtifactError, EngineUnavailable, InvalidOption, MissingFile
from qcompile.files import manifest_path
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import PRECISIONS
from qcompile.tensors import ModelIO

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


def test_a_built_model_is_loaded_and_computes_what_the_model_does(
    optimized: Path, tiny_file: MakePath
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


def test_a_file_that_was_changed_is_loaded_by_who_trusts_it(optimized: Path, tiny_file: MakePath) -> None:
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


def test_the_engines_are_these() -> None:
    assert names() == ("onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript", "pytorch")


@pytest.mark.parametrize("name", names())
def test_an_engine_knows_its_name_and_says_why_it_cannot(name: str) -> None:
    found = engine(name)
    assert isinstance(found, Engine)
    assert found.name == name
    assert found.takes in ("onnx", "pytorch")
    assert found.fix() or not found.why_not_run()


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "tensorrt-rtx", "torchscript"])
def test_an_engine_that_can_build_here_names_the_precision_its_graph_must_have(name: str) -> None:
    found = engine(name)
    assert found.why_not_build() == ""
    assert found.suffix.startswith(".")
    needed = [found.graph_precision(precision) for precision in found.precisions]
    expected = {
        "torchscript": ["fp32"] * 5,
        "openvino": ["fp32", "fp32", "fp32", "int8", "int4"],
        "tensorrt-rtx": ["fp32", "fp32", "fp16", "bf16", "int8", "fp8", "int4", "nvfp4", "mxfp8"],
    }
    assert needed == expected.get(name, ["fp32", "fp16", "bf16", "int8", "int4"])
    assert set(found.precisions) <= set(PRECISIONS)


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"engine 'tensorrt' is registered already \(\.tensorrt\)"):
        register("tensorrt", ".elsewhere", "Other")
    assert type(engine("tensorrt")).__name__ == "TensorRT"


def test_an_unknown_name_is_refused_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        InvalidOption, match="target 'onnx-runtime' is unknown; known are onnxruntime"
    ) as caught:
        engine("onnx-runtime")
    assert caught.value.hint == "did you mean 'onnxruntime'?"
    assert caught.value.data["option"] == "target"


def test_a_name_that_is_near_to_none_has_no_hint() -> None:
    with pytest.raises(InvalidOption) as caught:
        engine("zzz")
    assert caught.value.hint == ""


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


COUNTS = {"large": 88, "small": 9, "tiny": 3}


def outcome(precision: str, *missed: str, unreported: tuple[str, ...] = (), **changes: Any) -> BuildOutcome:
    reached = len(COUNTS) - len(missed) - len(unreported)
    values = {
        "planned": len(COUNTS),
        "reached": reached,
        "proof": {"layers_by_precision": {precision: {"MatMul": reached}, "fp32": {"MatMul": len(missed)}}},
        "layers": Planned(
            tuple(COUNTS), dict.fromkeys(missed, "in fp32"), dict.fromkeys(unreported, "not told")
        ),
        **changes,
    }
    return BuildOutcome(kind="onnx", io=ModelIO((), ()), device={}, packages=(), **values)


def test_all_that_was_planned_is_reached() -> None:
    found = weigh("int8", outcome("int8"), COUNTS, strict=True)
    assert (found.failure, found.warnings) == ("", ())
    assert (found.proof["missed_share"], found.proof["weighed_by"]) == (0, "multiply-adds")


def test_less_than_a_tenth_is_a_warning_with_names_shares_and_reasons() -> None:
    found = weigh("int8", outcome("int8", "small"), COUNTS)
    assert found.failure == ""
    (warning,) = found.warnings
    assert "2 of 3 layers that compute reached it (2 in int8, 1 in fp32)" in warning
    assert warning.endswith("9.0% of the planned multiply-adds missed it: small (9.0%: in fp32)")
    assert found.proof["missed"] == {"small": {"reason": "in fp32", "share": 0.09}}


@pytest.mark.parametrize("strict", [False, True])
def test_more_than_a_tenth_fails_and_strict_fails_for_one(strict: bool) -> None:
    missed = ("tiny",) if strict else ("small", "tiny")
    found = weigh("int8", outcome("int8", *missed), COUNTS, strict=strict)
    assert "missed it: " + ("tiny" if strict else "small (9.0%: in fp32), tiny") in found.failure
    assert found.warnings == ()


def test_where_multiply_adds_are_unknown_layers_are_counted() -> None:
    found = weigh("int8", outcome("int8", "tiny"), {"large": 88})
    assert "33.3% of the planned layers missed it" in found.failure
    assert found.proof["weighed_by"] == "layers"


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("counts", [COUNTS, {}, dict.fromkeys(COUNTS, 0)])
def test_an_artifact_that_reached_nothing_never_passes(counts: dict[str, int], strict: bool) -> None:
    found = weigh("fp16", outcome("fp16", *COUNTS), counts, strict=strict)
    assert found.failure.startswith("fp16 was asked for; 0 of 3 layers")
    assert "large (33.3%: in fp32)" in found.failure
    assert weigh("fp16", outcome("fp16", reached=0), counts).failure  # whatever the names say
    assert weigh("int8", outcome("int8", planned=0, reached=0, layers=None), counts).failure


def test_what_is_not_told_is_neither_reached_nor_missed() -> None:
    few = weigh("int8", outcome("int8", unreported=("small",)), COUNTS, strict=True)
    assert few.failure == ""
    assert few.warnings[0].startswith("1 of 3 layers are unreported, 9.0% of the planned multiply-adds")
    most = weigh("int8", outcome("int8", unreported=("large",)), COUNTS)
    assert most.failure.startswith("int8 was asked for and cannot be proven: 1 of 3 layers are unreported")


def test_an_engine_without_names_is_weighed_by_its_counts() -> None:
    assert weigh("int8", outcome("int8", layers=None), {}).failure == ""
    assert weigh("int8", outcome("int8", layers=None, planned=20, reached=19), {}).warnings
    assert weigh("int8", outcome("int8", layers=None, planned=20, reached=19), {}, strict=True).failure
    assert weigh("int8", outcome("int8", layers=None, planned=20, reached=17), {}).failure


def test_a_model_without_layers_that_compute_is_float32() -> None:
    nothing: dict[str, Any] = {"planned": 0, "reached": 0, "layers": Planned(())}
    empty = outcome("fp32", proof={"layers_by_precision": {"fp32": {}}}, **nothing)
    assert weigh("fp32", empty, {}).failure == ""
    assert weigh("int8", empty, {}).failure


@pytest.mark.parametrize(
    ("unproven", "evidence", "strict", "passes"),
    [
        (True, "", False, False),
        (True, "flags permit it", False, True),
        (True, "flags permit it", True, False),
        (False, "binding", True, True),
    ],
)
def test_what_is_unreported_fails_where_nothing_is_known_or_each_layer_is_demanded(
    unproven: bool, evidence: str, strict: bool, passes: bool
) -> None:
    names = ("large", "small")
    planned = Planned(tuple(COUNTS), {}, dict.fromkeys(names, "in a block"), unproven, evidence)
    found = weigh("fp16", outcome("fp16", reached=1, layers=planned), COUNTS, strict=strict)
    assert (not found.failure) == passes
    assert found.proof["unreported_share"] == pytest.approx(0.97)
    assert found.proof.get("evidence", "") == evidence
    said = [found.failure] if found.failure else list(found.warnings)
    assert bool(said) == unproven
    assert all(text.endswith(evidence) for text in said)


def test_an_artifact_of_which_nothing_is_reported_stands_where_its_types_are_binding() -> None:
    planned = Planned(tuple(COUNTS), {}, dict.fromkeys(COUNTS, "in a block"), False, "binding")
    found = weigh("fp16", outcome("fp16", reached=0, layers=planned), COUNTS, strict=True)
    assert (found.failure, found.warnings) == ("", ())
    assert found.proof["unreported_share"] == 1
