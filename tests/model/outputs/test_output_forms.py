"""Parts of outputs: heads of detectors written as exporters write them, and the decibels of each group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from written_models import model_of, outputs_of

import qcompile
from qcompile.errors import InvalidOption, QuantizationError
from qcompile.model.graph.onnx_file import read_graph
from qcompile.model.outputs.judgement import judge_outputs
from qcompile.model.outputs.output_forms import OutputForm, Parts, output_forms


def conv(channels: int) -> nn.Module:
    return nn.Conv2d(8, channels, 1)


class Anchorless(nn.Module):
    """As YOLOv8: boxes and scores by sigmoid, joined along channels, scales along positions."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = nn.ModuleList([conv(4), conv(4)]), nn.ModuleList([conv(3), conv(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = [x, x[:, :, ::2, ::2]]
        joined = [
            torch.cat([b(m), s(m)], 1).flatten(2)
            for b, s, m in zip(self.boxes, self.scores, maps, strict=True)
        ]
        boxes, scores = torch.cat(joined, 2).split((4, 3), 1)
        left, right = boxes.chunk(2, 1)
        centres = torch.cat([(left + right) / 2, right - left], 1) * 8.0
        return torch.cat([centres, scores.sigmoid()], 1)


class Anchored(nn.Module):
    """As YOLOv5: one product for all anchors; slices of it are decoded and joined again, for each scale."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([conv(14), conv(14)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales = []
        for head, found in zip(self.heads, [x, x[:, :, ::2, ::2]], strict=True):
            y = head(found)
            b, _, h, w = y.shape
            y = y.view(b, 2, 7, h, w).permute(0, 1, 3, 4, 2).sigmoid()
            xy, wh, rest = y.split((2, 2, 3), 4)
            y = torch.cat([(xy * 2 - 0.5) * 8.0, (wh * 2) ** 2 * 16.0, rest], 4)
            scales.append(y.view(b, 2 * h * w, 7))
        return torch.cat(scales, 1)


class Boxes(nn.Module):
    """As SSD: boxes of every scale alone."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([conv(8), conv(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [
            head(m).permute(0, 2, 3, 1).flatten(1).view(m.shape[0], -1, 4)
            for head, m in zip(self.heads, [x, x[:, :, ::2, ::2]], strict=True)
        ]
        return torch.cat(found, 1)


class Tokens(nn.Module):
    """As ViT: a class token in front of the patches; both go the same way."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.last = nn.Parameter(torch.zeros(1, 1, 8)), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = x.flatten(2).transpose(1, 2)
        return self.last(torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1))


@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize(
    ("make", "axis", "ends"),
    [(Anchorless, 1, [4, 7]), (Anchored, 2, [4, 7]), (Boxes, None, None), (Tokens, None, None)],
)
def test_parts_of_heads_as_the_exporter_writes_them(
    make: Callable[[], nn.Module], axis: int | None, ends: list[int] | None, *, simplified: bool,
    tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / "m.onnx"
    torch.manual_seed(0)
    qcompile.export(make().eval(), path, inputs=["x:[batch,8,8,8]"])
    if simplified:
        qcompile.simplify(path, path.with_name("s.onnx"))
        path = path.with_name("s.onnx")
    (form,) = output_forms(read_graph(path).model).values()
    if ends is None:
        assert form.parts is None
    else:
        assert form.parts is not None
        assert form.parts.axis == axis
        assert set(ends) <= set(form.parts.ends)  # of xy and wh, too


def test_what_is_joined_along_channels_has_parts_though_both_heads_are_alike() -> None:
    """Two Conv of as many channels: along their channels they are two heads, along positions one."""
    for axis, ends in ((1, (4, 8)), (2, None)):
        model = model_of(
            f"""(float[N, 8, 4, 4] x) => (float[N, a, b, c] y) <float[4, 8, 1, 1] v, float[4, 8, 1, 1] w>
            {{ p = Conv(x, v)  q = Conv(x, w)  y = Concat<axis = {axis}>(p, q) }}"""
        )
        parts = output_forms(model)["y"].parts
        assert (parts.ends if parts else None) == ends


@pytest.mark.parametrize(
    ("body", "shape", "is_free"),
    [
        ("y = Gemm(x, w)", "N, K", False),  # declared by a name, and inferred
        ("z = Transpose(x) y = Identity(z)", "a, b", True),
        ("y = ReduceMean<axes = [1], keepdims = 0>(x)", "a", False),  # one axis
    ],
)
def test_a_last_axis_of_any_extent_is_free(body: str, shape: str, *, is_free: bool) -> None:
    model = model_of(f"(float[N, 8] x) => (float[{shape}] y) <float[8, 5] w> {{ {body} }}")
    assert output_forms(model)["y"].has_dynamic_last_axis is is_free


def boxes_and_scores(noise: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """float32 [4, 6, 50]: four channels of some 300 pixels, two of scores; noise on the scores alone."""
    generator = np.random.default_rng(0)
    boxes = generator.uniform(0, 600, (4, 4, 50))
    scores = generator.uniform(0, 1, (4, 2, 50))
    wrong = scores + noise * generator.standard_normal(scores.shape)
    return (
        np.concatenate([boxes, scores], 1).astype(np.float32),
        np.concatenate([boxes + 0.5, wrong], 1).astype(np.float32),
    )


FORM = {"y": OutputForm(parts=Parts(1, (2, 4, 6), ("Add", "Mul", "Sigmoid")))}


def test_scores_beside_pixels_are_judged_by_themselves() -> None:
    reference, output = boxes_and_scores(noise=0.5)
    (whole,) = judge_outputs({"y": [reference]}, {"y": [output]})
    assert whole.passed
    assert whole.snr_db > 50  # of boxes, which are right
    (found,) = judge_outputs({"y": [reference]}, {"y": [output]}, FORM)
    noise, signal = ((output - reference)[:, 4:] ** 2).sum(), (reference[:, 4:] ** 2).sum()
    assert found.snr_db == pytest.approx(10 * np.log10(signal / noise), abs=0.01)
    assert not found.passed
    assert "signal: SNR ≥ 15 dB in each group of channels (Add, Mul: 5" in found.criterion
    assert f"Sigmoid: {found.snr_db:.1f} dB)" in found.criterion


def test_scores_that_find_nothing_are_left_out() -> None:
    reference, output = boxes_and_scores(noise=0.5)
    reference[:, 4:] *= 0.009
    output[:, 4:] *= 0.009
    (found,) = judge_outputs({"y": [reference]}, {"y": [output]}, FORM)
    assert found.passed
    assert "group" not in found.criterion


def test_parts_of_like_magnitude_are_one_group_in_all_batches_together() -> None:
    reference, output = boxes_and_scores(noise=0.0)
    output[:, 2:4] += 90.0
    halves = [side[:2] for side in (reference, output)], [side[2:] for side in (reference, output)]
    (found,) = judge_outputs({"y": [half[0] for half in halves]}, {"y": [half[1] for half in halves]}, FORM)
    boxes = slice(None), slice(0, 4)
    noise = ((output - reference)[boxes] ** 2).sum()
    assert found.snr_db == pytest.approx(10 * np.log10((reference[boxes] ** 2).sum() / noise), abs=0.01)


def test_as_many_columns_as_the_input_has_frames_are_no_classes() -> None:
    """Two batches of other lengths, and one whose graph says so."""
    generator = np.random.default_rng(0)
    batches = [generator.standard_normal((1, frames)).astype(np.float32) for frames in (90, 120)]
    for batch in batches:
        batch[0, [3, 7]] = 4.0, 3.99
    noisy = [batch.copy() for batch in batches]
    for other in noisy:
        other[0, 7] = 4.01  # another frame is the largest
    assert judge_outputs({"y": batches}, {"y": noisy})[0].passed
    (found,) = judge_outputs(
        {"y": batches[:1]}, {"y": noisy[:1]}, {"y": OutputForm(has_dynamic_last_axis=True)}
    )
    assert (found.passed, found.agreement) == (True, None)
    assert judge_outputs({"y": batches[:1]}, {"y": noisy[:1]})[0].agreement == 0.0


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a float model whose output joins boxes and scores, ranges and samples, random weights."""
    folder = tmp_path_factory.mktemp("detector")
    generator = np.random.default_rng(0)
    samples = generator.standard_normal((32, 8, 6, 6)).astype(np.float32)
    np.savez(folder / "d.npz", x=samples)
    model = model_of(
        """(float[N, 8, 6, 6] x) => (float[N, 7, 6, 6] y)
        <float[32, 8, 3, 3] u, float[4, 32, 1, 1] v, float[3, 32, 1, 1] w, float hundred = {100}>
        { h = Conv<pads = [1, 1, 1, 1]>(x, u)  r = Relu(h)  p = Conv(r, v)  b = Mul(p, hundred)
          q = Conv(r, w)  s = Sigmoid(q)  y = Concat<axis = 1>(b, s) }""",
        named=True,
    )
    onnx.save(model, folder / "m.onnx")
    qcompile.calibrate(folder / "m.onnx", str(folder / "d.npz"), folder / "m.ranges")
    return folder


def test_quantize_and_diff_tell_the_decibels_of_the_worst_group(detector: Path) -> None:
    data = str(detector / "d.npz")
    made = qcompile.quantize(
        detector / "m.onnx", detector / "q.onnx", ranges=detector / "m.ranges", data=data, target="openvino"
    )
    sides = [outputs_of(detector / name, {"x": np.load(data)["x"]})[0] for name in ("m.onnx", "q.onnx")]
    by_head = [
        10 * np.log10((sides[0][:, part] ** 2).sum() / ((sides[0] - sides[1])[:, part] ** 2).sum())
        for part in (slice(0, 4), slice(4, 7))
    ]
    compared = qcompile.diff(str(detector / "m.onnx"), str(detector / "q.onnx"), data=data, samples=32)
    (output,) = compared.outputs
    assert output.snr_db == pytest.approx(min(by_head), abs=0.3)  # another optimizer computes it
    assert f"Mul: {output.snr_db:.1f} dB" in output.criterion or "Sigmoid: " in output.criterion
    tried = made.manifest.proof["search"]
    assert isinstance(tried, list)
    assert abs(by_head[0] - by_head[1]) > 1.0  # or this tells nothing
    assert max(one.get("snr_db", 0.0) for one in tried) == pytest.approx(min(by_head), abs=1.5)


def test_what_was_said_of_an_output_is_asked_of_it_by_every_verb(tmp_path: Path) -> None:
    """One row after the other differs in its largest value alone: classes fail, a signal passes."""
    generator = np.random.default_rng(1)
    rows = generator.standard_normal((64, 16)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=rows)
    # The two largest values of a row differ by less than int8 weights do.
    weight = 0.01 * generator.standard_normal((16, 16)).astype(np.float32)
    weight[:, 0] *= 100
    weight[:, 1] = weight[:, 0] + 0.0005 * generator.standard_normal(16).astype(np.float32)
    model = model_of("(float[N, 16] x) => (float[N, 16] y) { y = MatMul(x, w) }", named=True, w=weight)
    onnx.save(model, tmp_path / "m.onnx")
    data, ranges = str(tmp_path / "d.npz"), tmp_path / "m.ranges"
    qcompile.calibrate(tmp_path / "m.onnx", data, ranges)
    options: dict[str, Any] = {"ranges": ranges, "data": data, "search": False, "correct_bias": False}
    with pytest.raises(QuantizationError, match="same argmax in"):
        qcompile.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", **options)
    qcompile.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", rules=["signal"], **options)
    assert qcompile.diff(
        str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx"), data=data
    )  # the manifest says it
    assert not qcompile.diff(
        str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx"), data=data, rules=["y:classes"]
    )
    built = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "b.onnx", target="openvino", precision="int8", ranges=ranges,
        data=data, rules=["y:signal"],
    )  # fmt: skip
    assert built.manifest.options["rules"] == ["y:signal"]


def test_a_rule_for_an_output_that_is_none_is_refused() -> None:
    model = model_of("(float[N, 8] x) => (float[N, 8] y) { y = Relu(x) }")
    assert output_forms(model, ["y:signal"])["y"].rule == "signal"
    assert output_forms(model, ["labels"])["y"].rule == "labels"
    with pytest.raises(InvalidOption, match="rule for 'z': no such output; the outputs are y"):
        output_forms(model, ["z:signal"])
    with pytest.raises(InvalidOption, match="classes, embedding, labels, signal, or OUTPUT:RULE"):
        output_forms(model, ["y:boxes"])
