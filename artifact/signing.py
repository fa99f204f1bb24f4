"""Sign artifacts, and verify who signed them, with a key that two sides share.

`model.engine.sig` lies beside `model.engine` and its manifest: the HMAC-SHA256 of the manifest, which holds
the digest of the file. Who has the key can sign. Without it, no change of file or manifest stays unnoticed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ArtifactError, InvalidOption
from ..files import manifest_path, read_json, require_file, write_json, writing
from . import Artifact, digest_artifact
from .manifest import Manifest, decode_manifest

ALGORITHM = "HMAC-SHA256"
KEY_BYTES = 32
"""Least length of a key."""
_LONGEST_KEY = 1 << 16
_PURPOSE, _KEY_ID = b"qcompile manifest 1\0", b"qcompile key id"


@dataclass(frozen=True)
class Signature:
    """What a signature file holds.

    Attributes:
        algorithm: "HMAC-SHA256".
        key: Which key made it: no part of the key.
        signature: Hexadecimal.
        schema_version: Of the file's form.
    """

    algorithm: str
    key: str
    signature: str
    schema_version: int = 1


@dataclass(frozen=True)
class Key:
    """A key, and what the user should know of its file."""

    secret: bytes
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Tells keys apart without telling what they are."""
        return hmac.digest(self.secret, _KEY_ID, hashlib.sha256).hex()[:16]

    def sign(self, manifest: Any) -> str:
        """Return the signature of a manifest, as JSON has it: spaces and the order of keys do not count."""
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        return hmac.digest(self.secret, _PURPOSE + text, hashlib.sha256).hex()


def signature_path(artifact: Path) -> Path:
    """Return where the signature of an artifact lies."""
    return artifact.with_name(artifact.name + ".sig")


def write_key(path: Path) -> Key:
    """Write a new random key that its owner alone may read; an existing file is left alone.

    Raises:
        InvalidOption: If the file exists.
    """
    if path.exists():
        raise InvalidOption(f"key {path}: exists already; a new file is required", option="key")
    with writing(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_hex(KEY_BYTES) + "\n", encoding="ascii")
    return read_key(path)


def read_key(path: Path) -> Key:
    """Read a key: any file of 32 bytes or more that nobody can guess; line ends at its end do not count.

    Raises:
        MissingFile: If it is not there.
        InvalidOption: If it is too short, too long, or no random text.
    """
    require_file(path, what="key")
    with path.open("rb") as file:
        content = file.read(_LONGEST_KEY + 1)
        mode = os.fstat(file.fileno()).st_mode
    secret = content.rstrip(b"\r\n")
    hint = "make one: qcompile sign ARTIFACT with `new_key`, or openssl rand -hex 32"
    if not KEY_BYTES <= len(secret) <= _LONGEST_KEY:
        size = f"more than {_LONGEST_KEY}" if len(secret) > _LONGEST_KEY else str(len(secret))
        raise InvalidOption(
            f"key {path}: holds {size} bytes; {KEY_BYTES} to {_LONGEST_KEY} are required",
            hint=hint,
            option="key",
        )
    if len(set(secret)) < 8:
        raise InvalidOption(f"key {path}: is not random; a random key is required", hint=hint, option="key")
    others = os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO)
    warning = f"key {path}: others may read or write it (mode {stat.S_IMODE(mode):o}): chmod 600 {path}"
    return Key(secret, (warning,) if others else ())


def sign(artifact: str | Path, key: Key | str | Path) -> Signature:
    """Write the signature of an artifact beside it.

    Args:
        artifact: A file with its manifest.
        key: The key or its file.

    Raises:
        MissingFile, InvalidOption: If the artifact or the key is not there, or the key cannot be used.
        ArtifactError: If the artifact has no manifest, or is not what it says.
    """
    path, key = Path(artifact), _key(key)
    value, _ = _described(path)
    signature = Signature(ALGORITHM, key.name, key.sign(value))
    write_json(signature_path(path), asdict(signature))
    return signature


def verify(artifact: str | Path, key: Key | str | Path) -> Artifact:
    """Return an artifact that was signed with a key and has not been changed since.

    Args:
        artifact: A file with its manifest and its signature.
        key: The key or its file.

    Raises:
        MissingFile, InvalidOption: As `sign`.
        ArtifactError: If it is not signed, was signed with another key, or was changed.
    """
    path, key = Path(artifact), _key(key)
    value, manifest = _described(path)
    beside = signature_path(path)
    if not beside.is_file():
        raise ArtifactError(
            f"{path}: is not signed ({beside.name} is missing)",
            hint="have it signed by who made it: qcompile sign",
            file=path,
        )
    found = _read_signature(beside)
    if found.algorithm != ALGORITHM or not hmac.compare_digest(found.key.encode(), key.name.encode()):
        raise ArtifactError(
            f"{beside}: made with {found.algorithm} and key {found.key}; {ALGORITHM} and key {key.name} are "
            "required",
            hint="give the key that it was signed with, or have it signed again",
            file=path,
        )
    if not hmac.compare_digest(found.signature.encode(), key.sign(value).encode()):
        raise ArtifactError(
            f"{path}: its signature is not that of its manifest",
            hint="it was changed or made again after it was signed; do not run it unless you know why",
            file=path,
        )
    return Artifact(path, manifest)


def verify_files(texts: Iterable[str], key: Path | None) -> tuple[str, ...]:
    """Verify those of some ARTIFACTs and MODELs that are files, if there is a key; return its warnings."""
    if key is None:
        return ()
    read = read_key(key)
    for path in (Path(text) for text in texts):
        if path.is_file():
            verify(path, read)
    return read.warnings


def _described(path: Path) -> tuple[Any, Manifest]:
    """The manifest as JSON and as read, of a file that is what it says. It is read once."""
    require_file(path, what="artifact")
    beside = manifest_path(path)
    if not beside.is_file():
        raise ArtifactError(
            f"{path}: has no manifest ({beside.name}), which is what is signed",
            hint="sign what qcompile made, with its manifest beside it",
            file=path,
        )
    value = read_json(beside, what="a manifest")
    manifest = decode_manifest(value, beside)
    digest = digest_artifact(path)
    if not hmac.compare_digest(digest.encode(), manifest.digest.encode()):
        raise ArtifactError(
            f"{path}: digest {digest[:19]}… differs from its manifest's {manifest.digest[:19]}…",
            hint="the file was changed after it was made; make it again",
            file=path,
        )
    return value, manifest


def _read_signature(path: Path) -> Signature:
    value = read_json(path, what="a signature")
    try:
        found = msgspec.convert(value, Signature)
        f"{found.algorithm}{found.key}{found.signature}".encode("ascii")
        return found
    except ValueError as error:
        raise ArtifactError(f"{path}: not a signature ({error})", hint="sign again", file=path) from error


def _key(key: Key | str | Path) -> Key:
    return key if isinstance(key, Key) else read_key(Path(key))
