"""A graph of a few bytes may not make tensors of gigabytes; one with gigabytes of weights may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from huge_tensors import MAKERS, chain, huge, looped
from onnx import TensorProto, helper

from qcompile.calibration import calibrate
from qcompile.compiler.simplify.simplify import simplify
from qcompile.errors import InvalidOption, ModelError
from qcompile.model.session import make_session, session_options
from qcompile.model.tensor_sizes import LEAST_GB, LIMIT, require_tensor_sizes, tensor_limit_bytes


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[onnx.ModelProto], Path]:
    """A file of a model; the limit is 3 GB whatever the machine has."""
    monkeypatch.setenv(LIMIT, "3")

    def save(model: onnx.ModelProto) -> Path:
        onnx.save(model, tmp_path / "m.onnx")
        return tmp_path / "m.onnx"

    return save


@pytest.mark.parametrize("maker", MAKERS)
def test_a_tensor_over_the_limit_is_refused_with_its_node(
    file: Callable[[onnx.ModelProto], Path], maker: str
) -> None:
    path = file(huge(maker, 2**34))
    with pytest.raises(ModelError, match=r"'t' of 68,719,476,736 bytes; at most 3,000,000,000") as raised:
        require_tensor_sizes(path)
    assert raised.value.data["node"] == "make"
    assert LIMIT in raised.value.hint


@pytest.mark.parametrize("maker", MAKERS)
def test_a_small_tensor_is_what_the_runtime_makes_of_it(
    file: Callable[[onnx.ModelProto], Path], maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's own tensor is the oracle: one byte less than it holds is refused, its size is not."""
    model = huge(maker, 64)
    model.graph.output.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, None))
    path = file(model)
    session = make_session(path, session_options(optimize=False))
    size = session.run(["t"], {"x": np.zeros((1, 2), np.float32)})[0].nbytes
    monkeypatch.setenv(LIMIT, str(size / 1e9))
    require_tensor_sizes(path)
    monkeypatch.setenv(LIMIT, str((size - 1) / 1e9))
    with pytest.raises(ModelError, match=f"{size} bytes"):
        require_tensor_sizes(path)


def test_verbs_refuse_it_before_a_runtime_sees_it(
    file: Callable[[onnx.ModelProto], Path], tmp_path: Path
) -> None:
    path = file(huge("ConstantOfShape", 2**34))
    np.savez(tmp_path / "d.npz", x=np.zeros((1, 2), np.float32))
    with pytest.raises(ModelError, match="68,719,476,736 bytes"):
        calibrate(path, str(tmp_path / "d.npz"), tmp_path / "m.ranges")
    with pytest.raises(ModelError, match="68,719,476,736 bytes"):
        simplify(path, tmp_path / "s.onnx")
    assert {one.name for one in tmp_path.iterdir()} == {"m.onnx", "d.npz"}


def test_many_constants_count_together(file: Callable[[onnx.ModelProto], Path]) -> None:
    with pytest.raises(ModelError, match="all constants that nodes make 4,000,000,000"):
        require_tensor_sizes(file(chain(10, 10**8)))
    require_tensor_sizes(file(chain(7, 10**8)))


def test_weights_do_not_count_nor_what_is_made_of_them(file: Callable[[onnx.ModelProto], Path]) -> None:
    """Eight weights of 1 GB each, stored as float16 beside the file and cast to float32."""
    graph = helper.make_graph(
        [],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10**9 // 32])],
    )
    for number in range(8):
        weight = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT16, dims=[16, 10**9 // 32])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w"), ("offset", "0"), ("length", str(10**9))):
            weight.external_data.add(key=key, value=value)
        graph.initializer.append(weight)
        graph.node.append(helper.make_node("Cast", [f"w{number}"], [f"f{number}"], to=TensorProto.FLOAT))
        graph.node.append(helper.make_node("MatMul", ["x", f"f{number}"], [f"y{number}"]))
    graph.node.append(helper.make_node("Sum", [f"y{number}" for number in range(8)], ["y"]))
    require_tensor_sizes(file(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])))


def test_what_only_a_run_can_tell_is_left_to_the_limits_of_untrusted(
    file: Callable[[onnx.ModelProto], Path],
) -> None:
    require_tensor_sizes(file(looped(40)))


def test_a_subgraph_counts(file: Callable[[onnx.ModelProto], Path]) -> None:
    inner = helper.make_graph(
        [
            helper.make_node("RandomNormal", [], ["r"], "inside", shape=[2**17, 2**17]),
            helper.make_node("ReduceMax", ["r"], ["m"], keepdims=0),
        ],
        "inner",
        [],
        [helper.make_tensor_value_info("m", TensorProto.FLOAT, [])],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)],
        "outer",
        [helper.make_tensor_value_info("x", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )
    with pytest.raises(ModelError, match=r"RandomNormal 'inside' makes tensor 'r'"):
        require_tensor_sizes(file(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])))


def test_the_limit_is_half_of_the_memory_and_no_less_than_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIMIT, raising=False)
    monkeypatch.setattr("qcompile.model.tensor_sizes.machine_bytes", lambda: 64 * 10**9)
    assert tensor_limit_bytes() == 32 * 10**9
    for memory in (10**9, None):
        monkeypatch.setattr("qcompile.model.tensor_sizes.machine_bytes", lambda memory=memory: memory)
        assert tensor_limit_bytes() == LEAST_GB * 10**9
    for wrong in ("0", "-1", "nan", "inf", "much"):
        monkeypatch.setenv(LIMIT, wrong)
        with pytest.raises(InvalidOption, match=LIMIT):
            tensor_limit_bytes()
