"""FP16 and BF16: which nodes can take it, and the casts between."""
