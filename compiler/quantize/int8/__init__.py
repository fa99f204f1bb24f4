"""INT8: where Q/DQ goes for each target, how it gets there, and what the runtime makes of it."""
