"""Networks as people write them by hand: text, sound and series."""

from __future__ import annotations

import torch
from architecture import Input, integers, normal, padded_mask, smooth
from hand_written import case
from torch import Tensor, nn
from torch.nn import functional

_TOKENS = Input("tokens", ("batch", "length"), integers(100, least=1))
_SERIES = Input("series", ("batch", 4, "time"), normal)


class TextRecognizer(nn.Module):
    """CRNN (Shi et al. 2016): convolutions, a bidirectional LSTM, log-probabilities for CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, 1, 1),
            nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d((2, 1)), nn.Conv2d(32, 32, (4, 1), (4, 1)), nn.ReLU(),
        )  # fmt: skip
        self.lstm, self.out = nn.LSTM(64, 32, batch_first=True, bidirectional=True), nn.Linear(64, 20)

    def forward(self, image: Tensor) -> Tensor:
        """Take float32 [n, 1, 32, w], return log-probabilities [n, w/2, 20]."""
        x = self.features(image).permute(0, 3, 1, 2).flatten(2)
        return functional.log_softmax(self.out(self.lstm(x)[0]), -1)


class Seq2SeqEncoder(nn.Module):
    """The encoder of Bahdanau et al. 2015: a bidirectional GRU of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.gru = nn.GRU(32, 32, 2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(64, 32)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Take int64 [n, length], return states [n, length, 64] and the decoder's first state [n, 32]."""
        states, last = self.gru(self.embedding(tokens))
        return states, self.bridge(torch.cat([last[-2], last[-1]], -1)).tanh()


class AttentionDecoder(nn.Module):
    """One step of Bahdanau's decoder: attention over states, a GRU cell."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(100, 32), nn.GRUCell(96, 32)
        self.key, self.query, self.score = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.out = nn.Linear(32, 100)

    def forward(self, token: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Take int64 [n], float32 [n, 32], [n, length, 64]; return logits [n, 100] and the state [n, 32]."""
        scores = self.score((self.key(memory) + self.query(state)[:, None]).tanh())
        context = (scores.softmax(1) * memory).sum(1)
        state = self.cell(torch.cat([self.embedding(token), context], -1), state)
        return self.out(state), state


class Lstm(nn.Module):
    """A classifier of texts on the mean of an LSTM's states."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(100, 32), nn.LSTM(32, 64, 2, batch_first=True)
        self.head = nn.Linear(64, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        """Take int64 [n, length], return class logits [n, 4]."""
        return self.head(self.lstm(self.embedding(tokens))[0].mean(1))


class WordBag(nn.Module):
    """fastText: the mean of embeddings, by EmbeddingBag."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(100, 32, mode="mean"), nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        """Take int64 [n, 16], return class logits [n, 4]."""
        return self.head(self.bag(tokens))


class TextCnn(nn.Module):
    """Kim 2014: convolutions of three widths over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.convs = nn.ModuleList(nn.Conv1d(32, 16, width) for width in (3, 4, 5))
        self.head = nn.Linear(48, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        """Take int64 [n, length], return class logits [n, 4]."""
        x = self.embedding(tokens).transpose(1, 2)
        return self.head(torch.cat([part(x).relu().amax(-1) for part in self.convs], -1))


class WaveNet(nn.Module):
    """van den Oord et al. 2016: dilated causal convolutions, gates, residuals and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(4, 16, 1)
        self.gates = nn.ModuleList(nn.Conv1d(16, 32, 2, dilation=2**level) for level in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(4))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(16, 16, 1), nn.ReLU(), nn.Conv1d(16, 32, 1))

    def forward(self, series: Tensor) -> Tensor:
        """Take float32 [n, 4, time], return logits of the next value [n, 32, time]."""
        x, total = self.enter(series), 0.0
        for level, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            left, right = gate(functional.pad(x, (2**level, 0))).chunk(2, 1)
            found = skip(left.tanh() * right.sigmoid())
            x, total = x + found, total + found
        return self.out(total)


class Tcn(nn.Module):
    """Bai et al. 2018: residual blocks of weight-normalized causal convolutions."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first = nn.ModuleList(
            norm(nn.Conv1d(4 if n == 0 else 16, 16, 3, dilation=2**n)) for n in range(3)
        )
        self.shortcut, self.head = nn.Conv1d(4, 16, 1), nn.Linear(16, 5)

    def forward(self, series: Tensor) -> Tensor:
        """Take float32 [n, 4, time], return class logits [n, 5]."""
        x = series
        for level, part in enumerate(self.first):
            found = part(functional.pad(x, (2 * 2**level, 0))).relu()
            x = found + (self.shortcut(x) if level == 0 else x)
        return self.head(x[..., -1])


class Transformer(nn.Module):
    """`nn.TransformerEncoder` with a padding mask and learned positions."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.embedding, self.positions = nn.Embedding(100, 32), nn.Parameter(torch.randn(64, 32) * 0.1)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 4)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Take int64 [n, length] twice, return class logits [n, 4]."""
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        x = self.encoder(x, src_key_padding_mask=mask == 0)
        return self.head((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


class Forecaster(nn.Module):
    """N-BEATS (Oreshkin et al. 2020): stacks that subtract what they explain."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 40))
            for _ in range(3)
        )

    def forward(self, past: Tensor) -> Tensor:
        """Take float32 [n, 32], return the next 8 values [n, 8]."""
        forecast = torch.zeros_like(past[:, :8])
        for stack in self.stacks:
            backcast, future = stack(past).split([32, 8], -1)
            past, forecast = past - backcast, forecast + future
        return forecast


class Denoiser(nn.Module):
    """A diffusion model's network: an embedded time step modulates convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.enter, self.norm, self.middle = (
            nn.Conv2d(3, 32, 3, 1, 1),
            nn.GroupNorm(4, 32),
            nn.Conv2d(32, 32, 3, 1, 1),
        )
        self.out = nn.Conv2d(32, 3, 3, 1, 1)
        self.register_buffer("bands", torch.exp(-torch.arange(8.0)))

    def forward(self, image: Tensor, step: Tensor) -> Tensor:
        """Take float32 [n, 3, 16, 16] and int64 steps [n], return the noise [n, 3, 16, 16]."""
        angles = step[:, None].to(image.dtype) * self.bands
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.enter(image)
        return self.out(x + self.middle(functional.silu(self.norm(x) + time[:, :, None, None])))


class KeywordSpotter(nn.Module):
    """A keyword spotter on sound itself: a spectrogram by convolution, depthwise separable layers, a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.spectrum = nn.Conv1d(1, 32, 64, 32)
        self.depth, self.point = nn.Conv1d(32, 32, 5, padding=2, groups=32), nn.Conv1d(32, 32, 1)
        self.gru, self.head = nn.GRU(32, 32, batch_first=True), nn.Linear(32, 6)

    def forward(self, sound: Tensor) -> Tensor:
        """Take float32 [n, 1, time], return class logits [n, 6]."""
        x = self.spectrum(sound).abs().log1p()
        x = self.point(self.depth(x).relu()).relu()
        return self.head(self.gru(x.transpose(1, 2))[1][-1])


ARCHITECTURES = (
    case("crnn_ctc", "text recognition", TextRecognizer, Input("image", ("batch", 1, 32, "width"), smooth)),
    case("seq2seq_encoder", "encoder", Seq2SeqEncoder, _TOKENS),
    case("attention_decoder", "text generation", AttentionDecoder, Input("token", ("batch",), integers(100)),
          Input("state", ("batch", 32), normal), Input("memory", ("batch", "length", 64), normal)),
    case("lstm", "classifier", Lstm, _TOKENS),
    case("embedding_bag", "classifier", WordBag, Input("tokens", ("batch", 16), integers(100))),
    case("text_cnn", "classifier", TextCnn, _TOKENS),
    case("wavenet", "audio generation", WaveNet, _SERIES),
    case("tcn", "classifier", Tcn, _SERIES),
    case("transformer_encoder", "classifier", Transformer, _TOKENS,
          Input("mask", ("batch", "length"), padded_mask)),
    case("nbeats", "forecasting", Forecaster, Input("past", ("batch", 32), normal)),
    case("denoiser", "image generation", Denoiser, Input("image", ("batch", 3, 16, 16), normal),
          Input("step", ("batch",), integers(1000))),
    case("keyword_spotter", "classifier", KeywordSpotter, Input("sound", ("batch", 1, "time"), normal),
          axes={"time": (1024, 2048, 4096)}),
)  # fmt: skip
