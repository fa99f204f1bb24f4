"""What client and workers say to each other: plain values, as JSON, so that nothing of them is run.

Dask moves only these texts through its scheduler. Files go from machine to machine, by their digests.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Outcome = Literal["done", "known", "elsewhere", "none", "missing", "refused", "full", "killed", "failed"]
"""How a request ends.

| done      | the stage is done, by this request or an earlier one; the worker holds its files       |
| known     | the client holds it already: `Result.name` is one of `Request.known`                   |
| elsewhere | another worker holds it: `Result.name` is one of `Request.elsewhere`; nothing was done |
| none      | the step means no stage, as a graph that stays in float; or it is not done (`look`)    |
| missing   | a file cannot be had from any holder: the client brings `Result.missing` to the worker |
| refused   | the worker has other versions; nothing was tried                                       |
| full      | the worker's disk is full; the step goes elsewhere                                     |
| killed    | as failed, by force from outside: another worker may have more memory                  |
| failed    | the step failed: `Result.error`, where `OUTPUT` and `RECIPE` stand for folders         |
"""

OUTPUT, RECIPE = "<output>", "<recipe>"
"""What stands in an error's words for the worker's folders: the client puts its own there."""


class FileRef(msgspec.Struct, frozen=True):
    """A file by its content.

    Attributes:
        name: Its path in its folder, with "/" between parts; never leads out of it.
        digest: "sha256:" and 64 hexadecimal digits, of its bytes.
        size_bytes: Of them.
    """

    name: str
    digest: str
    size_bytes: int


class Parcel(msgspec.Struct, frozen=True):
    """A recipe and every file that it reads, as they lie around it: one file itself, of this as JSON.

    Attributes:
        recipe: Path of the recipe in the parcel's folder.
        files: All files, the recipe's among them. A holder of the parcel's file holds all of these.
        base: The folder that they lie in on the client, which files of stages may name.
    """

    recipe: str
    files: tuple[FileRef, ...]
    base: str = ""


class Given(msgspec.Struct, frozen=True):
    """A file of an earlier stage with what belongs to it.

    Attributes:
        files: The main file, then its weights, manifest, signature.
        holders: Addresses of the workers that hold them all.
    """

    files: tuple[FileRef, ...]
    holders: tuple[str, ...] = ()


class StepText(msgspec.Struct, frozen=True):
    """A `pipeline.steps.Step`, whose files are named by the digests of the main ones."""

    kind: str
    artifact: str = ""
    shard: str = ""
    source_digest: str = ""
    files: dict[str, str] = {}
    shards: tuple[str, ...] = ()
    built: dict[str, str] = {}
    why_not: dict[str, str] = {}
    unavailable: tuple[str, ...] = ()
    machine: str = ""
    trial: str = ""


class Request(msgspec.Struct, frozen=True):
    """What a worker is asked to do.

    Attributes:
        run: Identifies the run, for its progress and its end.
        step: What to do.
        parcel: The file of the parcel (`Parcel` as JSON).
        parcel_holders: Addresses of workers that hold it and its files.
        given: Digest of a main file to all that belongs to it, of every file of the step.
        known: Names of the finished stages of this step that the client holds ("build-int8-3f9c…").
        elsewhere: Names of the finished stages of this step that other workers hold.
        look: Only say whether it is done.
        again: Carry it out even if it is done.
        versions: Package to version that the worker must have, where it has the package at all.
        alone: Whether nothing else may run on the worker's host meanwhile, as for a measurement.
        memory_bytes: What it is thought to take.
    """

    run: str
    step: StepText
    parcel: FileRef
    parcel_holders: tuple[str, ...] = ()
    given: dict[str, Given] = {}
    known: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    look: bool = False
    again: bool = False
    versions: dict[str, str] = {}
    alone: bool = False
    memory_bytes: int = 0


class Result(msgspec.Struct, frozen=True):
    """What a worker answers.

    Attributes:
        outcome: See `Outcome`.
        name: Of the finished stage: its step's name and the digest of its key.
        key: Everything its outcome depended on.
        files: What the stage wrote, the main file first; the worker holds them.
        was_done: Whether the worker had done it before.
        seconds: The stage's own time.
        peak_bytes: Largest memory of the process that did it.
        waited_s: Of the worker: files brought, turns waited for.
        worker: Name of the worker, for people.
        address: Where its files are to be had.
        missing: Digests that no holder had.
        reason: Of "refused" and "full", a sentence.
        error: Of "failed" and "killed": `QCompileError.as_json()`.
    """

    outcome: Outcome
    name: str = ""
    key: dict[str, Any] = {}
    files: tuple[FileRef, ...] = ()
    was_done: bool = False
    seconds: float = 0.0
    peak_bytes: int | None = None
    waited_s: float = 0.0
    worker: str = ""
    address: str = ""
    missing: tuple[str, ...] = ()
    reason: str = ""
    error: dict[str, Any] = {}


class Facts(msgspec.Struct, frozen=True):
    """What a worker's machine has.

    Attributes:
        name: Of the worker.
        address: Of the worker.
        host: Identifies the machine: workers with the same one share processor and devices.
        versions: Package to version, of those installed; "qcompile" and "python" among them.
        resources: What it announces to Dask: "slots", "memory", "cpu-vnni", "openvino", "gpu-sm90", ...
        cores: That its stages may use.
        memory_bytes: That its stages may use.
        gpus: Each GPU: "index", "name", "capability" ("sm90").
        why_not: Engine to why it cannot be used there.
    """

    name: str
    address: str
    host: str
    versions: dict[str, str]
    resources: dict[str, float]
    cores: int
    memory_bytes: int
    gpus: tuple[dict[str, Any], ...] = ()
    why_not: dict[str, str] = {}


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as JSON."""
    return msgspec.json.encode(message)
