"""A plan at work: memory, streams, CUDA graphs, times."""
