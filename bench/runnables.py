"""Choose the artifacts of a benchmark and its baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..engines.gpu import device_text
from ..errors import InvalidOption
from .outputs import RunnableArtifact, describe, short_name
from .results.row import Row
from .workers.interpreters import Interpreters


def choose_runnables(
    artifacts: Sequence[str] | Mapping[str, str],
    baseline: str,
    *,
    trust: bool,
    pythons: Interpreters,
    torch_modes: Sequence[str],
    devices: Sequence[int | None] = (),
) -> tuple[list[RunnableArtifact], str]:
    """Return what is measured, the baseline first, and the baseline's name.

    Every MODEL comes once more in each of `torch_modes`, and every artifact once more on each further one of
    `devices` that its engine runs on. Other arguments are those of `benchmark`.

    Raises:
        InvalidOption: If the baseline cannot run here, or there is no MODEL for the modes.
    """
    named = dict(artifacts) if isinstance(artifacts, Mapping) else {}
    if not isinstance(artifacts, Mapping):
        for artifact in artifacts:
            name, number = short_name(artifact), 1
            while name in named:
                number += 1
                name = f"{short_name(artifact)} ({number})"
            named[name] = artifact
    base = next((name for name, item in named.items() if baseline in (name, item)), "")
    if not base:
        base = short_name(baseline)
        if base in named:
            base = f"{base} (baseline)"
        named = {base: baseline, **named}
    described = [
        describe(artifact, name=name, trust=trust, pythons=pythons) for name, artifact in named.items()
    ]
    runnables = [placed for runnable in described for placed in _on_devices(runnable, devices)]
    chosen = next(runnable for runnable in runnables if runnable.name == base)
    if chosen.why_not:
        raise InvalidOption(f"baseline {baseline}: cannot run here: {chosen.why_not}")
    models = [runnable for runnable in runnables if runnable.engine == "pytorch"]
    if torch_modes and not models:
        raise InvalidOption("`torch_modes`: no artifact is a PyTorch MODEL", option="torch_modes")
    for mode in dict.fromkeys(torch_modes):
        runnables += [
            replace(one, name=f"{one.name} ({mode})", mode=mode) for one in models if mode != "eager"
        ]
    return sorted(runnables, key=lambda runnable: runnable is not chosen), base


def _on_devices(runnable: RunnableArtifact, devices: Sequence[int | None]) -> list[RunnableArtifact]:
    """The artifact on each device where it runs; where it does by itself if that is none of them."""
    names = [
        device_text(number) for number in devices if ("cpu" if number is None else "cuda") in runnable.places
    ]
    placed = [
        replace(runnable, device=device, name=f"{runnable.name} ({device})" if index else runnable.name)
        for index, device in enumerate(names)
    ] or [runnable]
    return [
        replace(one, runs_on="GPU") if one.device != "cpu" and one.runs_on == "CPU" else one for one in placed
    ]


def row_of(runnable: RunnableArtifact) -> Row:
    """Return the row of an artifact, before anything is measured."""
    return Row(
        name=runnable.name,
        artifact=runnable.artifact,
        engine=runnable.engine,
        precision=runnable.precision,
        runs_on=runnable.runs_on,
        status="not run" if runnable.why_not else "measured",
        reason=runnable.why_not,
        size_bytes=runnable.size_bytes,
        mode=runnable.mode,
        device=runnable.device,
        interpreter=runnable.python,
        layers_by_precision=runnable.layers_by_precision,
    )
