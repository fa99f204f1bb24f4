"""`qcompile completion`: the script by which a shell completes verbs, options, choices and files.

The shell calls `qcompile` back for every completion (click's protocol), so nothing heavy may be imported on
the way: a verb's options come from `spec/`.
"""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from ..spec.first_use import CompletionCommand
from .session import Session
from .verb import verb

PROGRAM = "qcompile"
VARIABLE = "_QCOMPILE_COMPLETE"
INSTALL = {
    "bash": "echo 'eval \"$(qcompile completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(qcompile completion zsh)\"' >> ~/.zshrc",
    "fish": "qcompile completion fish > ~/.config/fish/completions/qcompile.fish",
}


@verb(
    CompletionCommand,
    "qcompile completion bash",
    *(f"{line}  # {shell}" for shell, line in INSTALL.items()),
    files=False,
)
def completion(session: Session, given: CompletionCommand) -> None:
    """Print the script."""
    from .main import group

    kind = get_completion_class(given.shell)
    assert kind is not None, "spec lists the shells that click knows"
    made = kind(group, {}, PROGRAM, VARIABLE)
    script = ShellComplete.source(made)  # click's own asks a bash on this machine for its version first
    session.json({"shell": given.shell, "install": INSTALL[given.shell], "script": script})
    if not session.as_json:
        click.echo(script)
