"""Groups of options in help texts.

`-h` shows a verb's required options and the usual options of each group; `--help` shows all options.
"""

from __future__ import annotations

from collections.abc import Mapping

from .option import Option

GROUPS: Mapping[str, tuple[str, str]] = {
    "Model and data": (
        "--input --data --calibration --evaluation --weights --ranges --recipe --graph --baseline",
        "--samples --shard --fresh --output-name --dynamic --opset --dtype --freeze-branches --preprocessing "
        "--download --model --torch --calibration-cache",
    ),
    "Output": (
        "--output --csv --markdown --junit --plot --dry-run --name",
        "--force --overwrite --save-results --schema --version --embed --per-batch",
    ),
    "Target and precision": (
        "--target --precision --gpu --mode --method",
        "--min-shapes --opt-shapes --max-shapes --float-precision --isa --tensorrt --provider",
    ),
    "Selection": ("--layer --exclude --only --again --nodes --top", "--tensor"),
    "Quantization": (
        "",
        "--search --correct-bias --balance --max-damage --weight-type --block-size --rounding --quant-format "
        "--calibrator",
    ),
    "Accuracy": ("--metric --max-drop", "--candidates --max-size-mb --max-latency-ms"),
    "Comparison and checks": (
        "--layers --max-slower --allow-fallback",
        "--strict --allow-loss --judge --atol --rtol --snr --outputs --max-larger --skip-identical --taps "
        "--threshold --max-builds",
    ),
    "Measurement": (
        "--batch-size --threads --max-time --device",
        "--precision-target --batch-sizes --clients --streams --cuda-graph --layer-times --timeout --python",
    ),
    "TensorRT": ("--profile", ""),
    "Triton": (
        "--max-batch-size --instances --gpus",
        "--kind --preferred-batch --max-queue-delay-us --no-dynamic-batching --warm-up --warm-up-shapes "
        "--version-policy --response-cache",
    ),
    "Cluster": (
        "--scheduler --slots",
        "--store --cores --resource --tls-ca --tls-cert --tls-key --insecure",
    ),
    "Trust": ("--trust", "--untrusted --memory-limit-gb --time-limit-s"),
    "Every command": ("--verbose --quiet --json --help -h", ""),
}
"""Group to its usual and its further options, in the order of help texts."""

TABLES = {"tensorrt": "TensorRT"}
"""Table of options to the group of those that no group names."""


def group_of(flag: str, option: Option | None = None) -> tuple[str, bool]:
    """Return the group of an option, and whether it is a usual one; "" if no group names it."""
    table = TABLES.get(option.key.partition(".")[0], "") if option and "." in option.key else ""
    for title, (usual, further) in GROUPS.items():
        if table in ("", title) and flag in (*usual.split(), *further.split()):
            return title, flag in usual.split()
    return table, False
