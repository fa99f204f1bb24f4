"""The digest of a function covers the files that its code may open, and no others."""

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
    (tmp_path / "net.py").write_text(
        f"import torch\n\ndef build():\n    return torch.nn.Linear(2, 3)\n{code}\n"
    )
    source, covered = parse_source(f"{tmp_path / 'net.py'}:build"), list[str]()
    for name in ("a.pt", "b.json", "c.json", "d.pt"):
        (tmp_path / name).write_text('{"weights": "a.pt"}' if name == "b.json" else "")
    before = digest_source(source)
    for path in sorted(tmp_path.glob("?.*")):
        content = path.read_text()
        path.write_text(f"{content} ")
        covered += [path.name] if digest_source(source) != before else []
        path.write_text(content)
    assert covered == names
