"""Train the digits ResNet-18: `python benchmarks/digits_resnet18/train.py`, about a minute on two cores."""

from __future__ import annotations

from data import evaluation, load_from_digits, training
from model import WEIGHTS, resnet18

# So many parameters learn these digits in few passes, of a quarter of a minute each.
EPOCHS = 4


def main() -> None:
    """Train ResNet-18 with examples/digits' loop; write resnet18.safetensors beside model.py."""
    loop = load_from_digits("train")
    loop.make_deterministic()
    loop.train(resnet18(), WEIGHTS, training(), evaluation, epochs=EPOCHS, peak_rate=0.02)
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
