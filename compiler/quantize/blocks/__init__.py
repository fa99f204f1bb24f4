"""NVFP4 and MXFP8: weights and activations in blocks that share a scale."""
