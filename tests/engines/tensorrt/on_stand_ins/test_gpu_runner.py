"""`tests/engines/gpu/test_runner_on_gpu.py` on stand-ins."""

from simulated_whole import gpu_tests

globals().update(gpu_tests("test_runner_on_gpu"))
