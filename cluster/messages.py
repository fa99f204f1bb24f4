"""What a client and workers say to each other: plain values as JSON, a few kilobytes each.

The scheduler moves these texts. Files go from machine to machine as the chunks of a `bundle.Bundle`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .bundle import Bundle

Outcome = Literal["done", "known", "none", "missing", "failed"]
"""How a request ends.

| done    | the stage is done; `Answer.bundle` lists what it wrote, and its chunks can be had           |
| known   | the client holds it already: `Answer.name` is one of `Request.known`                        |
| none    | the step means no stage, as a graph that stays in float; or it is not done (`look`)         |
| missing | nobody has the chunks of `Answer.missing`: the client uploads them, and asks again          |
| failed  | the step failed: `Answer.error`, where `OUTPUT` and `RECIPE` stand for the worker's folders |
"""

OUTPUT, RECIPE = "<output>", "<recipe>"
"""What stands in an error's words for the worker's folders: the client puts its own there."""


class StageKilled(Exception):
    """The process that carried out a stage ended by itself or by force: Dask retries the task."""


class Request(msgspec.Struct, frozen=True):
    """What a worker is asked to do.

    Attributes:
        client: Dask's id of the client: chunks are kept for it, progress is told to it.
        step: A `pipeline.steps.Step` as JSON, whose files are named by their digests.
        name: Of the step's stage.
        recipe: Digest of the bundle of the recipe and of all files that it reads.
        inputs: Digest of a file of the step to that of the bundle that it is the first file of.
        store: URL of a store that carries the chunks; empty for Dask.
        known: Names of the finished stages of this step that the client holds ("build-int8-3f9c…").
        look: Only say whether it is done.
        again: Carry it out even if it is done.
        alone: Whether nothing else may run on the worker's machine meanwhile, as for a measurement.
    """

    client: str
    step: dict[str, Any]
    name: str
    recipe: str
    inputs: dict[str, str] = {}
    store: str = ""
    known: tuple[str, ...] = ()
    look: bool = False
    again: bool = False
    alone: bool = False


class Answer(msgspec.Struct, frozen=True):
    """What a worker answers.

    Attributes:
        outcome: See `Outcome`.
        name: Of the finished stage: its step's name and the digest of its key.
        key: Everything its outcome depended on.
        bundle: What the stage wrote, the main file first.
        was_done: Whether the worker had done it before.
        took: `seconds` and `peak_bytes` of the process that did it.
        worker, address: Of the worker.
        missing: Digests of the bundles that nobody has whole.
        error: Of "failed": `QCompileError.as_json()`.
    """

    outcome: Outcome
    name: str = ""
    key: dict[str, Any] = {}
    bundle: Bundle | None = None
    was_done: bool = False
    took: dict[str, Any] = {}
    worker: str = ""
    address: str = ""
    missing: tuple[str, ...] = ()
    error: dict[str, Any] = {}
