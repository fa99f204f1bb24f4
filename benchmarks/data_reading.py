"""How fast folders of images are read: qcompile, torchvision's DataLoader, and transformers' image processor.

    .venv/bin/python benchmarks/data_reading.py                     # 512 photos of 500x375, 3 rounds
    .venv/bin/python benchmarks/data_reading.py --images 64 --rounds 1
    .venv/bin/python benchmarks/data_reading.py --digest            # how long the digest of a folder takes

| reader       | is                                                                              |
|--------------|---------------------------------------------------------------------------------|
| qcompile     | `Data` on the folder, with as many threads as it takes by itself                |
| torchvision  | `ImageFolder` with `Resize`, `CenterCrop`, ...; `DataLoader` with processes     |
| one process  | the same without processes                                                      |
| transformers | `CLIPImageProcessor` with the same sizes, batch by batch, in one process        |

All make float32 [8, 3, 224, 224] of the same JPEG files (made here once, kept in build/benchmarks), and
rounds alternate between them. Each reader's figure is the median of its rounds, starting its threads or
processes included, imports excluded. The arrays of qcompile and torchvision are compared first: they must be
equal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "coverage_models"))
import torchvision_operators  # noqa: E402, F401  # before torchvision

from qcompile.data.batches import Data  # noqa: E402
from qcompile.tensors import TensorInfo  # noqa: E402

BATCH = 8
INPUT = TensorInfo("x", "float32", ("batch", 3, 224, 224))
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Reader = Callable[[Path], Iterator[Any]]


def photos(count: int) -> Path:
    """Return a folder of so many JPEG files in two classes; smooth pictures with noise, as photos are."""
    from PIL import Image

    folder = ROOT / "build/benchmarks" / f"photos-{count}"
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:375, :500]
    for number in range(count):
        path = folder / f"class{number % 2}" / f"{number:05}.jpg"
        if path.is_file():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        waves = [128 + 100 * np.sin((x * a + y * b) / 60) for a, b in rng.uniform(-2, 2, (3, 2))]
        pixels = np.stack(waves, 2) + rng.normal(0, 8, (375, 500, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return folder


def by_qcompile(folder: Path) -> Iterator[Any]:
    """Read with `Data`."""
    for batch in Data(f"images:{folder}?preprocessing=imagenet", [INPUT], batch_size=BATCH):
        yield batch.feeds["x"]


def by_torchvision(workers: int) -> Reader:
    """Read with `ImageFolder` and a `DataLoader` of so many processes."""

    def read(folder: Path) -> Iterator[Any]:
        from torch.utils.data import DataLoader
        from torchvision import transforms
        from torchvision.datasets import ImageFolder

        steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
        made = ImageFolder(str(folder), transforms.Compose([*steps, transforms.Normalize(MEAN, STD)]))
        for images, _ in DataLoader(made, batch_size=BATCH, num_workers=workers):
            yield images.numpy()

    return read


def by_transformers(folder: Path) -> Iterator[Any]:
    """Read with an image processor."""
    from PIL import Image
    from transformers import CLIPImageProcessor

    processor = CLIPImageProcessor(
        size={"shortest_edge": 256}, crop_size={"height": 224, "width": 224}, resample=2,
        image_mean=MEAN, image_std=STD,
    )  # fmt: skip
    files = sorted(folder.rglob("*.jpg"))
    for start in range(0, len(files), BATCH):
        images = [Image.open(path).convert("RGB") for path in files[start : start + BATCH]]
        yield processor(images, return_tensors="np")["pixel_values"]


def images_per_s(read: Reader, folder: Path) -> float:
    """Return how many images a reader gives per second."""
    started = time.perf_counter()
    count = sum(len(batch) for batch in read(folder))
    return count / (time.perf_counter() - started)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes of torchvision's DataLoader")
    parser.add_argument("--digest", action="store_true")
    options = parser.parse_args()
    folder = photos(options.images)
    if options.digest:
        size = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
        for name in ("first", "again"):
            started = time.perf_counter()
            Data(f"images:{folder}", ()).digest()
            took = time.perf_counter() - started
            print(f"digest, {name}: {took:.3f} s of {options.images} files, {size / took / 1e6:.0f} MB/s")
        return
    readers: dict[str, Reader] = {
        "qcompile": by_qcompile,
        "torchvision": by_torchvision(options.workers),
        "torchvision, one process": by_torchvision(0),
        "transformers": by_transformers,
    }
    for ours, theirs in zip(by_qcompile(folder), by_torchvision(0)(folder), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    next(by_transformers(folder))  # imports
    found: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(options.rounds):
        for name in list(readers)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(images_per_s(readers[name], folder))
    own = statistics.median(found["qcompile"])
    print("| reader | images/s | qcompile against it |\n|---|---|---|")
    for name, values in found.items():
        median = statistics.median(values)
        print(f"| {name} | {median:.0f} ({min(values):.0f} to {max(values):.0f}) | {own / median:.2f}x |")


if __name__ == "__main__":
    main()
