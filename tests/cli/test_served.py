"""`kserve:URL` on the command line: `diff` and `bench` take it, and nothing else."""

from __future__ import annotations

from pathlib import Path

from commands import MakePath, Qc
from kserve_server import serving


def test_what_a_server_holds_is_compared_and_measured_and_nothing_else(
    qc: Qc, tiny_file: MakePath, tmp_path: Path
) -> None:
    model = tiny_file("mlp")
    with serving(model, batch=2, extensions=("model_configuration",)) as (_, url):
        assert qc("diff", model, f"kserve:{url}", "--atol", 0).code == 0
    for words in (["diff", model, f"kserve:{url}"], ["bench", f"kserve:{url}", "--baseline", model]):
        gone = qc(*words)
        assert gone.code == 1
        assert "refuses the connection" in gone.err
        assert "start the server" in gone.err
    for words in (["export"], ["build", "--target", "onnxruntime"], ["simplify"], ["quantize"]):
        refused = qc(words[0], f"kserve:{url}", *words[1:], "-o", tmp_path / "x.onnx")
        assert refused.code == 2
        assert "bench and" in refused.err.replace("`", "").replace("qcompile ", "")
    layers = qc("diff", model, f"kserve:{url}", "--layers")
    assert layers.code == 2
    assert "its layers cannot be looked at" in layers.err
