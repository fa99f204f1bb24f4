"""The comparison: train where there are no weights, run the recipe, print the table of every row.

    python examples/cifar_resnet18/compare.py

On CIFAR-10 where its binary files are ($CIFAR10, or data/cifar-10-batches-bin), otherwise on the synthetic
stand-in. A row that is not measured says why.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import train

import model
import qcompile
from qcompile.bench.results.render import markdown
from qcompile.pipeline.recipe.recipe import Recipe

HERE = Path(__file__).resolve().parent


def recipe_for(data: str, max_time_s: float | None = None) -> Recipe:
    """Return the recipe on a data set, "cifar10" or "stand_in", with other seconds of measuring."""
    recipe = qcompile.read_recipe(HERE / "recipe.toml")
    assert recipe.bench is not None
    sources = {
        name: getattr(recipe.data, name).replace("stand_in.py", f"{data}.py")
        for name in ("calibration", "evaluation")
    }
    bench = recipe.bench if max_time_s is None else replace(recipe.bench, max_time_s=max_time_s)
    return replace(recipe, bench=bench, output=f"out/{data}", data=replace(recipe.data, **sources))


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--max-time", type=float, help="seconds of measuring, in place of the recipe's")
    parser.add_argument("--again", action="store_true", help="measure again although nothing has changed")
    options = parser.parse_args()
    if not model.WEIGHTS.exists():
        train.train()
    noted = model.about()
    if noted["data"] != train.data_name():
        sys.exit(f"{model.WEIGHTS}: trained on {noted['title']}; delete it, or set $CIFAR10 as it was then")
    recipe = recipe_for(noted["data"], options.max_time)
    report = qcompile.run(recipe, again=("bench",) if options.again else ())
    assert report.results is not None
    print(f"ResNet-18 on {noted['title']}, {noted['epochs']} epochs over {noted['samples']} images\n")
    print(markdown(report.results))


if __name__ == "__main__":
    main()
