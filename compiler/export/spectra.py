"""The inverse transform of spectra as a transform of frames and one fold, at any number of frames.

spectra [B, M, T] ─ irfft ─ x window ─ fold ─┐
                            window ** 2 ─ fold ─┴─ Div ─ [B, length]

PyTorch captures `torch.istft` as one write for each point of a frame, and as a fixed length where one is
asked for (2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def inverse_form(torch: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.istft` of real signals in this form; spectra of complex ones are `original`'s."""

    def istft(
        input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
        window: Any = None, center: bool = True, normalized: bool = False, onesided: bool | None = None,
        length: Any = None, return_complex: bool = False,
    ) -> Any:  # fmt: skip
        if return_complex or onesided is False or input.shape[-2] != n_fft // 2 + 1:
            return original(
                input, n_fft, hop_length, win_length, window, center, normalized, onesided, length,
                return_complex,
            )  # fmt: skip
        hop, width = hop_length or n_fft // 4, win_length or n_fft
        spectra = input if input.dim() == 3 else input.unsqueeze(0)
        norm = "ortho" if normalized else "backward"
        frames = torch.fft.irfft(spectra.transpose(1, 2), n=n_fft, norm=norm)
        if window is None:
            window = torch.ones(width, dtype=frames.dtype, device=frames.device)
        before = (n_fft - width) // 2
        window = torch.nn.functional.pad(window, (before, n_fft - width - before))
        total = n_fft + hop * (frames.shape[1] - 1)

        def overlapped(blocks: Any) -> Any:  # [B, T, n_fft] to [B, total]
            options = {"output_size": (1, total), "kernel_size": (1, n_fft), "stride": (1, hop)}
            return torch.nn.functional.fold(blocks.transpose(1, 2), **options)[:, 0, 0]

        squares = (window * window).expand(1, frames.shape[1], n_fft)
        signal, weight = overlapped(frames * window), overlapped(squares)
        start = n_fft // 2 if center else 0
        if length is None:
            signal, weight = (value[:, start : total - start] for value in (signal, weight))
        else:  # what no frame reaches is 0
            signal = torch.nn.functional.pad(signal, (0, length))[:, start : start + length]
            weight = torch.nn.functional.pad(weight, (0, length), value=1.0)[:, start : start + length]
        output = signal / weight
        return output if input.dim() == 3 else output.squeeze(0)

    return istft
