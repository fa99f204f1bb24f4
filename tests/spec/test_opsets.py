"""The limits of opsets: each is what the installed packages say, and no other file holds one."""

from __future__ import annotations

import ast
from pathlib import Path

import onnx
import pytest

from qcompile.spec import opsets

ROOT = Path(__file__).parents[2]
TABLES = {
    "building/deploy/ep_context.py",  # of a file that any ONNX Runtime reads
    "engines/tensorrt/parser_operators.py",  # of TensorRT's versions
}
"""Files that name opsets of one operator or one reader."""


def first_with(operator: str, dtype: str) -> int:
    """The opset in which an operator takes or makes a type first."""
    return min(
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if (schema.name, schema.domain) == (operator, "")
        and any(f"tensor({dtype})" in value.types for value in (*schema.inputs, *schema.outputs))
    )


@pytest.mark.parametrize(
    ("operator", "dtype", "version"),
    [
        ("Cast", "bfloat16", opsets.BFLOAT16_CAST),
        ("QuantizeLinear", "float8e4m3fn", opsets.FLOAT8),
        ("QuantizeLinear", "float16", opsets.FLOAT8),
        ("QuantizeLinear", "int4", opsets.INT4),
        ("Conv", "bfloat16", opsets.BFLOAT16_LAYERS),
        ("MaxPool", "bfloat16", opsets.BFLOAT16_LAYERS),
    ],
)
def test_a_type_comes_with_the_opset_that_onnx_says(operator: str, dtype: str, version: int) -> None:
    assert first_with(operator, dtype) == version


def test_per_channel_pairs_and_axes_as_operands_come_with_the_oldest_opset() -> None:
    old, new = (onnx.defs.get_schema("QuantizeLinear", at, "") for at in (opsets.OLDEST - 1, opsets.OLDEST))
    assert "axis" in new.attributes
    assert "axis" not in old.attributes
    for name in ("ReduceSum", "Squeeze", "Unsqueeze"):
        assert onnx.defs.get_schema(name, opsets.OLDEST, "").since_version == opsets.OLDEST


def test_the_limits_are_in_order_and_within_those_of_onnx() -> None:
    exported = (opsets.OLDEST_BY_DYNAMO, opsets.DEFAULT, opsets.NEWEST_EXPORTED)
    assert sorted(exported) == [*exported]
    assert min(*exported, opsets.NEWEST_BY_TORCHSCRIPT, opsets.NEWEST_BY_TF2ONNX) >= opsets.OLDEST
    assert opsets.NEWEST_EXPORTED <= opsets.NEWEST <= onnx.defs.onnx_opset_version()


def test_the_limits_of_exporters_are_those_of_pytorch() -> None:
    from torch.onnx import _constants
    from torch.onnx._internal.exporter import _constants as of_dynamo

    assert opsets.NEWEST_EXPORTED == _constants.ONNX_MAX_OPSET
    assert opsets.NEWEST_BY_TORCHSCRIPT == _constants.ONNX_TORCHSCRIPT_EXPORTER_MAX_OPSET
    assert opsets.DEFAULT == _constants.ONNX_DEFAULT_OPSET
    assert opsets.OLDEST_BY_DYNAMO == of_dynamo.TORCHLIB_OPSET


def numbers_named_opset(path: Path) -> list[str]:
    """Assignments of a module that give an opset's number a name."""
    return [
        ast.unparse(node)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and "OPSET" in ast.unparse(node).upper().partition("=")[0]
        and any(isinstance(part, ast.Constant) and isinstance(part.value, int) for part in ast.walk(node))
    ]


def test_no_other_file_names_the_number_of_an_opset() -> None:
    apart = ("tests", "build")
    rooms = [
        path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name not in apart
    ]
    found = {
        str(path.relative_to(ROOT)): numbers
        for room in rooms
        for path in room.rglob("*.py")
        if (numbers := numbers_named_opset(path))
    }
    assert found.keys() <= TABLES
    assert numbers_named_opset(ROOT / "engines/tensorrt/parser_operators.py"), "the test sees some"
