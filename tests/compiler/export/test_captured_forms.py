"""Attention with masks and experts of a router are captured in forms that ONNX has."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from exported_models import export_alike
from torch import Tensor, nn
from written_models import normal, run_file

from qcompile.compiler.export import export
from qcompile.compiler.export.captured_forms import captured_forms
from qcompile.errors import ExportError
from qcompile.model.sources.named.description import declare_torchvision_operators

WIDTH = 8


def encoder(*, norm: nn.Module | None = None) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 1, norm=norm).eval()


class Causal(nn.Module):
    """A mask of the length, that the encoder is not told to be causal."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(x.size(1)))


class Masked(nn.Module):
    """A mask that is an input: floats, of which those above the diagonal that are not 0 hide a token."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = torch.triu(mask, 1) != 0
        return self.encoder(x, mask=torch.zeros_like(mask).masked_fill(hidden, -torch.inf))


class Translated(nn.Module):
    """Encoder and decoder, of which the decoder takes a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 16, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = self.transformer.generate_square_subsequent_mask(target.size(1))
        return self.transformer(source, target, tgt_mask=mask)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Causal(), ["x:[batch,length=6,8]"]),
        (Masked(), ["x:[batch,length=6,8]", "mask:[length=6,length=6]"]),
        (Translated(), ["source:[batch,from=6,8]", "target:[batch,length=5,8]"]),
    ],
    ids=["made", "input", "decoder"],
)
def test_a_transformer_with_a_causal_mask_takes_every_length(
    module: nn.Module, inputs: list[str], tmp_path: Path
) -> None:
    samples = []
    for batch, length in ((1, 1), (3, 4), (2, 11)):
        feeds = {text.partition(":")[0]: normal(batch, length, WIDTH, seed=length) for text in inputs}
        if "mask" in feeds:
            feeds["mask"] = np.ones((length, length), np.float32)
        samples.append(feeds)
    export_alike(module, tmp_path, inputs, *samples, rtol=1e-4, atol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("norm", [None, nn.LayerNorm(WIDTH)], ids=["last", "norm"])
def test_padding_is_what_pytorch_computes_of_it_at_the_ends_and_elsewhere(
    norm: nn.Module | None, tmp_path: Path
) -> None:
    """Behind all sequences, its fast path writes zeros; before one of them, that path is not taken."""
    module = encoder(norm=norm)
    inputs = ["src:[batch,length=6,8]", "src_key_padding_mask:[batch,length=6]:bool"]
    samples = []
    for lengths, at_start in (((5, 2, 3), False), ((4, 1), True), ((1,), False)):
        padding = np.arange(5)[None] >= np.array(lengths)[:, None]
        padding = padding[:, ::-1].copy() if at_start else padding
        samples.append({"src": normal(len(lengths), 5, WIDTH), "src_key_padding_mask": padding})
    export_alike(module, tmp_path, inputs, *samples, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_experts_are_computed_for_every_token(family: str, tmp_path: Path) -> None:
    """GPT-OSS has biases and weights that are not transposed."""
    declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    module, config_type = {
        "mixtral": ("MixtralSparseMoeBlock", transformers.MixtralConfig),
        "gpt_oss": ("GptOssMLP", transformers.GptOssConfig),
    }[family]
    config = config_type(
        hidden_size=WIDTH, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2,
        num_hidden_layers=1, experts_implementation="grouped_mm",
    )  # fmt: skip
    modeling = __import__(f"transformers.models.{family}.modeling_{family}", fromlist=[module])
    torch.manual_seed(0)
    block = getattr(modeling, module)(config).eval()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    inputs, feeds = ["hidden_states:[batch,length=6,8]"], {"hidden_states": normal(3, 9, WIDTH)}
    artifact = export_alike(block, tmp_path, inputs, feeds, rtol=1e-4, atol=1e-5)
    assert "experts: all 4 are computed for every token" in artifact.manifest.warnings[0]


def test_a_module_that_imports_lazily_is_not_asked_for_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ImportError(f"{name} needs a package that is not installed")

    lazy = Lazy("lazy_here")
    monkeypatch.setitem(sys.modules, "lazy_here", lazy)
    with captured_forms():
        assert hasattr(lazy, "__file__")  # as `inspect` asks
    assert "__file__" not in vars(lazy)


def test_the_reason_of_the_newer_exporter_comes_first_where_the_older_ones_file_is_wrong(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = """\
import torch
from torch import nn
from torch.nn.utils import rnn


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


def build():
    return Packed(), (torch.ones(2, 6, 3), torch.tensor([6, 4]))
"""
    (tmp_path / "model.py").write_text(source)
    with pytest.raises(ExportError) as caught:
        export(f"{tmp_path}/model.py:build", tmp_path / "m.onnx", dynamic=["x:1=length"])
    first, _, second = caught.value.message.partition("; PyTorch's TorchScript-based exporter: ")
    assert first.endswith(
        "packed sequences (torch.nn.utils.rnn) have no ONNX form (model.py, line 13, in forward)"
    )
    assert "failed 'same outputs as PyTorch at length" in second
    assert "padded batch" in caught.value.hint
    assert capfd.readouterr() == ("", "")  # C++ warns of shapes that it does not infer


def test_attention_that_is_causal_for_more_than_one_token_is_captured(tmp_path: Path) -> None:
    """As openai-whisper calls it, by a name that it imported."""
    (tmp_path / "whisper_like.py").write_text(
        "from torch import nn\n"
        "from torch.nn.functional import scaled_dot_product_attention\n\n\n"
        "class Attention(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return scaled_dot_product_attention(x, x, x, is_causal=x.shape[2] > 1)\n\n\n"
        "def build():\n    return Attention()\n"
    )
    source = f"{tmp_path}/whisper_like.py:build"
    artifact = export(source, tmp_path / "m.onnx", inputs=["x:[batch,2,tokens=6,4]"])
    assert artifact.manifest.options["exporter"] == "dynamo"
    for tokens in (1, 2, 9):
        x = normal(3, 2, tokens, 4)
        tensor = torch.from_numpy(x)
        expected = nn.functional.scaled_dot_product_attention(tensor, tensor, tensor, is_causal=True)
        (found,) = run_file(artifact.path, x=x).values()
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


class WholePools(nn.Module):
    """As TextCNN and BiSeNet pool: the kernel is the input, of any extents."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        image = nn.functional.avg_pool2d(x, x.size()[2:])
        row = nn.functional.max_pool1d(x.flatten(2), x.shape[2] * x.shape[3])
        return image, row, nn.functional.avg_pool2d(x, 2, stride=1)


def test_pools_as_large_as_their_input_are_reductions(tmp_path: Path) -> None:
    export_alike(WholePools(), tmp_path, ["x:[batch,3,height=6,width=8]"], {"x": normal(2, 3, 9, 5)})
