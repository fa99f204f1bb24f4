"""The comparison: train where there are no weights, run the recipe, print the table of every row.

    python examples/cifar_resnet18/compare.py --write-readme

On CIFAR-10 where its binary files are ($CIFAR10, or data/cifar-10-batches-bin), otherwise on the synthetic
stand-in; the title says which. A row that is not measured says why.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import train
from published import published_table

import model
import qcompile
from qcompile.bench.results.export import MEANING, markdown_table
from qcompile.bench.results.render import interval_words
from qcompile.bench.results.results import Results
from qcompile.bench.results.row import Row
from qcompile.bench.statistics.bootstrap import CONFIDENCE as DROP_CONFIDENCE
from qcompile.pipeline.recipe import Recipe

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
_BEGIN, _END = "<!-- output of: python examples/cifar_resnet18/compare.py -->", "<!-- end of output -->"
_BASELINE = "pytorch"


@dataclass(frozen=True)
class Settings:
    """How large a comparison is.

    Attributes:
        max_time_s: Of the rounds; None for the recipe's.
        only: Rows to measure; empty for all. The others say that they were left out.
        again: Whether to measure again although nothing has changed.
    """

    max_time_s: float | None = None
    only: tuple[str, ...] = ()
    again: bool = False


def recipe_for(data: str, settings: Settings) -> Recipe:
    """Return the recipe, on a data set, with the rows that are to be measured."""
    recipe = qcompile.read_recipe(HERE / "recipe.toml")
    assert recipe.bench is not None
    bench = recipe.bench
    if settings.max_time_s is not None:
        bench = replace(bench, max_time_s=settings.max_time_s)
    artifacts = recipe.artifact
    if settings.only:
        artifacts = tuple(one for one in artifacts if one.name in settings.only)
        bench = replace(
            bench,
            torch_modes=tuple(mode for mode in bench.torch_modes if mode_row(mode) in settings.only),
            models=tuple(text for text in bench.models if text.split("=")[0] in settings.only),
        )
    return replace(
        recipe,
        artifact=artifacts,
        bench=bench,
        output=f"out/{data}",
        data=replace(
            recipe.data,
            calibration=recipe.data.calibration.replace("stand_in.py", f"{data}.py"),
            evaluation=recipe.data.evaluation.replace("stand_in.py", f"{data}.py"),
        ),
    )


def mode_row(mode: str) -> str:
    """Return the name of the baseline's row in a mode."""
    return f"{_BASELINE} ({mode})"


def row_names(recipe: Recipe) -> list[str]:
    """Return every row of the comparison, in the order of the table."""
    assert recipe.bench is not None
    return [
        _BASELINE,
        *map(mode_row, recipe.bench.torch_modes),
        *(text.split("=")[0] for text in recipe.bench.models),
        *(one.name for one in recipe.artifact),
    ]


def complete(results: Results, names: Sequence[str]) -> Results:
    """Return the results with every row, in order; what was left out says so."""
    rows = {row.name: row for row in results.rows}
    left_out = [
        Row(name, "", "", status="not run", reason="left out by --only") for name in names if name not in rows
    ]
    rows |= {row.name: row for row in left_out}
    return replace(results, rows=[rows[name] for name in names])


def block(results: Results, noted: dict[str, str]) -> str:
    """Return what stands in the README: the title, both tables, and what was measured where."""
    environment, settings = results.environment, results.settings
    noise = (environment.get("noise") or {}).get("reasons", ())
    measured = (
        f"Measured {results.created[:10]} on {environment['processor']}, {settings['threads']} threads, "
        f"batch {settings['batch_size']}, 512 images that were not trained on; "
        f"{_packages(results)}. Speed-up against {results.baseline} with its "
        f"{interval_words(results.confidence)}, drop in points with its {DROP_CONFIDENCE:.0%} interval. "
        f"{MEANING}"
    )
    trained = f"{noted['epochs']} epochs over {noted['samples']} images, width {noted['width']}"
    return "\n\n".join([
        f"**ResNet-18 on {noted['title']}** ({trained})",
        markdown_table(results),
        measured + "".join(f"\nDisturbed: {reason}." for reason in noise),
        published_table({row.name: row for row in results.rows}),
    ])  # fmt: skip


def write_readme(text: str, path: Path = README) -> None:
    """Replace the marked block of the README.

    Raises:
        ValueError: If the README has no such block.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{path}: {_BEGIN} and {_END} are required")
    path.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}", encoding="utf-8")


def compare(settings: Settings) -> Results:
    """Measure what is to be measured, and return every row."""
    noted = model.about()
    if noted["data"] != train.data_name():
        sys.exit(f"{model.WEIGHTS}: trained on {noted['title']}; delete it, or set $CIFAR10 as it was then")
    importlib.import_module(noted["data"])
    everything = recipe_for(noted["data"], Settings())
    report = qcompile.run(
        recipe_for(noted["data"], settings),
        again=("bench",) if settings.again else (),
        progress=lambda text, *_: print(f"\r{text[:100]:100}", end="", file=sys.stderr),
    )
    print(file=sys.stderr)
    assert report.results is not None
    return complete(report.results, row_names(everything))


def _packages(results: Results) -> str:
    seen: dict[str, str] = {}
    for row in results.rows:
        seen |= dict(row.packages)
    return ", ".join(f"{name} {version}" for name, version in sorted(seen.items()))


def main() -> None:
    """Compare, print, and write the README where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write-readme", action="store_true", help="put the tables into README.md")
    parser.add_argument("--max-time", type=float, help="seconds of measuring, in place of the recipe's")
    parser.add_argument(
        "--only", action="append", default=[], metavar="ROW", help="measure this row; repeatable"
    )
    parser.add_argument("--again", action="store_true", help="measure again although nothing has changed")
    options = parser.parse_args()
    if not model.WEIGHTS.exists():
        train.train()
    results = compare(Settings(options.max_time, tuple(options.only), options.again))
    text = block(results, model.about())
    print(text)
    if options.write_readme:
        write_readme(text)


if __name__ == "__main__":
    main()
