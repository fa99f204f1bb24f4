"""The first diverging tensor inside an engine: found where a fault was put, with at most 3 + log2(n) builds.

No engine can run here. The parts are built by a stand-in that puts the fault in, and what it builds is run by
the real runner on a simulated GPU; `test_engine_builds.py` builds the parts with the real TensorRT-RTX.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from commands import MakeModel
from faulty_builder import Fault, FaultyBuilder, install
from layer_faults import all_at_once, random_network, scaled
from simulated_cuda import SimulatedGpu
from simulated_cuda import install as install_gpu
from tensorrt_simulation import make_adapter

from qcompile.bench.diff.layers import rebuild
from qcompile.bench.diff.layers.compare import layer_diff
from qcompile.bench.diff.layers.outcome import LayerDiff
from qcompile.bench.diff.layers.taps import write_samples
from qcompile.errors import BuildError
from qcompile.model.graph.onnx_file import read_weightless
from qcompile.model.outputs.judgement import output_error

VERSIONS = {"8.5.3": "", "10.16": "unfused", "rtx": "unfused"}
"""Version to how it shows many tensors at once."""

Search = Callable[..., LayerDiff]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    return install_gpu(monkeypatch)


@pytest.fixture
def search(gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Search:
    """`search(model, fault)` builds an engine with the fault, and compares its layers with the model's.

    `search.builder` is what built, last.
    """

    def run(
        model: onnx.ModelProto,
        fault: Fault,
        *,
        version: str = "8.5.3",
        built_now: Fault | None = None,
        fused: tuple[str, ...] = (),
        precision: str = "fp32",
        **options: Any,
    ) -> LayerDiff:
        adapter = make_adapter(version, gpu)
        builder = FaultyBuilder(adapter, fault, fused)
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        engine = builder.engine(path, tmp_path / "model.engine", precision)
        source = builder.source(path)
        builder.fault = built_now or fault
        install(monkeypatch, builder, tmp_path)
        run.builder = builder  # type: ignore[attr-defined]
        options = {"samples": 2, **options}
        diff = layer_diff(str(path), str(engine), source=source, **options)
        assert diff.engine.builds == len(builder.parts) <= diff.engine.max_builds
        assert diff.engine.layers == diff.pairs.paired
        assert diff.engine.max_builds == options.get("max_builds", 3 + int(math.log2(diff.pairs.paired)))
        return diff

    return run


def at(tensor: str, times: float = 1.5) -> Fault:
    """A kernel that computes a tensor too large."""
    return lambda model, _: scaled(model, tensor, times)


def none(model: onnx.ModelProto, _: set[str]) -> onnx.ModelProto:
    return model


def fused_at(tensor: str, inside: str) -> Fault:
    """A kernel that is wrong where a tensor is fused with the one before it, which nothing keeps out."""
    return lambda model, held: model if inside in held else scaled(model, tensor, 1.5)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("tensor", ["c1", "r1", "c2", "a", "r2", "p", "y"])
def test_the_tensor_of_the_fault_is_found_and_confirmed(
    search: Search, tiny: MakeModel, version: str, tensor: str
) -> None:
    diff = search(tiny("residual"), at(tensor), version=version)
    assert not diff
    assert diff.first_bad.tensor == tensor
    assert diff.engine.survey == VERSIONS[version]
    assert diff.engine.confirmed
    assert diff.runs == diff.engine.builds + 1


@pytest.mark.parametrize("version", ["8.5.3", "10.16"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("layers", [5, 17, 40])
def test_in_random_networks_builds_stay_within_three_and_the_logarithm(
    search: Search, layers: int, seed: int, version: str
) -> None:
    model = random_network(layers, seed)
    made = [name for node in model.graph.node for name in node.output]
    for tensor in made[seed :: max(1, layers // 3)]:
        diff = search(model, at(tensor), version=version)
        if diff.first_bad is None:  # nothing reads the tensor
            assert all(snr > 80 for snr in diff.outputs.values())
            continue
        assert diff.first_bad.tensor == tensor
        assert diff.engine.builds <= 3 + math.log2(layers)


def test_both_sides_of_the_fault_are_what_all_tensors_at_once_show(
    search: Search, tiny: MakeModel, tmp_path: Path
) -> None:
    model = tiny("residual")
    diff = search(model, at("a", 1.25))
    light = read_weightless(tmp_path / "model.onnx")
    written = write_samples(light, None, tmp_path / "again", limit=2)
    feeds = [{"x": written.read(number, "x")} for number in range(2)]
    right = all_at_once(model, feeds)
    wrong = all_at_once(scaled(tiny("residual"), "a", 1.25), feeds)
    expected = {name: output_error(right[name], wrong[name]).snr_db for name in right}
    assert diff.engine.after_db == pytest.approx(expected["a"], abs=0.1)
    assert set(diff.engine.before) == {"c2", "r1"}
    assert min(diff.engine.before.values()) > 100
    assert expected["c2"] == expected["r1"] == math.inf
    told = diff.as_json()["engine"]
    assert told["confirmed"] is True
    assert told["builds"] == diff.engine.builds


FUSED = tuple(f"t{number}" for number in range(10, 30))
GONE = "does not show the engine's fault"


@pytest.mark.parametrize(
    ("layers", "fault", "options", "found", "builds", "confirmed", "said"),
    [
        pytest.param(0, none, {}, None, 0, False, "", id="outputs agree"),
        # Before 10.12 there is `mark_debug` alone, which keeps tensors out of fusions.
        pytest.param(0, fused_at("r1", "c1"), {"version": "10.16", "marked": True}, "r1", None, True,
                     "a fusion contributes to it", id="a fusion that marks prevent"),
        pytest.param(40, at("t20"), {"version": "10.16", "marked": True}, "t20", 3, True, "",
                     id="marks lead to it: all at once, with those before it, and alone"),
        pytest.param(40, at("t20"), {"version": "10.16", "fused": FUSED}, "t20", None, True, "",
                     id="fused away: bisection"),
        pytest.param(0, at("c2"), {"precision": "fp16"}, "c2", None, True, "types are weak", id="weak types"),
        pytest.param(0, at("c2"), {"precision": "fp16", "version": "10.16"}, "c2", None, True,
                     "!types are weak", id="strong types"),
        pytest.param(0, at("c2"), {}, "c2", None, True, "!types are weak", id="fp32"),
        *(pytest.param(17, at("t8"), {"version": version, "built_now": none}, ..., None, False, GONE,
                       id=f"gone in {version}: no pass") for version in VERSIONS),
        pytest.param(40, at("t20"), {"max_builds": 2}, ..., 2, False, "the fault may lie earlier, at",
                     id="few builds"),
        pytest.param(40, at("t20"), {"version": "10.16", "max_builds": 2}, "t20", 2, False,
                     "was not confirmed by builds that end with it", id="found by the last build"),
    ],
)  # fmt: skip
def test_what_was_found_how_surely_and_what_is_not_known(
    search: Search, tiny: MakeModel, monkeypatch: pytest.MonkeyPatch, layers: int,
    fault: Fault, options: dict[str, Any], found: Any, builds: int | None, confirmed: bool, said: str,
) -> None:  # fmt: skip
    if options.pop("marked", False):
        monkeypatch.setattr(rebuild, "can_mark_unfused_tensors", lambda _: False)
    seed = 1 if layers == 40 else 0
    steps: list[tuple[Any, ...]] = []
    model = random_network(layers, seed) if layers else tiny("residual")
    diff = search(model, fault, progress=lambda *step: steps.append(step), **options)
    assert bool(diff) == (found is None)  # wrong outputs are no pass, whatever a build of now says
    assert found is ... or (diff.first_bad and diff.first_bad.tensor) == found
    assert builds is None or diff.engine.builds == builds
    assert diff.engine.confirmed == confirmed
    assert not said or any(said.lstrip("!") in text for text in diff.engine.unknown) != said.startswith("!")
    told = [step[0] for step in steps if step[0].startswith("build ")]
    assert len(told) == diff.engine.builds
    assert not told or told[0].startswith(f"build 1 of at most {diff.engine.max_builds}: ")
    parts = search.builder.parts  # type: ignore[attr-defined]
    if layers == 0 and found == "c2" and "version" not in options:
        assert all("y" not in part for part in parts), "the whole graph is not built to look inside"
        assert ["c2"] in parts, "what was found was built alone"


def test_an_error_that_shrinks_again_is_said(search: Search) -> None:
    def twice(model: onnx.ModelProto, _: set[str]) -> onnx.ModelProto:
        # What t3 has too much is taken away again behind it, and another fault follows.
        return scaled(scaled(scaled(model, "t3", 2.0), "t4", 0.5), "t12", 1.5)

    model = random_network(17, 0)
    for node in model.graph.node[3:6]:
        node.op_type = "LeakyRelu"
        del node.input[1:], node.attribute[:]
    diff = search(model, twice, version="10.16")
    assert diff.first_bad.tensor == "t3"
    assert any("the error shrinks again: t3 has 0.0 dB, t4" in text for text in diff.engine.unknown)
    bisected = search(model, twice, version="8.5.3")
    assert bisected.first_bad.tensor in ("t3", "t12"), "where t3 was not read, the other fault"


def test_a_part_that_cannot_be_built_is_left_out_and_named(search: Search) -> None:
    model = random_network(17, 0)

    original = FaultyBuilder.__call__

    def call(self: FaultyBuilder, adapter: Any, request: Any) -> Any:
        self.parts.append([])
        if "t7" in [value.name for value in onnx.load(request.model).graph.output]:
            raise BuildError("no kernel for t7")
        self.parts.pop()
        return original(self, adapter, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FaultyBuilder, "__call__", call)
        diff = search(model, at("t8"))
    assert diff.first_bad.tensor in ("t8", "t7")
    assert any("no kernel for t7" in text for text in diff.warnings)


def test_interrupted_builds_leave_nothing_behind(
    search: Search, tiny: MakeModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tempfile

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(FaultyBuilder, "__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        search(tiny("residual"), at("c2"))
    assert list((tmp_path / "temporary").iterdir()) == []


def test_values_around_the_fault_are_kept_for_polygraphy(
    search: Search, tiny: MakeModel, tmp_path: Path
) -> None:
    pytest.importorskip("polygraphy")
    from polygraphy.comparator import RunResults

    diff = search(tiny("residual"), at("c2"), save_results=tmp_path / "kept.json")
    assert diff.first_bad is not None
    kept = RunResults.load(str(tmp_path / "kept.json"))
    assert all("c2" in kept[side][0] for side in ("reference", "artifact"))


def test_the_shown_lines_name_both_sides_builds_and_what_is_not_known(
    search: Search, tiny: MakeModel
) -> None:
    from qcompile.cli.measure import inside, verdict

    diff = search(tiny("residual"), at("a"), version="10.16")
    assert diff.engine is not None
    assert verdict(diff).startswith("first bad tensor: a, made by Add add")
    first, second, *others = inside(diff)
    assert first == "inside the engine: unfused tensors, 3 of at most 6 builds"
    assert second.startswith("  before: ")
    assert "c2 " in second
    assert "after: 6.0 dB; confirmed in a graph that ends there" in second
    assert others
    assert all(line.startswith("  not known: ") for line in others)


def test_without_builds_the_outputs_alone_are_compared(
    search: Search, tiny: MakeModel, tmp_path: Path
) -> None:
    search(tiny("residual"), at("c2"))
    builder = search.builder  # type: ignore[attr-defined]
    builder.parts.clear()
    files = [str(tmp_path / "model.onnx"), str(tmp_path / "model.engine")]
    for options in ({"max_builds": 0, "source": builder.source(Path(files[0]))}, {}):
        diff = layer_diff(*files, samples=2, **options)  # type: ignore[arg-type]
        assert diff.engine is None
        assert "engine" not in diff.as_json()
        assert [layer.tensor for layer in diff.layers] == ["y"]
    assert builder.parts == []
