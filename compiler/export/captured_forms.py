"""Replace functions without an ONNX form by equivalent ones while a model is captured.

1. Embedding bags become a lookup and a reduction (`bags`), and recurrent layers take any number of steps
   (`recurrent`).
2. Attention consists of plain operators, without the single operator of PyTorch's fast path. A mask is added
   as it is, because testing whether it is causal branches on its values. `torch.nn.TransformerEncoder` writes
   zeros for padding, as its fast path does. Whether a causal mask has more than one token becomes a guard.
3. Experts (transformers) are all computed for every token, and weighted by 0 if the router did not choose
   them. Their weights are constants of a MatMul; sorting the tokens by expert has no ONNX form.
4. `torch.istft` becomes a transform of its frames and one fold, for any number of frames:
   spectra [B, M, T] ─ irfft ─ x window ─ fold ─ Div (window ** 2 ─ fold) ─ [B, length]. PyTorch captures one
   write for each point of a frame, and fixes the output length if `length` is passed (2.13).
5. Pooling with a kernel as large as its input, for example `max_pool1d(x, x.shape[2])`, becomes a reduction
   of these axes, because a kernel size must be a number.
6. Distributions skip the checks of their parameters, which branch on values.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from ...model.sources.pytorch import import_torch
from ...model.sources.user_code import names_in
from .bags import embedding_bag_form
from .recurrent import free_steps


@contextmanager
def captured_forms() -> Iterator[set[str]]:
    """Install these forms in PyTorch and transformers for the block; yield notes for the user."""
    torch = import_torch()
    transformer, mha = torch.nn.modules.transformer, torch.backends.mha
    functional = torch.nn.functional
    notes: set[str] = set()
    with ExitStack() as stack:
        for module in list(sys.modules.values()):
            names = names_in(module)
            # `inspect` reads `__file__` of all modules; lazy ones then import packages that may be missing.
            if "__file__" not in names and (type(module) is not ModuleType or "__getattr__" in names):
                names["__file__"] = "<lazy>"
                stack.callback(names.pop, "__file__", None)
        distribution = torch.distributions.Distribution
        stack.callback(distribution.set_default_validate_args, distribution._validate_args)
        distribution.set_default_validate_args(False)
        stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
        mha.set_fastpath_enabled(False)
        replaced = [
            (functional, "embedding_bag", embedding_bag_form(functional)),
            (functional, _ATTENTION, _attention(getattr(functional, _ATTENTION))),
            (transformer, "_detect_is_causal_mask", _is_causal),
            (torch.nn.TransformerEncoder, "forward", _encoder(torch)),
            *_pools(torch),
            *((owner, "istft", inverse_form(torch, owner.istft)) for owner in (torch, torch.Tensor)),
        ]
        if experts := sys.modules.get("transformers.integrations.moe"):
            replaced.append((experts.ExpertsInterface, "get_interface", lambda *_: _every_expert(notes)))
        for owner, name, form in replaced:
            original = getattr(owner, name)
            # Also replace it in modules that imported the function by name.
            for module in list(sys.modules.values()) if owner is functional else ():
                names = names_in(module)
                if names.get(name) is original:
                    stack.callback(names.__setitem__, name, original)
                    names[name] = form
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, form)
        stack.enter_context(free_steps())
        yield notes


_ATTENTION = "scaled_dot_product_attention"


def _attention(original: Any) -> Any:
    """Case 2: return attention that converts `is_causal`, which may be a comparison of extents, to a bool."""

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):  # type: ignore[no-untyped-def]
        return original(query, key, value, attn_mask, dropout_p, bool(is_causal), **options)

    return attention


def inverse_form(torch: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Case 4: return a `torch.istft` for real signals; others run `original`."""

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
        else:  # points behind the last frame are 0
            signal = torch.nn.functional.pad(signal, (0, length))[:, start : start + length]
            weight = torch.nn.functional.pad(weight, (0, length), value=1.0)[:, start : start + length]
        output = signal / weight
        return output if input.dim() == 3 else output.squeeze(0)

    return istft


def _is_causal(_: Any, is_causal: bool | None = None, size: int | None = None) -> bool:  # noqa: ARG001
    """Case 2: return True only if the caller passes it; other masks are added as they are."""
    return is_causal is True


def _encoder(torch: Any) -> Any:
    """Case 2: return a `forward` that zeroes padding before the norm, if all padding is at sequence ends."""

    original = torch.nn.TransformerEncoder.forward

    def forward(self, src, mask=None, src_key_padding_mask=None, is_causal=None):  # type: ignore[no-untyped-def]
        padding = src_key_padding_mask
        nested = getattr(self, "use_nested_tensor", False) and mask is None and padding is not None
        if not nested or src.dim() != 3 or self.layers[0].training:
            return original(self, src, mask, padding, is_causal)
        layers = copy.copy(self)
        layers._modules = {**self._modules, "norm": None}
        output = original(layers, src, mask, padding, is_causal)
        present = ~padding.bool()  # a float mask is 0 at tokens that attention reads
        leading = torch.arange(padding.shape[1], device=padding.device) < present.sum(1, keepdim=True)
        at_ends = (leading == present).all()  # otherwise PyTorch does not take the fast path
        output = output.masked_fill((~present & at_ends).unsqueeze(-1), 0.0)
        return output if self.norm is None else self.norm(output)

    return forward


def _pools(torch: Any) -> Iterator[tuple[Any, str, Any]]:
    """Case 5: yield module, function name and replacement."""
    functional = torch.nn.functional

    def form(original: Any, reduce: Any, rank: int) -> Any:
        def pool(input: Any, kernel_size: Any, *stride: Any, **options: Any) -> Any:
            kernel = (
                kernel_size if isinstance(kernel_size, tuple | list | torch.Size) else [kernel_size] * rank
            )
            whole = all(map(_same_symbol, kernel, input.shape[-rank:]))
            if not whole or len(stride) > 1 or options.keys() - {"stride", "ceil_mode", "count_include_pad"}:
                return original(input, kernel_size, *stride, **options)
            return reduce(input, tuple(range(-rank, 0)), keepdim=True)

        def _same_symbol(size: Any, extent: Any) -> bool:
            return isinstance(size, torch.SymInt) and str(size) == str(extent)

        return pool

    for kind, reduce in (("avg", torch.mean), ("max", torch.amax)):
        for rank in (1, 2, 3):
            name = f"{kind}_pool{rank}d"
            yield functional, name, form(getattr(functional, name), reduce, rank)


def _every_expert(notes: set[str]) -> Any:
    """Case 3: return a `forward` that computes every expert."""

    def linear(experts: Any, name: str, expert: int, values: Any) -> Any:
        weight = getattr(experts, name)[expert]
        values = values @ (weight if experts.is_transposed else weight.transpose(0, 1))
        return values + getattr(experts, f"{name}_bias")[expert] if experts.has_bias else values

    def forward(experts: Any, hidden: Any, indices: Any, weights: Any) -> Any:
        """`indices` and `weights` [tokens, count]: the experts that the router chose, and their weights."""
        notes.add(
            f"experts: all {experts.num_experts} are computed for every token, and the {indices.shape[-1]} "
            "that the router chose are added"
        )
        total: Any = 0
        for expert in range(experts.num_experts):
            if experts.has_gate:
                inner = experts._apply_gate(linear(experts, "gate_up_proj", expert, hidden))
            else:
                inner = experts.act_fn(linear(experts, "up_proj", expert, hidden))
            output = linear(experts, "down_proj", expert, inner)
            if getattr(experts, "has_post_expert_norm", False):
                output = experts.post_expert_norm(output)
            total = total + output * (weights * (indices == expert)).sum(-1, keepdim=True)
        return total.to(hidden.dtype)

    return forward
