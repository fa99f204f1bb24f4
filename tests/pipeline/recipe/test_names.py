"""What a recipe names: every key is judged, and files are found through links."""

from __future__ import annotations

from pathlib import Path

import msgspec

from qcompile.pipeline.recipe.names import settled
from qcompile.spec.option import fields_of
from qcompile.spec.recipes import RecipeFile

OF_FILES = {"name", "artifact.name", "sweep.model.name"}
WORDS = {
    "model.inputs", "model.outputs", "model.dynamic", "artifact.method", "artifact.layers",
    "artifact.rules", "artifact.fallback",
    "artifact.exclude", "artifact.only", "artifact.gpus", "artifact.min_shapes", "artifact.opt_shapes",
    "artifact.max_shapes",
    "artifact.tensorrt.profiles", "artifact.tensorrt.workspace", "artifact.tensorrt.memory_pools",
    "artifact.tensorrt.weight_streaming", "artifact.tensorrt.tiling_l2_limit",
    "artifact.tensorrt.build_route",
    "artifact.tensorrt.io_formats", "artifact.tensorrt.tactic_sources", "artifact.tensorrt.ignore_faults",
    "calibrate.method", "bench.devices", "bench.baseline", "sweep.model.inputs",
    "sweep.shapes", "sweep.gpus", "sweep.exclude",
}  # fmt: skip


def marks_of(kind: type, prefix: str = "") -> dict[str, str | None]:
    """The keys that hold free texts, which may name anything, and what the spec says that they name."""
    found: dict[str, str | None] = {}
    for one in fields_of(kind):
        if one.table is not None:
            found |= marks_of(one.table, f"{prefix}{one.name}.")
        elif isinstance(one.kind, msgspec.inspect.StrType):
            found[f"{prefix}{one.name}"] = one.spelling.names
    return found


NAMED = {
    "model": "model.source bench.models sweep.models sweep.model.source",
    "weights": "model.weights sweep.model.weights",
    "preprocessing": "model.preprocessing sweep.model.preprocessing",
    "file": "model.depends data.depends",
    "interpreter": "model.python bench.python",
    "data": "data.calibration data.evaluation sweep.model.calibration sweep.model.evaluation",
    "ranges": "calibrate.ranges",
    "library": "artifact.tensorrt.plugins",
    "cache": "artifact.tensorrt.timing_cache",
    "metric": "bench.metric",
    "output": "output",
}
"""What is named, to the keys of recipes that name it; the spec marks them."""


def test_every_key_of_a_recipe_is_judged() -> None:
    """Whoever adds a key decides whether it can run, write or read, and says so in the threat model."""
    marks = marks_of(RecipeFile)
    named = {key: kind for kind, keys in NAMED.items() for key in keys.split()}
    assert {key: mark for key, mark in marks.items() if mark} == named
    assert marks.keys() == named.keys() | OF_FILES | WORDS
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
    assert not {key for key in named.keys() | OF_FILES if f"`{key}`" not in page}


def test_links_in_front_of_two_dots_are_followed_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    for spelled, path in (("link/../x", "real/x"), ("link/x", "link/x"), ("real/../link/x", "link/x")):
        assert settled(tmp_path / spelled) == tmp_path / path
