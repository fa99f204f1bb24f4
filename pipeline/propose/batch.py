"""Samples per call: enough work to be measured, and no more than one where one is enough."""

from __future__ import annotations

from .model_facts import ModelFacts

CALL_MULTIPLY_ADDS = 1_000_000_000
"""Of one call: with much less, the runtime's own time per call is a large share of what is measured."""
LARGEST_BATCH = 16
"""What an engine of TensorRT takes that is built without shapes."""


def batch_size(model: ModelFacts, samples: int | None = None) -> tuple[int, str]:
    """Return the batch that is measured, a power of two, and why.

    Args:
        model: What is known of the model.
        samples: How many the evaluation holds, which a batch cannot exceed; None where that is not known.
    """
    if model.fixed_batch is not None:
        return model.fixed_batch, "the model takes no other"
    if not model.multiply_adds:
        return 1, "the latency of one sample"
    batch, most = 1, LARGEST_BATCH if samples is None else min(LARGEST_BATCH, samples)
    while 2 * batch <= most and 2 * batch * model.multiply_adds <= CALL_MULTIPLY_ADDS:
        batch *= 2
    if batch == 1:
        return 1, "the latency of one sample; a larger one measures throughput"
    return batch, "one sample is too little work to measure; 1 measures its latency"
