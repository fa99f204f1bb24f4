"""INT8: placement of Q/DQ for each target, the quantizers, and the runtime's integer kernels."""
