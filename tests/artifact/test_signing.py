"""A signature tells who made an artifact; a manifest alone is written by whoever changes the file."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
from pathlib import Path

import pytest

from qcompile.artifact import Manifest, commit
from qcompile.artifact.signing import Key, read_key, sign, signature_path, verify, verify_files, write_key
from qcompile.errors import ArtifactError, InvalidOption, MissingFile
from qcompile.files import manifest_path, write_json, writing

SECRET = bytes(range(32))


def make(path: Path, content: bytes = b"plan", *, data: bytes = b"") -> Path:
    with writing(path) as temporary:
        temporary.write_bytes(content)
        if data:
            temporary.with_name(temporary.name + ".data").write_bytes(data)
        commit(temporary, Manifest(kind="engine", stage="build", warnings=("größer",)))
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A key that its owner alone may read."""
    path = tmp_path / "team.key"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def engine(tmp_path: Path, key: Path) -> Path:
    """A signed artifact."""
    path = make(tmp_path / "m.engine", data=b"weights")
    sign(path, key)
    return path


def test_what_was_signed_is_verified(engine: Path, key: Path) -> None:
    assert verify(engine, key).path == engine
    assert verify(str(engine), read_key(key)).manifest.stage == "build"


def test_the_signature_is_the_hmac_of_the_manifest(engine: Path) -> None:
    """Anybody can reckon it without qcompile."""
    manifest = json.loads(manifest_path(engine).read_text())
    plain = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    expected = hmac.new(SECRET, b"qcompile manifest 1\0" + plain, hashlib.sha256).hexdigest()
    assert json.loads(signature_path(engine).read_text()) == {
        "algorithm": "HMAC-SHA256",
        "key": hmac.new(SECRET, b"qcompile key id", hashlib.sha256).hexdigest()[:16],
        "signature": expected,
        "schema_version": 1,
    }


@pytest.mark.parametrize("side", ["", ".data"])
def test_a_changed_file_is_refused(engine: Path, key: Path, side: str) -> None:
    with engine.with_name(engine.name + side).open("ab") as file:
        file.write(b"!")
    with pytest.raises(ArtifactError, match="differs from its manifest's"):
        verify(engine, key)


def test_a_manifest_that_fits_the_changed_file_is_refused(engine: Path, key: Path) -> None:
    """This is what a manifest alone cannot find."""
    make(engine, b"another plan")
    with pytest.raises(ArtifactError, match="its signature is not that of its manifest") as caught:
        verify(engine, key)
    assert "after it was signed" in caught.value.hint


@pytest.mark.parametrize("name", ["precision", "target", "options", "more"])
def test_a_changed_word_of_the_manifest_is_refused(engine: Path, key: Path, name: str) -> None:
    value = json.loads(manifest_path(engine).read_text())
    new = {"strip_weights": True} if name == "options" else "fp16"
    write_json(manifest_path(engine), value | {name: new})
    with pytest.raises(ArtifactError, match="its signature is not that of its manifest"):
        verify(engine, key)


def test_spaces_and_the_order_of_keys_do_not_count(engine: Path, key: Path) -> None:
    value = json.loads(manifest_path(engine).read_text())
    manifest_path(engine).write_text(json.dumps(dict(reversed(value.items()))))
    verify(engine, key)


def test_the_signature_of_another_artifact_or_key_is_refused(engine: Path, key: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other.engine", b"other")
    with pytest.raises(ArtifactError, match=r"is not signed \(other\.engine\.sig is missing\)"):
        verify(other, key)
    shutil.copy(signature_path(engine), signature_path(other))
    with pytest.raises(ArtifactError, match="its signature is not that"):
        verify(other, key)
    stranger = Key(bytes(range(100, 140)))
    with pytest.raises(ArtifactError, match=rf"and key {stranger.name} are required"):
        verify(engine, stranger)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", "[" * 100_000, '{"algorithm": 5, "key": "a", "signature": "b"}',
        '{"algorithm": "HMAC-SHA256", "key": "a"}', '{"algorithm": "none", "key": "KEY", "signature": ""}',
        '{"algorithm": "HMAC-SHA256", "key": "KEY", "signature": ""}',
        '{"algorithm": "HMAC-SHA256", "key": "KEY", "signature": "ü"}',
        '{"algorithm": "HMAC-SHA256", "key": "\\ud800", "signature": "b"}',
    ],
)  # fmt: skip
def test_what_is_no_signature_is_refused(engine: Path, key: Path, text: str) -> None:
    signature_path(engine).write_text(text.replace("KEY", read_key(key).name))
    with pytest.raises(ArtifactError):
        verify(engine, key)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds 0 bytes; 32"), (b"x" * 31, "holds 31 bytes; 32"),
        (SECRET[:31] + b"\n", "holds 31 bytes"),
        (bytes(64), "is not random"), (os.urandom(70_000), "more than 65536"),
    ],
)  # fmt: skip
def test_a_key_that_can_be_guessed_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "weak.key"
    path.write_bytes(content)
    with pytest.raises(InvalidOption, match=words) as caught:
        read_key(path)
    assert "openssl rand -hex 32" in caught.value.hint
    with pytest.raises(MissingFile):
        read_key(tmp_path / "none.key")


def test_the_end_of_a_line_is_no_part_of_a_key(tmp_path: Path) -> None:
    names = set()
    for end in (b"", b"\n", b"\r\n"):
        path = tmp_path / "a.key"
        path.write_bytes(b"0123456789abcdef" * 4 + end)
        names.add(read_key(path).name)
    assert len(names) == 1


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_key_that_others_may_read_is_warned_of(key: Path) -> None:
    assert read_key(key).warnings == ()
    key.chmod(0o640)
    (warning,) = read_key(key).warnings
    assert f"chmod 600 {key}" in warning


def test_a_new_key_is_its_owners_alone_and_no_file_is_overwritten(tmp_path: Path) -> None:
    made = write_key(tmp_path / "new.key")
    assert made.warnings == ()
    assert len(made.secret) == 64
    assert write_key(tmp_path / "other.key").secret != made.secret
    with pytest.raises(InvalidOption, match="exists already"):
        write_key(tmp_path / "new.key")
    assert read_key(tmp_path / "new.key") == made


def test_what_has_no_manifest_cannot_be_signed(tmp_path: Path, key: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"graph")
    with pytest.raises(ArtifactError, match=r"has no manifest \(m\.onnx\.json\)"):
        sign(tmp_path / "m.onnx", key)
    assert not signature_path(tmp_path / "m.onnx").exists()


def test_files_among_what_is_run_must_be_signed(engine: Path, key: Path, tmp_path: Path) -> None:
    plain = make(tmp_path / "plain.engine")
    assert verify_files([str(plain)], None) == ()
    assert verify_files([str(engine), "model.py:build", "timm:resnet18"], key) == ()
    with pytest.raises(ArtifactError, match="is not signed"):
        verify_files([str(engine), str(plain)], key)
