"""The site: links of pages lead somewhere, and `make docs` fails where a reader would stumble."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """The file that MkDocs loads by its path."""
    place = importlib.util.spec_from_file_location("site_links", ROOT / "docs/hooks/site_links.py")
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
    """Build pages as the Makefile does, with the repository's settings; all but `orphan` have a place."""
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
