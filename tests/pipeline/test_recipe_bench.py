"""`[bench]` of a recipe: every key is read, and a wrong value is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from qcompile.pipeline.bench_stages import measured_options
from qcompile.pipeline.recipe import read_recipe

RECIPE = """
version = 1
name = "net"
[model]
source = "net.py:build"
[[artifact]]
name = "cpu"
target = "onnxruntime"
[bench]
"""


def read(tmp_path: Path, bench: str) -> object:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE + bench)
    return read_recipe(path).bench


def test_the_defaults_are_those_of_the_command(tmp_path: Path) -> None:
    import inspect

    from qcompile.bench.benchmark import benchmark

    section = read(tmp_path, "")
    defaults = {name: item.default for name, item in inspect.signature(benchmark).parameters.items()}
    for name in (
        "precision_target",
        "max_time_s",
        "timeout_s",
        "metric",
        "batch_sizes",
        "clients",
        "streams",
        "cuda_graph",
        "layer_times",
    ):
        assert getattr(section, name) == defaults[name]


def test_curves_modes_and_interpreters_are_read(tmp_path: Path) -> None:
    section = read(
        tmp_path,
        "batch_sizes = [1, 8]\nclients = [1, 2]\nstreams = [1, 4]\ncuda_graph = true\n"
        'torch_modes = ["compile"]\n'
        'python = ["tensorrt=/opt/trt/bin/python"]\ntimeout_s = 30\ndevices = ["cpu", "cuda:1"]\n',
    )
    assert section.batch_sizes == (1, 8)  # type: ignore[attr-defined]
    assert section.streams == (1, 4)  # type: ignore[attr-defined]
    assert section.cuda_graph is True  # type: ignore[attr-defined]
    assert section.devices == ("cpu", "cuda:1")  # type: ignore[attr-defined]
    assert section.torch_modes == ("compile",)  # type: ignore[attr-defined]
    assert section.python == ("tensorrt=/opt/trt/bin/python",)  # type: ignore[attr-defined]


ENGINE = '[[artifact]]\nname = "engine"\ntarget = "tensorrt"\n'


@pytest.mark.parametrize(
    ("bench", "on_gpu", "graph", "times"),
    [
        ("", ["cpu"], False, None),
        ("", ["cpu", "engine"], None, None),
        ("cuda_graph = false\n", ["cpu", "engine"], False, None),
        ("cuda_graph = true\n", ["cpu"], True, None),
        ("layer_times = true\n", [], False, True),
    ],
)
def test_without_an_engine_keys_of_stages_are_those_of_0_2_0(
    tmp_path: Path, bench: str, on_gpu: list[str], graph: bool | None, times: bool | None
) -> None:
    """Its key held `cuda_graph` false and no `layer_times`: results of recipes for processors stay."""
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE + bench + ENGINE)
    options = measured_options(read_recipe(path), on_gpu)
    assert (options["cuda_graph"], options.get("layer_times")) == (graph, times)
