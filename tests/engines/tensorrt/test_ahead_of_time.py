"""The GPUs that an engine is built for ahead of time, and the way out of a name that is none of them."""

from __future__ import annotations

import re

import pytest

from qcompile.engines.tensorrt.adapter import load_adapter
from qcompile.engines.tensorrt.compatibility import require_gpus
from qcompile.errors import InvalidOption

pytest.importorskip("tensorrt_rtx")


@pytest.mark.parametrize("gpus", [[], ["sm86"], ["SM80", "sm89"]])
def test_the_gpus_that_the_real_rtx_builds_for_pass(gpus: list[str]) -> None:
    require_gpus(load_adapter("tensorrt-rtx"), gpus)


@pytest.mark.parametrize(
    ("gpu", "hint"),
    [
        ("8.9", "write sm89"),
        ("89", "write sm89"),
        ("sm_86", "write sm86"),
        ("sm90", "RTX 40 and L4 sm89"),
        ("current", "`qcompile doctor` tells it"),
        ("RTX 4090", "RTX 40 and L4 sm89"),
    ],
)
def test_a_gpu_that_cannot_be_built_for_is_refused_with_the_list_and_the_way_out(gpu: str, hint: str) -> None:
    with pytest.raises(InvalidOption, match=f"`gpus` {re.escape(gpu)}: .* builds for .*sm80, sm86") as caught:
        require_gpus(load_adapter("tensorrt-rtx"), ["sm80", gpu])
    assert hint in caught.value.hint
    assert caught.value.data["option"] == "gpus"
