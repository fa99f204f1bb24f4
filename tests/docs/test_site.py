"""The site: its links, its tables, its reference and its search; `make docs` fails for a broken link."""

from __future__ import annotations

import html
import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import click
import pytest
from browser import installed_browser

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """The file that MkDocs loads by its path."""
    place = importlib.util.spec_from_file_location("site_links", ROOT / "docs/hooks/site_links.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("written", "source", "place", "shown"),
    [
        ("[a](data.md#texts)", "docs/models.md", "models.md", "[a](data.md#texts)"),
        ("[a](../models.md)", "docs/reference/x.md", "reference/x.md", "[a](../models.md)"),
        ("[a](../README.md)", "docs/models.md", "models.md", "[a](index.md)"),
        ("[a](../examples/qat/README.md)", "docs/models.md", "models.md", "[a](examples/qat.md)"),
        ("[a](../examples/qat)", "docs/models.md", "models.md", "[a](examples/qat.md)"),
        ("[a](../digits)", "examples/qat/README.md", "examples/qat.md", "[a](digits.md)"),
        ("[a](docs/data.md#texts)", "CHANGELOG.md", "changelog.md", "[a](data.md#texts)"),
        ("[a](../../docs/data.md)", "examples/qat/README.md", "examples/qat.md", "[a](../data.md)"),
        ("[lines](../setup.cfg)", "docs/data.md", "data.md", "lines (`setup.cfg`)"),
        ("[`setup.cfg`](../setup.cfg)", "docs/data.md", "data.md", "`setup.cfg`"),
        ("[train.py](train.py)", "examples/qat/README.md", "examples/qat.md", "`examples/qat/train.py`"),
        ("[a](https://semver.org)", "docs/data.md", "data.md", "[a](https://semver.org)"),
        ("[a](docs/gone.md)", "CHANGELOG.md", "changelog.md", "a"),
        ("[a](#texts)", "docs/data.md", "data.md", "[a](#texts)"),
        ("[a](nothing.md)", "docs/data.md", "data.md", "[a](nothing.md)"),  # MkDocs warns of it
        ("[`a[0]`, two\nlines](../setup.cfg)", "docs/data.md", "data.md", "`a[0]`, two\nlines (`setup.cfg`)"),
        ("```\n[a](../setup.cfg)\n```\n", "docs/data.md", "data.md", "```\n[a](../setup.cfg)\n```\n"),
    ],
)
def test_a_link_leads_to_the_page_or_names_the_file(
    hook: ModuleType, written: str, source: str, place: str, shown: str
) -> None:
    assert hook.with_links_of_the_site(written, source, place) == shown


def test_every_page_has_a_place_in_the_site(hook: ModuleType) -> None:
    """MkDocs says so too, but only `make docs` runs it."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"^ +- (?:[^:\n]+: )?([\w/.]+\.md)$", settings, re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    pages |= {place for place in hook.included().values() if place.endswith(".md")}
    assert sorted(named) == sorted(pages)


def test_what_a_browser_would_load_from_the_network_is_found(
    hook: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    class Page:
        class file:  # noqa: N801
            src_uri = "x.md"

    kept = '<script src="assets/a.js"></script><a href="https://semver.org"><img src="a.svg">'
    assert hook.on_post_page(kept, page=Page, config=None) == kept
    assert not caplog.records
    for loaded in (
        '<script src="https://unpkg.com/a"></script>',
        '<link rel="stylesheet" href="https://fonts.googleapis.com/css">',
        "<img alt=a src=http://example.org/a.png>",
    ):
        caplog.clear()
        hook.on_post_page(loaded, page=Page, config=None)
        assert len(caplog.records) == 1, loaded


def build(folder: Path, **pages: str) -> subprocess.CompletedProcess[str]:
    """Build pages with the repository's settings, as the Makefile does; all but `orphan` have a place."""
    pytest.importorskip("mkdocs", reason="the site needs the extra docs")
    (folder / "docs").mkdir()
    for name, text in pages.items():
        (folder / f"docs/{name}.md").write_text(text)
    (folder / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nsite_dir: site\n"
        "hooks: []\nextra: {}\nextra_css: []\n"
        f"plugins: [search]\nnav: [{', '.join(f'{name}.md' for name in pages if name != 'orphan')}]\n"
    )
    words = re.search(r"^\t.*/mkdocs (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", *words[1].split()],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_links_that_lead_somewhere_make_a_site(tmp_path: Path) -> None:
    done = build(tmp_path, index="# Start\n\n[there](other.md#a-part)\n", other="# Other\n\n## A part\n")
    assert done.returncode == 0, done.stderr
    assert 'href="other.html#a-part"' in (tmp_path / "site/index.html").read_text()


def test_a_broken_link_a_missing_anchor_and_a_page_without_a_place_are_errors(tmp_path: Path) -> None:
    done = build(
        tmp_path,
        index="# Start\n\n[a](none.md) [b](other.md#nowhere)\n",
        other="# Other\n\n[c](#gone)\n",
        orphan="# Orphan\n",
    )
    assert done.returncode != 0
    for told in ("none.md", "#nowhere", "#gone", "orphan.md"):
        assert told in done.stderr, told


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("| `a\\|b` | c |\n", "| `a|b` | c |\n"),
        ("| ``a\\|`b`` | a\\|b |\n", "| ``a|`b`` | a\\|b |\n"),
        ("Grep `a\\|b`.\n", "Grep `a\\|b`.\n"),
        ("```\n| `a\\|b` |\n```\n", "```\n| `a\\|b` |\n```\n"),
    ],
)
def test_a_pipe_in_the_code_of_a_table_has_no_backslash(hook: ModuleType, written: str, shown: str) -> None:
    assert hook.with_plain_pipes(written) == shown


def test_examples_of_a_command_become_a_block(hook: ModuleType) -> None:
    command = click.Command("x", help="Do it.\n\n\b\n  a ─ b", epilog="\b\nExamples:\n  x 1\n  x 2")
    assert hook.help_in_markdown(command) == (
        "Do it.\n\n```text\na ─ b\n```\n\n**Examples:**\n\n```console\nx 1\nx 2\n```\n"
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, as `make docs` builds it."""
    pytest.importorskip("mkdocs", reason="the site needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    (folder / "types").mkdir()
    (folder / "types/qcompile").symlink_to(ROOT)
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = settings.replace("docs_dir: docs", f"docs_dir: {ROOT / 'docs'}")
    settings = settings.replace("docs/hooks/", f"{ROOT / 'docs/hooks'}/")
    (folder / "mkdocs.yml").write_text(settings.replace("build/types", "types").replace("build/site", "site"))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=folder, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_no_code_of_the_site_shows_the_backslash_of_a_pipe(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    cells = [cell for text in pages.values() for cell in re.findall(r"<td[^>]*>.*?</td>", text, re.DOTALL)]
    assert [cell for cell in cells if "\\|" in cell] == []
    assert "<code>quantize --precision fp16|bf16</code>" in pages[site / "quantization.html"]


def test_every_command_of_the_site_shows_its_examples_line_by_line(site: Path, hook: ModuleType) -> None:
    from qcompile.cli.main import group

    page = (site / "reference/commands.html").read_text(encoding="utf-8")
    shown = re.findall(r"<strong>Examples:</strong></p>\n(.*?)</pre>", page, re.DOTALL)
    blocks = [html.unescape(re.sub(r"<[^>]+>", "", block)).strip().splitlines() for block in shown]
    for command in hook.commands_of(group):
        if "Examples:" in (written := f"{command.help}\n\n{command.epilog}"):
            lines = written.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
            assert [line.strip() for line in lines] in blocks, command.name
    assert len(blocks) > 20
    assert "\b" not in page


def test_the_python_reference_shows_parameters_and_return_values_as_items(site: Path) -> None:
    page = (site / "reference/python.html").read_text(encoding="utf-8")
    returned = re.findall(r"Returns:</span></p>\s*<ul>(.*?)</ul>", page, re.DOTALL)
    assert len(returned) > 10
    assert [part.count("<li") for part in returned] == [1] * len(returned)
    assert not re.findall(r"<code>\w+: [A-Z].*", page)  # parameters without the heading "Args:"


TASKS = {
    "Export a model to ONNX": ["models.html"],
    "Make it INT8 for a processor": ["quantization.html"],
    "Build for a GPU that I do not have": ["tensorrt.html#without-a-gpu"],
    "Use my own data and labels": ["data.html"],
    "Limit the loss of accuracy": ["quantization.html#search-within-an-accuracy-budget"],
    "Measure speed honestly": ["measuring.html"],
    "Find the layer that loses accuracy": ["diff.html#layers"],
    "Deploy it": [
        "deploy_triton.html", "deploy_program.html#c", "deploy_program.html#python", "deploy_cpu.html",
    ],
    "Compare two versions in CI": ["gate.html"],
    "Use several machines": ["cluster.html"],
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_the_front_page_leads_to_a_task_in_one_click(site: Path, task: str) -> None:
    front = (site / "index.html").read_text(encoding="utf-8")
    row = re.search(rf"<td>{task}</td>\s*<td>(.*?)</td>", front, re.DOTALL)
    assert row
    links = re.findall(r'href="([^"]+)"', row[1])
    assert links == TASKS[task]
    for link in links:
        file, _, heading = link.partition("#")
        assert (
            f'id="{heading}"' in (site / file).read_text(encoding="utf-8")
            if heading
            else (site / file).is_file()
        )


@pytest.mark.parametrize(("words", "page"), [("labels", "data.html"), ("triton", "deploy_triton.html")])
def test_the_search_finds_the_page_first(site: Path, tmp_path: Path, words: str, page: str) -> None:
    first = "document.querySelector('.md-search-result__item a')?.getAttribute('href') ?? ''"
    with installed_browser(tmp_path / "profile") as browser:
        browser.show(site / "index.html", width=1280, height=900)
        browser.run(
            "const box = document.querySelector('.md-search__input'); box.focus(); "
            f"box.value = {words!r}; box.dispatchEvent(new Event('keyup', {{bubbles: true}}))"
        )
        end = time.monotonic() + 60
        while not (found := str(browser.run(first))) and time.monotonic() < end:
            time.sleep(0.1)
    assert page in found
