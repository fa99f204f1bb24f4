"""The digest of a data set is that of what its files hold now."""

from __future__ import annotations

from pathlib import Path

from qcompile.data.readers import digest_contents


def test_a_file_that_is_rewritten_at_once_has_another_digest(tmp_path: Path) -> None:
    path = tmp_path / "sample"
    digests = []
    for number in range(200):  # of equal size, and faster than the clock of the file system ticks
        path.write_text(f"{number:03}")
        digests.append(digest_contents([path]))
    assert len(set(digests)) == 200
