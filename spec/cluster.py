"""Where stages run: the options of every verb that takes a cluster, and of `qcompile worker`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .decode import Checked
from .option import COMMA, argument, option

LOCAL = "local"
"""Processes on this machine, in place of a scheduler's address."""


class ConnectionOptions(Checked):
    """How a Dask scheduler is spoken to."""

    tls_ca: Annotated[Path | None, option("Certificate of the cluster's authority.", "FILE")] = None
    tls_cert: Annotated[Path | None, option("Certificate of this machine.", "FILE")] = None
    tls_key: Annotated[Path | None, option("Private key of that certificate.", "FILE")] = None
    insecure: Annotated[
        tuple[str, ...],
        option("Host to speak to without TLS, although it is not this machine; give the host twice.", "HOST"),
    ] = ()


class SchedulerOptions(ConnectionOptions):
    """Where the stages of a recipe run."""

    scheduler: Annotated[
        str,
        option(
            "Dask scheduler whose workers carry out the stages: tls://HOST:PORT, its file, or local for "
            "processes on this machine.",
            "ADDRESS",
        ),
    ] = ""
    store: Annotated[
        str,
        option(
            "Folder or URL (fsspec) that this machine and all workers reach; it carries the files in place "
            "of Dask.",
            "URL",
        ),
    ] = ""


class WorkerCommand(ConnectionOptions):
    """Start a worker of SCHEDULER that carries out stages and announces what this machine has."""

    scheduler: Annotated[str, argument("Address of a Dask scheduler, or its file.")]
    store: Annotated[Path, option("Folder that keeps files and finished stages.", "FOLDER")] = Path(
        "qcompile-worker"
    )
    name: Annotated[str, option("Name that tables and messages show; default: the host's.")] = ""
    slots: Annotated[int, option("Stages at a time, which share the cores.", ge=1)] = 1
    cores: Annotated[int, option("Cores that the stages may use; 0 means all.", ge=0)] = 0
    resources: Annotated[
        tuple[str, ...],
        option(
            "What the worker announces besides what was found, such as rack-7=1.",
            "--resource NAME=NUMBER",
            split=COMMA,
        ),
    ] = ()
