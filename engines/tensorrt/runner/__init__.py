"""Run a plan: memory, streams, CUDA graphs, times."""
