"""Run one side of a layer comparison in a worker process per job."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...bench.workers.process import Worker
from ...files import held_folder
from ...progress import Progress
from .job import Job

SILENCE_S = 600.0
"""Longest wait for one batch."""


def run(job: Job, name: str, text: str, progress: Progress) -> dict[str, Any]:
    """Carry out a job in a process of its own and return its answer.

    Args:
        job: What to do.
        name: Of the artifact, for errors.
        text: What is being done, for the progress.
        progress: Told of each batch.

    Raises:
        WorkerError: If the process died or hung, with its last output.
        QCompileError: The error that the artifact's runtime raised.
    """
    with (
        held_folder(Path(job.feeds).parent, "run") as folder,
        Worker(name, threads=job.threads, timeout_s=SILENCE_S) as worker,
    ):
        return worker.ask(
            "layers",
            job={**asdict(job), "folder": str(folder)},
            told=lambda done: progress(text, done, job.batches),
        )
