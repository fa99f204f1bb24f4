"""`build --strict`, `--allow-fallback` and `-v`: what a user is told of layers that missed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mode_models import normal, static, written

from qcompile.cli import main

BODY = """(float[n,4,8,8] x) => (float[n,2,8,8] y) {
    [small] a = Conv(x, u) b = Relu(a) [large] y = Conv<pads = [1,1,1,1]>(b, v) }"""


@pytest.fixture
def build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`build("--strict")` builds a graph for OpenVINO: exit code, and what was said on both streams."""
    model = written(tmp_path / "m.onnx", BODY, u=normal(4, 4, 1, 1), v=normal(2, 4, 3, 3))
    np.savez(tmp_path / "x.npz", x=normal(16, 4, 8, 8))
    static(model, tmp_path, target="openvino")

    def call(*options: str) -> tuple[int, str]:
        given = ["build", str(tmp_path / "q.onnx"), "--precision", "int8", "--target", "openvino"]
        with pytest.raises(SystemExit) as done:
            main([*given, "-o", str(tmp_path / "b.onnx"), *options])
        said = capsys.readouterr()
        assert isinstance(done.value.code, int | None)
        return done.value.code or 0, said.out + said.err

    return call


@pytest.fixture
def missed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`missed("small")` lets OpenVINO say that it computes these nodes in float32."""
    from qcompile.engines.openvino import engine

    honest = engine.computed_by

    def change(*names: str) -> None:
        told = {name: engine.Computed("fp32", "for a test") for name in names}
        monkeypatch.setattr(engine, "computed_by", lambda *given: {**honest(*given), **told})

    return change


Build = Callable[..., tuple[int, str]]
LARGE, SMALL = 4 * 2 * 9, 4 * 4


def test_a_large_layer_that_missed_fails_unless_a_fallback_is_allowed(
    build: Build, missed: Callable[..., None]
) -> None:
    pytest.importorskip("openvino")
    missed("large")
    code, said = build()
    assert code == 1
    assert f"{LARGE / (LARGE + SMALL):.1%} of the planned multiply-adds missed it: large" in said
    code, said = build("--allow-fallback", "-v")
    assert code == 0
    assert "proof: 1 of 2 layers that compute are int8" in said
    assert f"missed: large: {LARGE / (LARGE + SMALL):.1%}: for a test" in said
    assert "warning: int8 was asked for; 1 of 2 layers" in said


def test_one_layer_is_fatal_with_strict_alone(
    build: Build, missed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr("qcompile.engines.build.ALLOWED_SHARE", 0.5)
    missed("small")
    assert build()[0] == 0
    code, said = build("--strict")
    assert (code, "missed it: small (" in said) == (1, True)
