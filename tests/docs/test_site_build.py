"""`make docs` fails where a reader would stumble: MkDocs builds small sites, as the Makefile calls it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra docs")
ROOT = Path(__file__).resolve().parents[2]


def build(folder: Path, **pages: str) -> subprocess.CompletedProcess[str]:
    """Build pages with the repository's settings; all but `orphan` have a place."""
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
