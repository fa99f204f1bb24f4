"""A hook of MkDocs: what GitHub and click write differently from Python-Markdown.

Pages keep the links that work in the repository. Here a link to a page becomes the page's place in the site.
A link to another file, such as a script, becomes its text and its path: the site has no copy of the file, and
the repository has no address that could be linked.

A table of GitHub requires `\\|` inside code, where Python-Markdown shows the backslash. A block of click's
help that begins with `\\b` is preformatted, and mkdocs-click omits the epilog of a command.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
_LOG = logging.getLogger("mkdocs.hooks.site")  # a warning of this tree fails a strict build

_FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^()\s]+)\)")
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")
_PREFORMATTED = re.compile(r"^\x08\n(?:(Examples):\n)?((?:.+\n?)+)", re.MULTILINE)
_FROM_THE_NETWORK = re.compile(r'<(?:script|img|iframe|link) [^>]*(?:src|href)="?(https?:[^" >]*)')


def included() -> dict[str, str]:
    """Return the files outside `docs/` that the site has: path in the repository to path in the site."""
    found = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
    found["bench/results/results.schema.json"] = "results.schema.json"
    for page in sorted(ROOT.glob("examples/*/README.md")):
        found[page.relative_to(ROOT).as_posix()] = f"examples/{page.parent.name}.md"
    return found


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files outside `docs/`; the front page stands for the README."""
    from mkdocs.structure.files import File

    for path, place in included().items():
        if place != "index.md":
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Return the text with links as the site has them. Examples have wide tables, and no list of headings."""
    if page.file.src_uri.startswith("examples/"):
        page.meta["hide"] = ["toc"]
    places = {place: path for path, place in included().items() if place != "index.md"}
    source = places.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return with_plain_pipes(with_links_of_the_site(markdown, source, page.file.src_uri))


def on_pre_build(**_: object) -> None:
    """Write the examples of every command into its help, as blocks of code."""
    from qcompile.cli.main import group

    for command in commands_of(group):
        command.help, command.epilog = help_in_markdown(command), None


def commands_of(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and those of its group."""
    import click

    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from commands_of(inner)


def on_post_page(output: str, *, page: Page, **_: object) -> str:
    """Warn of what a browser would load from the network."""
    for address in _FROM_THE_NETWORK.findall(output):
        _LOG.warning("%s loads %s; a page loads nothing from the network", page.file.src_uri, address)
    return output


def with_links_of_the_site(markdown: str, source: str, place: str) -> str:
    """Return a page with its links as the site has them.

    Args:
        markdown: The page's text.
        source: Its path in the repository.
        place: Its path in the site's pages.
    """
    return "".join(
        text if is_code else _LINK.sub(lambda link: _link(link, source, place), text)
        for text, is_code in _parts(markdown)
    )


def with_plain_pipes(markdown: str) -> str:
    """Return a page whose code in tables has `|` for `\\|`; Python-Markdown splits no cell inside code."""

    def plain(row: re.Match[str]) -> str:
        return _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])

    return "".join(text if is_code else _ROW.sub(plain, text) for text, is_code in _parts(markdown))


def help_in_markdown(command: click.Command) -> str:
    """Return the help of a command and its epilog, with blocks of code for preformatted paragraphs."""

    def fenced(block: re.Match[str]) -> str:
        title, language = ("**Examples:**\n\n", "console") if block[1] else ("", "text")
        return f"{title}```{language}\n{textwrap.dedent(block[2]).rstrip()}\n```\n"

    parts = [inspect.cleandoc(text) for text in (command.help, command.epilog) if text]
    return _PREFORMATTED.sub(fenced, "\n\n".join(parts))


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yield the text in order, and of each part whether it is a block of code."""
    end = 0
    for block in _FENCE.finditer(markdown):
        yield markdown[end : block.start()], False
        yield block[0], True
        end = block.end()
    yield markdown[end:], False


def _link(link: re.Match[str], source: str, place: str) -> str:
    text, target = link[1], link[2]
    path, mark, heading = target.partition("#")
    if not path or ":" in path:
        return link[0]
    named = os.path.normpath(os.path.join(os.path.dirname(source), path))
    if not (ROOT / named).exists():
        return text if source == "CHANGELOG.md" else link[0]  # a page that went; else MkDocs warns
    if (ROOT / named / "README.md").is_file():
        named = f"{named}/README.md"
    there = included().get(named) or (named.removeprefix("docs/") if named.startswith("docs/") else None)
    if there is None:
        plain = text.replace("`", "")
        return f"`{named}`" if plain in (named, os.path.basename(named)) else f"{text} (`{named}`)"
    return f"[{text}]({os.path.relpath(there, os.path.dirname(place) or '.')}{mark}{heading})"
