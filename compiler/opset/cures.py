"""Registry of the graphs that runtimes are known to compute wrongly: what finds them, and what rewrites them.

The names are those of the engine's table of known faults, which says what holds for which version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .cumsums import cumsums_to_products, find_mixed_cumsums
from .exact_forms import (
    Cure,
    Finder,
    find_batch_first,
    find_integer_mods,
    find_one_group,
    find_sliced_shapes,
    layouts_time_first,
    mods_exactly,
    one_group_by_instances,
    shapes_then_slices,
)
from .fusions_apart import (
    biases_apart,
    extrema_apart,
    find_merged_biases,
    find_moved_scales,
    find_quantized_extrema,
    scales_apart,
)
from .grid_samples import (
    find_deformable_attention,
    find_renamed_modes,
    modes_left_out,
    samples_to_gathers,
)
from .layers_apart import find_requantized, keep_layers_apart
from .patterns import (
    find_attention,
    find_attention_of_transposed_inputs,
    find_dynamic_inputs,
    find_normalized_and_back,
    find_partly_rotated,
    find_reduced_keys,
    find_reducing_scatters,
    find_resizes_behind_if,
)
from .reduced_axes import find_reduced_axes, sums_of_axes


@dataclass(frozen=True)
class FaultyGraph:
    """A known fault, as the graph shows it.

    Attributes:
        find: Returns the names of the nodes that are affected.
        cure: Rewrites them in place, as far as it can; None where there is no rewrite.
        quantized: Whether only a quantized graph shows it, which is then what is compared.
    """

    find: Finder
    cure: Cure | None = None
    quantized: bool = False


FAULTY_GRAPHS: Mapping[str, FaultyGraph] = {
    # A rewrite that leaves no node of its kind comes before one that only renames.
    "deformable-attention": FaultyGraph(find_deformable_attention, samples_to_gathers),
    "grid-sample-mode": FaultyGraph(find_renamed_modes, modes_left_out),
    "cumsum-axes": FaultyGraph(find_mixed_cumsums, cumsums_to_products),
    "mod-by-float": FaultyGraph(find_integer_mods, mods_exactly),
    "group-norm-of-one": FaultyGraph(find_one_group, one_group_by_instances),
    "recurrent-layout": FaultyGraph(find_batch_first, layouts_time_first),
    "requantized-layer": FaultyGraph(find_requantized, keep_layers_apart),
    "reduced-axes": FaultyGraph(find_reduced_axes, sums_of_axes),
    "quantized-extremum": FaultyGraph(find_quantized_extrema, extrema_apart, quantized=True),
    "merged-bias": FaultyGraph(find_merged_biases, biases_apart, quantized=True),
    "moved-scale": FaultyGraph(find_moved_scales, scales_apart, quantized=True),
    "shape-slice": FaultyGraph(find_sliced_shapes, shapes_then_slices),
    "scatter-reduction": FaultyGraph(find_reducing_scatters),
    "resize-behind-if": FaultyGraph(find_resizes_behind_if),
    "transposed-input-attention": FaultyGraph(find_attention_of_transposed_inputs),
    "fused-attention-sm120": FaultyGraph(find_attention),
    "batched-reduced-keys": FaultyGraph(find_reduced_keys),
    "partly-rotated-attention": FaultyGraph(find_partly_rotated),
    "normalized-and-back": FaultyGraph(find_normalized_and_back),
    "several-profiles": FaultyGraph(find_dynamic_inputs),
}
