"""What is measured against what: artifacts by name, and the baseline among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..engines.gpu import device_text
from ..errors import InvalidOption
from .outputs import Subject, describe, short_name
from .results.row import Row
from .workers.interpreters import Interpreters


def choose_subjects(
    artifacts: Sequence[str] | Mapping[str, str],
    baseline: str,
    *,
    trust: bool,
    pythons: Interpreters,
    torch_modes: Sequence[str],
    devices: Sequence[int | None] = (),
) -> tuple[list[Subject], str]:
    """Return what is measured, the baseline first, and the baseline's name.

    Every MODEL comes once more in each of `torch_modes`, and every subject once more on each further one of
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
    subjects = [placed for subject in described for placed in _on_devices(subject, devices)]
    chosen = next(subject for subject in subjects if subject.name == base)
    if chosen.why_not:
        raise InvalidOption(f"baseline {baseline}: cannot run here: {chosen.why_not}")
    models = [subject for subject in subjects if subject.engine == "pytorch"]
    if torch_modes and not models:
        raise InvalidOption("`torch_modes`: no artifact is a PyTorch MODEL", option="torch_modes")
    for mode in dict.fromkeys(torch_modes):
        subjects += [
            replace(one, name=f"{one.name} ({mode})", mode=mode) for one in models if mode != "eager"
        ]
    return sorted(subjects, key=lambda subject: subject is not chosen), base


def _on_devices(subject: Subject, devices: Sequence[int | None]) -> list[Subject]:
    """The subject on each device where it runs; where it does by itself if that is none of them."""
    names = [
        device_text(number) for number in devices if ("cpu" if number is None else "cuda") in subject.places
    ]
    placed = [
        replace(subject, device=device, name=f"{subject.name} ({device})" if index else subject.name)
        for index, device in enumerate(names)
    ] or [subject]
    return [
        replace(one, runs_on="GPU") if one.device != "cpu" and one.runs_on == "CPU" else one for one in placed
    ]


def row_of(subject: Subject) -> Row:
    """Return the row of a subject, before anything is measured."""
    return Row(
        name=subject.name,
        artifact=subject.artifact,
        engine=subject.engine,
        precision=subject.precision,
        runs_on=subject.runs_on,
        status="not run" if subject.why_not else "measured",
        reason=subject.why_not,
        size_bytes=subject.size_bytes,
        mode=subject.mode,
        device=subject.device,
        interpreter=subject.python,
        layers_by_precision=subject.layers_by_precision,
    )
