"""Files by digest: whole, verified, never changed by those that read them, and forgotten when unused."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qcompile.cluster.files.content import ContentStore
from qcompile.errors import ArtifactError, InvalidOption, StorageError

NOT_DIGESTS = ["", "sha256:", "x", "../../etc/passwd", "sha256:" + "0" * 63, "sha256:" + "A" * 64, None, 3,
               "sha256:" + "0" * 64 + "\n", "sha256:../../" + "0" * 58, "md5:" + "0" * 64]  # fmt: skip


@pytest.fixture
def content(tmp_path: Path) -> Iterator[ContentStore]:
    store = ContentStore(tmp_path / "worker")
    yield store
    store.close()


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def keep(content: ContentStore, data: bytes) -> str:
    writer = content.writer(digest_of(data), len(data))
    assert writer.write(0, data)
    return digest_of(data)


def names(content: ContentStore) -> list[str]:
    """Every file of the store, finished or not."""
    return sorted(path.name for path in content.folder.rglob("*") if path.is_file())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300)), order=st.randoms(use_true_random=False)
)
def test_bytes_in_any_order_arrive_whole(
    data: bytes, cuts: list[int], order: object, content: ContentStore
) -> None:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    chunks = list(zip([0, *ends[:-1]], ends, strict=True))
    chunks += chunks[: len(cuts) % 3]  # some come twice
    order.shuffle(chunks)  # type: ignore[attr-defined]
    writer = content.writer(digest_of(data), len(data))
    came: set[int] = set()
    for begin, end in chunks:
        whole = writer.write(begin, data[begin:end])
        came |= set(range(begin, end))
        left = {byte for span in writer.missing() for byte in range(*span)}
        assert left == set(range(len(data))) - came
        assert whole == (not left)
    path = content.path(digest_of(data))
    assert path is not None
    assert path.read_bytes() == data


def test_a_wrong_digest_gets_no_name(content: ContentStore) -> None:
    writer = content.writer(digest_of(b"right"), 5)
    with pytest.raises(ArtifactError, match="digest"):
        writer.write(0, b"wrong")
    assert names(content) == []
    assert content.path(digest_of(b"right")) is None
    assert keep(content, b"right")


@pytest.mark.parametrize("digest", NOT_DIGESTS)
def test_what_is_no_digest_is_refused(digest: str, content: ContentStore, tmp_path: Path) -> None:
    for call in (content.path, lambda one: content.missing([one]), lambda one: content.writer(one, 1)):
        with pytest.raises(InvalidOption, match="64 hexadecimal digits are required"):
            call(digest)
    with pytest.raises(InvalidOption):
        content.link(digest, tmp_path / "target")


@pytest.mark.parametrize(("offset", "data"), [(-1, b"x"), (3, b"abc"), (6, b""), (0, b"abcdef")])
def test_bytes_outside_of_the_file_are_refused(offset: int, data: bytes, content: ContentStore) -> None:
    writer = content.writer(digest_of(b"right"), 5)
    with pytest.raises(InvalidOption, match="within 5 are required"):
        writer.write(offset, data)
    assert writer.write(0, b"right")


def test_another_size_for_a_digest_is_refused(content: ContentStore) -> None:
    content.writer(digest_of(b"right"), 5).write(0, b"ri")
    with pytest.raises(InvalidOption, match="5 are required"):
        content.writer(digest_of(b"right"), 6)
    assert content.writer(digest_of(b"right"), 5).missing() == [(2, 5)]


def test_threads_write_one_file(content: ContentStore) -> None:
    data = os.urandom(1 << 20)
    digest, step = digest_of(data), 1 << 14

    def write(begins: range) -> None:
        for begin in begins:
            content.writer(digest, len(data)).write(begin, data[begin : begin + step])

    threads = [
        threading.Thread(target=write, args=(range(one * step, len(data), 4 * step),)) for one in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    path = content.path(digest)
    assert path is not None
    assert path.read_bytes() == data
    assert content.moved.files_in == 1


def test_a_link_is_read_only_and_a_copy_is_not(content: ContentStore, tmp_path: Path) -> None:
    digest = keep(content, b"bytes")
    content.link(digest, tmp_path / "a" / "linked")
    content.link(digest, tmp_path / "copied", writable=True)
    assert not (tmp_path / "a" / "linked").stat().st_mode & 0o222
    (tmp_path / "copied").write_bytes(b"changed")
    path = content.path(digest)
    assert path is not None
    assert path.read_bytes() == b"bytes" == (tmp_path / "a" / "linked").read_bytes()
    with pytest.raises(FileExistsError):
        content.link(digest, tmp_path / "copied")
    with pytest.raises(ArtifactError, match="must be brought first"):
        content.link(digest_of(b"absent"), tmp_path / "b")


@pytest.mark.parametrize("adopted", [False, True])
def test_a_file_that_was_changed_through_a_link_is_removed(
    adopted: bool, content: ContentStore, tmp_path: Path
) -> None:
    digest = digest_of(b"bytes")
    if adopted:
        (tmp_path / "made").write_bytes(b"bytes")
        content.adopt(tmp_path / "made", digest)
    else:
        keep(content, b"bytes")
    content.link(digest, tmp_path / "linked")
    os.chmod(tmp_path / "linked", 0o600)
    (tmp_path / "linked").write_bytes(b"other")
    assert content.missing([digest]) == [digest]
    assert content.path(digest) is None
    assert keep(content, b"bytes") == digest
    assert content.missing([digest], verify=True) == []


def test_a_damaged_file_of_the_same_time_is_found_when_it_is_read_again(content: ContentStore) -> None:
    """As a bad disk does, or whoever sets the time back."""
    path = content.path(keep(content, b"bytes"))
    assert path is not None
    before = path.stat()
    os.chmod(path, 0o600)
    path.write_bytes(b"other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert content.missing([digest_of(b"bytes")]) == []
    assert content.missing([digest_of(b"bytes")], verify=True) == [digest_of(b"bytes")]


def test_a_file_that_a_power_cut_emptied_is_missing(content: ContentStore) -> None:
    """Its name and its time were written, its content was not."""
    path = content.path(keep(content, b"bytes"))
    assert path is not None
    changed = path.stat().st_mtime_ns
    os.truncate(path, 0)
    os.utime(path, ns=(changed, changed))
    assert content.missing([digest_of(b"bytes")]) == [digest_of(b"bytes")]


def test_a_file_of_this_machine_is_adopted_without_a_copy(content: ContentStore, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.write_bytes(b"bytes")
    (tmp_path / "link").symlink_to(made)
    content.adopt(tmp_path / "link", digest_of(b"bytes"))
    path = content.path(digest_of(b"bytes"))
    assert path is not None
    assert path.samefile(made)
    assert not path.is_symlink()
    content.adopt(made, digest_of(b"bytes"))
    made.unlink()
    assert content.missing([digest_of(b"bytes")], verify=True) == []
    assert content.moved.files_in == 0


def test_what_cannot_be_linked_is_copied_and_verified(
    content: ContentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    made = tmp_path / "made"
    made.write_bytes(b"bytes")
    content.adopt(made, digest_of(b"bytes"))
    (tmp_path / "empty").write_bytes(b"")
    content.adopt(tmp_path / "empty", digest_of(b""))
    made.write_bytes(b"changed")
    content.link(digest_of(b"bytes"), tmp_path / "linked")
    assert (tmp_path / "linked").read_bytes() == b"bytes"
    assert content.path(digest_of(b"")) is not None
    with pytest.raises(ArtifactError):
        content.adopt(made, digest_of(b"not this"))


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(
    content: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = content.writer(digest_of(b"bytes"), 5)
    writer.write(0, b"by")
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StorageError, match="No space left"):
            writer.write(2, b"tes")
    assert names(content) == []
    assert keep(content, b"bytes")


KILLED = """
import os, sys
from pathlib import Path
from qcompile.cluster.files.content import ContentStore
content = ContentStore(Path(sys.argv[1]))
content.writer(sys.argv[2], 1 << 20).write(0, bytes(1 << 19))
print("written", flush=True)
sys.stdin.read()
"""


def test_a_kill_in_the_middle_leaves_nothing_under_a_name(tmp_path: Path) -> None:
    digest = digest_of(bytes(1 << 20))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "worker"), digest]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    left = [path for path in (tmp_path / "worker").rglob("*") if path.is_file()]
    assert len(left) == 1  # what is not whole
    content = ContentStore(tmp_path / "worker")
    assert content.path(digest) is None
    assert names(content) == []
    content.close()


def test_closing_removes_what_is_not_whole(content: ContentStore) -> None:
    content.writer(digest_of(b"bytes"), 5).write(0, b"by")
    keep(content, b"whole")
    content.close()
    assert names(content) == [digest_of(b"whole").removeprefix("sha256:")]


def age(content: ContentStore, digest: str, days: float) -> None:
    path = content.place(digest)
    os.utime(path, ns=(time.time_ns() - int(days * 86400e9), path.stat().st_mtime_ns))


def test_what_nothing_used_for_two_weeks_is_forgotten(content: ContentStore, tmp_path: Path) -> None:
    old, new, used, linked = (keep(content, name) for name in (b"old", b"new", b"used", b"linked"))
    (tmp_path / "made").write_bytes(b"adopted")
    content.adopt(tmp_path / "made", digest_of(b"adopted"))
    (tmp_path / "made").unlink()
    content.link(linked, tmp_path / "linked")
    for digest in (old, used, linked, digest_of(b"adopted")):
        age(content, digest, 15)
    age(content, new, 13)
    with content.using([used, used]):
        assert content.forget_old() == 2
    assert content.missing([old, new, used, linked, digest_of(b"adopted")]) == [old, digest_of(b"adopted")]
    age(content, used, 15)
    assert content.forget_old() == 1


def test_the_least_recently_used_make_room_first(content: ContentStore) -> None:
    digests = [keep(content, bytes([number]) * 100) for number in range(5)]
    for days, digest in zip((1, 4, 2, 5, 3), digests, strict=True):
        age(content, digest, days)
    with content.using([digests[3]]):  # the oldest of all
        assert content.forget_old(most_bytes=300) == 2
    assert content.missing(digests) == [digests[1], digests[4]]
