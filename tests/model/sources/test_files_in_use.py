"""The digest of a function covers the files that its code may open, and no other file beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qcompile.model.sources.source import digest_source, parse_source


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("torch.load('a.pt')", ["a.pt"]),
        ("open(f'{part}.json')", ["a.pt", "b.json", "c.json"]),  # b.json names a.pt
        ("Path(__file__).with_suffix('.pt')", ["a.pt", "d.pt"]),
        ("folder.glob('*.json')", ["a.pt", "b.json", "c.json"]),
        ("library.read('c')", ["c.json"]),
        ("json.load(open('b.json'))", ["a.pt", "b.json"]),
        ("folder.iterdir()", ["a.pt", "b.json", "c.json", "d.pt"]),
        ("os.environ['WEIGHTS']", ["a.pt", "b.json", "c.json", "d.pt"]),
        ("f'w.{kind}'", ["a.pt", "b.json", "c.json", "d.pt"]),
        ("log.json(path)", []),
    ],
)
def test_the_digest_covers_the_files_that_the_code_may_open(
    tmp_path: Path, code: str, names: list[str]
) -> None:
    spec = f"{tmp_path}/net.py:build"
    (tmp_path / "net.py").write_text(f"def build(): ...\n\n{code}\n")
    paths = [tmp_path / name for name in ("a.pt", "b.json", "c.json", "d.pt")]
    for path in paths:
        path.write_text('{"weights": "a.pt"}' if path.stem == "b" else "")
    digests = [digest_source(parse_source(spec))]
    for path in paths:
        path.write_text(f"{path.read_text()} ")
        digests.append(digest_source(parse_source(spec)))
    covered = [p.name for p, old, new in zip(paths, digests, digests[1:], strict=False) if old != new]
    assert covered == names
