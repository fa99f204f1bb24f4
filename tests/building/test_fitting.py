"""A graph is fitted to the version that reads it: what it lacks is written out, and faults worked around."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mode_models import written
from simulated_machine import Machine, install
from written_models import text_model

import qcompile
from qcompile.building.lower import lower
from qcompile.building.lowered import LoweredGraph, load_lowered
from qcompile.core.artifact import Manifest, commit, load_artifact
from qcompile.core.files import writing
from qcompile.engines.gpu import Gpu
from qcompile.engines.registry import engine
from qcompile.engines.tensorrt import engine as tensorrt_engine
from qcompile.errors import ArtifactError, UnsupportedOperator
from qcompile.model.graph.graph import weighted_nodes
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensorrt import TensorRTOptions

OnMachine = Callable[..., Machine]
CUMSUMS = "y = CumSum (x, a) z = CumSum (x, b) r = Relu (y)"
STORED = "<int64 a = {0}, int64 b = {1}>"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OnMachine:
    return lambda version, **about: install(monkeypatch, tmp_path, version, **about)


def saved(folder: Path, version: int, signature: str, body: str, stored: str = "") -> Path:
    model = text_model(f"{signature} {stored} {{ {body} }}", opset=version, ir_version=10)
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"node{index}"
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def lowered(model: Path, target: str = "tensorrt", precision: Any = "fp32", **options: Any) -> LoweredGraph:
    spec = BuildSpec(
        target=target,  # type: ignore[arg-type]
        precision=precision,
        gpus=("sm86",) if target == "tensorrt-rtx" else (),
        tensorrt=TensorRTOptions(**options),
    )
    return lower(model, spec, engine(target), model.with_name("graph.onnx"), keep=True)


def operators(path: str | Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def cumsums(folder: Path) -> Path:
    return saved(folder, 17, "(float[3, 4] x) => (float[3, 4] r, float[3, 4] z)", CUMSUMS, STORED)


def test_a_fault_of_the_version_is_worked_around_and_named_in_both_manifests(tmp_path: Path) -> None:
    model, fault = cumsums(tmp_path), {"cumsum-axes": ["node1"]}
    graph = lowered(model, "tensorrt-rtx")
    assert operators(graph.path).count("CumSum") == 1
    assert {name: list(nodes) for name, nodes in graph.worked_around.items()} == fault
    assert load_lowered(Path(graph.path)).worked_around == fault
    built = qcompile.build(model, tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"])
    assert built.manifest.proof["worked_around"] == fault
    for ignored in ("cumsum-axes", "all"):
        graph = lowered(model, "tensorrt-rtx", ignore_faults=(ignored,))
        assert operators(graph.path).count("CumSum") == 2
        assert graph.worked_around == {}


def test_a_version_without_the_fault_gets_the_graph_as_it_is(tmp_path: Path, machine: OnMachine) -> None:
    machine("8.5.3")
    assert operators(lowered(cumsums(tmp_path)).path).count("CumSum") == 2
    machine("10.16")
    assert operators(lowered(cumsums(tmp_path)).path).count("CumSum") == 1


def test_a_fault_without_a_rewrite_is_refused_with_reports_nodes_and_way_out(
    tmp_path: Path, machine: OnMachine
) -> None:
    signature = "(float[4, 4] x, int64[2, 2] i, float[2] u) => (float[4, 4] y)"
    model = saved(tmp_path, 16, signature, 'y = ScatterND <reduction="mul"> (x, i, u)')
    machine("8.5.3")
    said = r"tensorrt 8\.5\.3\.1 computes node0 wrongly: scatter-"
    with pytest.raises(UnsupportedOperator, match=said) as found:
        lowered(model)
    assert "NVIDIA/TensorRT 3462" in found.value.message
    assert found.value.hint == (
        "use TensorRT 10, or add in the model by other operators; "
        "`ignore_faults` scatter-reduction builds it as it is"
    )
    assert operators(lowered(model, ignore_faults=("scatter-reduction",)).path) == ["ScatterND"]


def test_a_cubic_sample_goes_to_the_opset_of_the_older_name(tmp_path: Path, machine: OnMachine) -> None:
    signature = "(float[1, 1, 4, 4] x, float[1, 2, 2, 2] g) => (float[1, 1, 2, 2] y)"
    model = saved(tmp_path, 20, signature, 'y = GridSample <mode="cubic"> (x, g)')
    machine("10.16")
    graph = onnx.load(lowered(model).path)
    assert graph.opset_import[0].version == 19
    assert graph.graph.node[0].attribute[0].s == b"bicubic"


def test_what_is_only_reported_is_a_warning_for_its_precision(
    tmp_path: Path, machine: OnMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = "(float[2, 5, 8] x, float[2, 8, 5] k, float[2, 5, 8] v) => (float[2, 5, 8] y)"
    model = saved(tmp_path, 17, signature, "s = MatMul (x, k) p = Softmax (s) y = MatMul (p, v)")
    machine("10.16")
    monkeypatch.setattr(tensorrt_engine, "find_gpu", lambda *_: Gpu("Simulated", "sm120", 1 << 30, "12.8"))
    for precision, warned in (("fp32", False), ("fp16", True)):
        warnings = lowered(model, precision=precision).warnings
        assert any("fused-attention-sm120" in text for text in warnings) == warned


def test_a_fault_of_several_profiles_is_one_of_builds_that_have_them(
    tmp_path: Path, machine: OnMachine
) -> None:
    model = saved(tmp_path, 16, "(float[n, 4] x) => (float[n, 4] y)", "y = Relu (x)")
    machine("8.5.3")
    profiles = ("x:1x4..1x4..1x4", "x:2x4..4x4..8x4")
    for count in (1, 2):
        warnings = lowered(model, profiles=profiles[:count]).warnings
        assert [text for text in warnings if "several-profiles" in text] == [
            "known fault several-profiles: engine of several optimization profiles computes something else "
            "in one of them (NVIDIA/TensorRT 4250): x"
        ] * (count - 1)


LAYER_NORM = """(float[N,8] x) => (float[N,8] y) {
    [product] h = MatMul (x, w)
    [norm] n = LayerNormalization <axis = -1> (h, s, b)
    [last] y = MatMul (n, w)
}"""


def layer_norm(folder: Path, scale: float = 1.0) -> Path:
    w = np.random.default_rng(0).standard_normal((8, 8)) * scale
    weights = {"w": w, "s": np.ones(8), "b": np.zeros(8)}
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    return written(folder / "m.onnx", LAYER_NORM, **arrays)


def test_layer_normalization_is_written_out_for_8_5_and_stays_in_float32(
    tmp_path: Path, machine: OnMachine
) -> None:
    here = machine("8.5.3")
    graph = lowered(layer_norm(tmp_path), precision="fp16")
    assert "LayerNormalization" not in operators(graph.path)
    made = [node for node in onnx.load(graph.path).graph.node if node.name.startswith("norm/")]
    statistics = {
        node.name for node in made if node.op_type in ("ReduceMean", "Sub", "Mul", "Sqrt", "Div", "Add")
    }
    kept = {name for name, kind in graph.layers.items() if kind == "fp32"}
    scale_and_bias = {node.name for node in made[-2:]}
    assert kept == statistics - scale_and_bias
    proof = here.build(layer_norm(tmp_path), "fp16").manifest.proof
    assert proof["layers_by_precision"] == {"fp16": {"MATRIX_MULTIPLY": 2}}
    assert here.flags() == {"FP16", "OBEY_PRECISION_CONSTRAINTS"}


@pytest.mark.parametrize(("version", "options"), [("8.5.3", {}), ("10.16", {"typing": "weak"})])
def test_what_overflows_float16_is_a_constraint_where_types_are_weak(
    version: str, options: dict[str, Any], tmp_path: Path, machine: OnMachine
) -> None:
    machine(version)
    graph = lowered(layer_norm(tmp_path, 1e6), precision="fp16", **options)
    assert {"product", "last"} <= set(graph.layers)
    assert all(kind == "fp32" for kind in graph.layers.values())


@pytest.mark.parametrize("version", ["10.16", "11.4"])
def test_what_overflows_float16_is_written_in_float32_where_types_are_strong(
    version: str, tmp_path: Path, machine: OnMachine
) -> None:
    machine(version)
    graph = lowered(layer_norm(tmp_path, 1e6), precision="fp16")
    assert operators(graph.path).count("LayerNormalization") == 1  # which the parser has
    assert graph.layers == {}
    left = load_artifact(Path(graph.path)).manifest.proof["left_in_float"]
    assert {"product", "last"} == {name for name, why in left.items() if "65504" in why}  # type: ignore[attr-defined]
    assert [node.name for node in weighted_nodes(onnx.load(graph.path))["fp32"]] == ["product", "last"]


def test_activations_that_overflow_on_the_data_are_constrained_and_a_build_without_data_says_so(
    tmp_path: Path, machine: OnMachine
) -> None:
    path = layer_norm(tmp_path)
    np.savez(tmp_path / "data.npz", x=np.full((4, 8), 1e6, np.float32) * np.arange(8, dtype=np.float32))
    machine("8.5.3")
    blind = lowered(path, precision="fp16")
    assert any("were not looked for" in text for text in blind.warnings)
    assert "product" not in blind.layers
    spec = BuildSpec(target="tensorrt", precision="fp16", data=str(tmp_path / "data.npz"))
    seen = lower(path, spec, engine("tensorrt"), tmp_path / "graph.onnx")
    assert seen.layers["product"] == "fp32"
    assert not seen.warnings


def test_a_layer_that_the_user_names_is_found_in_what_it_was_written_out_in(
    tmp_path: Path, machine: OnMachine
) -> None:
    here = machine("8.5.3")
    spec = BuildSpec(target="tensorrt", precision="fp16", layers=("norm=fp16",))
    path = layer_norm(tmp_path)
    graph = lower(path, spec, engine("tensorrt"), tmp_path / "graph.onnx")
    names = {node.name for node in onnx.load(graph.path).graph.node if node.name.startswith("norm/")}
    assert {name for name, kind in graph.layers.items() if kind == "fp16"} == names
    assert here.module


RECORD: dict[str, Any] = {
    "precision": "int8", "float_precision": "fp16", "layers": {"conv": "fp32"}, "planned": ["conv"],
    "left_in_float": {}, "warnings": ["w"], "worked_around": {"fault": ["conv"]},
}  # fmt: skip


def recorded(path: Path, record: Any) -> Path:
    with writing(path) as temporary:
        temporary.write_bytes(b"graph")
        commit(temporary, Manifest(kind="onnx", stage="lower", options={"lowered": record}))
    return path


def test_a_record_reads_back(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.graph.onnx", RECORD)
    assert load_lowered(path) == LoweredGraph(str(path), **RECORD)


@pytest.mark.parametrize(
    "record",
    [
        None, 5, [], "int8", {},
        *(RECORD | change for change in (
            {"precision": "int7"}, {"precision": None}, {"float_precision": 5}, {"layers": ["conv"]},
            {"layers": {"conv": 5}}, {"planned": "conv"}, {"left_in_float": []}, {"warnings": [5]},
            {"worked_around": {"fault": "conv"}},
        )),
    ],
)  # fmt: skip
def test_a_record_that_is_missing_or_of_a_wrong_type_is_named(tmp_path: Path, record: Any) -> None:
    path = recorded(tmp_path / "a.graph.onnx", record)
    with pytest.raises(ArtifactError, match=r"a\.graph\.onnx: its manifest has no valid lowering record"):
        load_lowered(path)
