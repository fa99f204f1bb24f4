"""What ONNX Runtime's optimizer made becomes the same file in every process."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from qcompile.engines.onnx_runtime.runner import put_in_order

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, bool b) => (float[n] y, float[n] z)'
WEIGHT = "<float[1] reorder_token_0 = {2}>"
BEFORE = f"{HEAD} {{ [word_token_1] word_token_5 = Abs (x) y = Neg (x) z = Neg (x) }}"
NODES = """
[{n0}] {t0} = Mul (x, reorder_token_0)
[word_token_1] word_token_5 = Abs (x)
[{n1}] {t1} = Exp ({t0})
[pick] c = If (b) <
    then_branch = yes () => (float[n] t) {{ t = Add (word_token_5, x) }},
    else_branch = no () => (float[n] e) {{ e = Neg (x) }}
>
[{n2}] {t2} = Sigmoid ({t0})
[y] y = Add (c, {t1})
[z] z = Mul ({t2}, {t1})
"""


def as_process(seed: int) -> onnx.ModelProto:
    """The same graph as one process has it: numbers, and an order of the nodes, of its own."""
    chance = random.Random(seed)
    numbers = chance.sample(range(1, 100), 4)
    names = {}
    for letter, kind, two in (("n", "Reorder", numbers[:2]), ("t", "reorder", numbers[2:])):
        spelled = [kind, *(f"{kind}_token_{number}" for number in two)]
        chance.shuffle(spelled)
        names |= {f"{letter}{index}": name for index, name in enumerate(spelled)}
    model = parser.parse_model(f"{HEAD} {WEIGHT} {{ {NODES.format(**names)} }}")
    waiting, known = list(model.graph.node), {"x", "b", "reorder_token_0"}
    del model.graph.node[:]
    while waiting:
        ready = [
            node for node in waiting if {*node.input, *(["word_token_5"] * (node.name == "pick"))} <= known
        ]
        node = chance.choice(ready)
        waiting.remove(node)
        known |= {*node.output}
        model.graph.node.append(node)
    return model


def test_every_order_and_numbering_becomes_one_that_computes_the_same() -> None:
    before, files = parser.parse_model(BEFORE), set[bytes]()
    feeds = {"x": np.array([-1, 0.5], np.float32), "b": np.array(True)}
    outputs = []
    for seed in range(20):
        model = as_process(seed)
        assert put_in_order(model, before)
        onnx.checker.check_model(model)
        files.add(model.SerializeToString())
        outputs.append(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds))
    assert len(files) == 1
    expected = onnxruntime.InferenceSession(as_process(0).SerializeToString()).run(None, feeds)
    for found in outputs:
        np.testing.assert_array_equal(found, expected)
    names = {name for node in onnx.load_from_string(files.pop()).graph.node for name in node.output}
    assert "word_token_5" in names


def test_a_graph_without_numbers_stays_as_it_is() -> None:
    model = parser.parse_model(BEFORE)
    content = model.SerializeToString()
    assert not put_in_order(model, model)
    assert model.SerializeToString() == content


@pytest.mark.parametrize("name", ["shufflenet"])
def test_two_processes_build_one_file(light_models: dict[str, Path], tmp_path: Path, name: str) -> None:
    for number in (1, 2):
        words = [
            "build",
            light_models[name],
            "--target",
            "onnxruntime",
            "-o",
            tmp_path / f"{number}.onnx",
            "-q",
        ]
        subprocess.run([sys.executable, "-m", "qcompile", *map(str, words)], check=True)
    assert (tmp_path / "1.onnx").read_bytes() == (tmp_path / "2.onnx").read_bytes()
