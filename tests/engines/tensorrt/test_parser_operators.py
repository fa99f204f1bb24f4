"""What each version's parser reads is data from its sources; what has none is unknown, or asked."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import onnx
import pytest
import tensorrt_rtx

from qcompile.engines.tensorrt.adapter import Adapter, load_adapter
from qcompile.engines.tensorrt.parser_operators import ask_parser, parser_of


@pytest.mark.parametrize(
    ("version", "opset"),
    [
        ("8.5.3.1", 16),  # its operators.md says 17, and N of LayerNormalization, which 17 brought
        ("8.6.1.6", 17),
        ("10.0.1.6", 20),
        ("10.1.0.27", 20),
        ("10.5.0.18", 20),
        ("10.6.0.26", 22),
        ("10.11.0.33", 23),
        ("10.14.1.48", 24),
        ("10.16.1.11", 24),
        ("11.1.0.106", 24),
    ],
)
def test_the_opset_is_that_of_the_versions_source(version: str, opset: int) -> None:
    found = parser_of(version)
    assert found is not None
    assert found.highest_opset == opset


@pytest.mark.parametrize(
    ("operator", "last_without", "first_with"),
    [
        ("LayerNormalization", "8.5.3", "8.6.1"),
        ("IsInf", "8.5.3", "8.6.1"),
        ("GroupNormalization", "8.5.3", "8.6.1"),
        ("Gelu", "8.6.1", "10.0.1"),
        ("CastLike", "8.6.1", "10.0.1"),
        ("TRT_INT4DequantizeLinear", "8.6.1", "10.0.1"),
        ("DeformConv", "10.0.1", "10.1.0"),
        ("HannWindow", "10.3.0", "10.4.0"),
        ("STFT", "10.4.0", "10.5.0"),
        ("TRT_MXFP8DynamicQuantize", "10.11.0", "10.12.0"),
        ("Attention", "10.13.3", "10.14.1"),
        ("RMSNormalization", "10.14.1", "10.15.1"),
        ("TensorScatter", "10.14.1", "10.15.1"),
        ("Swish", "10.16.1", "11.1.0"),
    ],
)
def test_an_operator_is_there_from_the_version_that_brought_it(
    operator: str, last_without: str, first_with: str
) -> None:
    before, after = parser_of(last_without), parser_of(first_with)
    assert before is not None
    assert after is not None
    assert operator not in before.operators
    assert operator in after.operators


def test_every_operator_of_the_data_is_onnxs_or_tensorrts() -> None:
    # Three are from before ONNX 1.0, which the parser still reads.
    old = {"ImageScaler", "ParametricSoftplus", "ScaledTanh"}
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""} | old
    found = parser_of("11.1.0")
    assert found is not None
    assert not {name for name in found.operators if not name.startswith("TRT_")} - known


@pytest.mark.parametrize("version", ["7.2", "8.4.3", "11.2.1", "11.4.0.106", "12.0", "dev"])
def test_a_version_without_a_source_is_unknown(version: str) -> None:
    assert parser_of(version) is None


def test_the_real_parser_of_rtx_is_asked() -> None:
    found = load_adapter("tensorrt-rtx").parser()
    assert found is not None
    assert {"LayerNormalization", "Attention", "Swish", "TRT_FP4DynamicQuantize"} <= found.operators
    assert not {"DeformConv", "Det", "Bernoulli", "Col2Im"} & found.operators
    newest = parser_of("11.1.0")
    assert newest is not None
    assert newest.operators - found.operators == {"DeformConv"}  # so the data is what a real parser says


def test_an_unknown_version_is_asked_where_it_can_be_and_else_unknown() -> None:
    adapter = Adapter(SimpleNamespace(__version__="11.4.0", __name__="tensorrt"), "tensorrt")
    assert ask_parser(adapter.module) is None
    names = ModuleType("tensorrt")
    for name in ("ILogger", "Builder", "OnnxParser"):
        setattr(names, name, getattr(tensorrt_rtx, name))
    found = ask_parser(names)
    assert found is not None
    assert "LayerNormalization" in found.operators
