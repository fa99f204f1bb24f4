"""Forms in which a model is captured, where PyTorch's own have no ONNX form. They compute the same.

1. Embedding bags are a lookup and a reduction, not a loop over the bags (`bags`), and recurrent layers take
   any number of steps (`recurrent`).
2. Attention is computed by plain operators, not by the single operator of PyTorch's fast path, and a
   mask is taken as it is: whether it is a causal one is a branch on its values.
   A `torch.nn.TransformerEncoder` then writes zeros where its fast path leaves out padding. Whether there is
   more than one token to mask becomes a guard.
3. Experts (transformers) are computed for every token each, weighted by 0 where the router did not choose
   them. The weights are constants of a MatMul; sorting the tokens by expert has no ONNX form.
4. An inverse transform of spectra is a transform of its frames and one fold, at any number of frames:
   spectra [B, M, T] ─ irfft ─ x window ─ fold ─ Div (window ** 2 ─ fold) ─ [B, length]. PyTorch captures
   `torch.istft` as one write for each point of a frame, and as a fixed length where one is asked for (2.13).
5. Pooling with a kernel as large as its input, such as `max_pool1d(x, x.shape[2])`, is a reduction of its
   axes: a kernel is a number.
6. Distributions do not check their parameters, which would branch on them.
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
    """Let functions of PyTorch and transformers have these forms in the block; yield notes for the user."""
    torch = import_torch()
    transformer, mha = torch.nn.modules.transformer, torch.backends.mha
    functional = torch.nn.functional
    notes: set[str] = set()
    with ExitStack() as stack:
        for module in list(sys.modules.values()):
            names = names_in(module)
            # `inspect` reads the file of each module, on which a lazy one imports what may not be there.
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
            # Modules that import a function by its name have it, too.
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
    """Case 2: the operator takes a bool, not whether a free extent is more than 1."""

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):  # type: ignore[no-untyped-def]
        return original(query, key, value, attn_mask, dropout_p, bool(is_causal), **options)

    return attention


def inverse_form(torch: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Case 4: `torch.istft` of real signals; spectra of complex ones are `original`'s."""

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


def _is_causal(_: Any, is_causal: bool | None = None, size: int | None = None) -> bool:  # noqa: ARG001
    """Case 2: as the caller says. A mask that is not known to be causal is added as it is."""
    return is_causal is True


def _encoder(torch: Any) -> Any:
    """Case 2: padding at the ends of all sequences is 0 after the last layer, before the norm."""

    original = torch.nn.TransformerEncoder.forward

    def forward(self, src, mask=None, src_key_padding_mask=None, is_causal=None):  # type: ignore[no-untyped-def]
        padding = src_key_padding_mask
        nested = getattr(self, "use_nested_tensor", False) and mask is None and padding is not None
        if not nested or src.dim() != 3 or self.layers[0].training:
            return original(self, src, mask, padding, is_causal)
        layers = copy.copy(self)
        layers._modules = {**self._modules, "norm": None}
        output = original(layers, src, mask, padding, is_causal)
        present = ~padding.bool()  # of floats, 0 is what is read
        first = torch.arange(padding.shape[1], device=padding.device) < present.sum(1, keepdim=True)
        at_ends = (first == present).all()  # else the fast path is not taken
        output = output.masked_fill((~present & at_ends).unsqueeze(-1), 0.0)
        return output if self.norm is None else self.norm(output)

    return forward


def _pools(torch: Any) -> Iterator[tuple[Any, str, Any]]:
    """Case 5."""
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
    """Case 3."""

    def linear(experts: Any, name: str, expert: int, values: Any) -> Any:
        weight = getattr(experts, name)[expert]
        values = values @ (weight if experts.is_transposed else weight.transpose(0, 1))
        return values + getattr(experts, f"{name}_bias")[expert] if experts.has_bias else values

    def forward(experts: Any, hidden: Any, chosen: Any, weights: Any) -> Any:
        """Chosen and weights: [tokens, count] of the experts that the router chose for a token."""
        notes.add(
            f"experts: all {experts.num_experts} are computed for every token, and the {chosen.shape[-1]} "
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
            total = total + output * (weights * (chosen == expert)).sum(-1, keepdim=True)
        return total.to(hidden.dtype)

    return forward
