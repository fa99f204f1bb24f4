"""What a Keras file would run when it is loaded, read from its configuration alone."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.model.tensorflow.keras_config import foreign_parts, read_keras_config, refusal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def layer(kind: str, name: str, module: str = "keras.layers", **more: Any) -> dict[str, Any]:
    return {"module": module, "class_name": kind, "config": {"name": name, **more}, "registered_name": None}


def model(*layers: dict[str, Any]) -> dict[str, Any]:
    """As Keras 3 writes a model: layers, each in its own configuration, deep in the tree."""
    return {"module": "keras", "class_name": "Functional", "config": {"name": "m", "layers": list(layers)}}


def test_a_model_of_keras_own_layers_is_data() -> None:
    relu = {"module": "builtins", "class_name": "function", "config": "relu", "registered_name": "function"}
    assert foreign_parts(model(layer("Dense", "d", activation=relu), layer("Conv2D", "c"))) == []


@pytest.mark.parametrize("kind", ["Lambda", "TorchModuleWrapper", "TFSMLayer", "JaxLayer"])
def test_a_layer_that_holds_code_is_refused_unless_it_is_trusted(kind: str) -> None:
    config = model(layer("Dense", "d"), layer(kind, "mine"))
    refused = refusal("m.keras", config, trust=False)
    assert refused is not None
    assert refused[0] == f"m.keras: layer 'mine' ({kind}) holds Python code, which loading would run"
    assert "`trust`" in refused[1]
    assert refusal("m.keras", config, trust=True) is None


def test_bytecode_inside_another_layer_is_found() -> None:
    code = {"class_name": "__lambda__", "config": {"code": "4wE="}}
    (part,) = foreign_parts(model(layer("Dense", "d", activation=code)))
    assert (part.what, part.runs) == ("Lambda", True)


@pytest.mark.parametrize(
    "foreign",
    [
        layer("Popen", "p", module="subprocess"),
        layer("Swish", "s", module="my_package.layers"),
        {**layer("Swish", "s"), "registered_name": "Custom>Swish"},
        {"class_name": "Custom>Swish", "config": {"name": "s"}},
    ],
)
def test_a_class_of_elsewhere_is_refused_even_where_it_is_trusted(foreign: dict[str, Any]) -> None:
    refused = refusal("m.keras", model(foreign), trust=True)
    assert refused is not None
    assert "whose code is not in the file" in refused[0]


@pytest.mark.parametrize("module", ["keras.utils", "keras.saving", "os", "keras.opsx"])
def test_a_function_that_does_not_compute_is_refused(module: str) -> None:
    """`keras.utils.get_file` downloads and unpacks what its arguments say."""
    function = {
        "module": module,
        "class_name": "function",
        "config": "get_file",
        "registered_name": "function",
    }
    refused = refusal("m.keras", model(layer("Dense", "d", activation=function)), trust=False)
    assert refused is not None
    assert f"function {module}.get_file" in refused[0]
    function["module"] = "keras.ops"
    assert refusal("m.keras", model(layer("Dense", "d", activation=function)), trust=False) is None


def test_a_configuration_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = {}
    for _ in range(500):
        deep = [deep]
    assert refusal("m.keras", deep, trust=False) is not None


@given(JSON)
def test_any_json_is_read(config: Any) -> None:
    assert isinstance(foreign_parts(config), list)


@given(JSON, st.integers(0, 2))
def test_a_lambda_is_found_wherever_it_lies(around: Any, place: int) -> None:
    inner = layer("Lambda", "mine")
    held = [{"a": around, "b": [inner]}, [around, inner], {"config": {"layers": [around, inner]}}][place]
    assert any(part.layer == "mine" and part.runs for part in foreign_parts(held))


def test_the_configuration_of_a_keras_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(model()))
    assert read_keras_config(str(path)) == model()


def test_what_is_no_keras_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    path.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ValueError, match="no zip archive"):
        read_keras_config(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.bin", b"")
    with pytest.raises(ValueError, match=r"config\.json"):
        read_keras_config(str(path))
