"""`qcompile package triton`: write a model repository for Triton Inference Server.

A repository has `NAME/config.pbtxt` and `NAME/VERSION/` for each model (Triton, "Model Repository"). A server
may poll the repository. Files are therefore written to a hidden folder, beside the repository if possible,
and renamed: a new model at once; of a new version, its folder and then config.pbtxt. A failure undoes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.artifact import Check
from ...core.files import digest_files, locked_folder, remove_stale
from ...core.files.storage import storage_error
from ...core.progress import Progress, silent
from ...errors import ArtifactError, InvalidOption, QCompileError
from ...model.sources.archives import trust_files
from ...spec.decode import Refused, spec_from_call
from ...spec.looking import TritonOptions, TritonSpec
from .triton_config import (
    Config,
    format_config,
    format_tensors,
    make_config,
    profile_batches,
    tensor_fields,
)
from .triton_model import TritonModel, read_triton_model

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import TritonKeywords

CONFIG = "config.pbtxt"

_HEADER = re.compile(r"# Written by qcompile package triton; what follows is sha256:([0-9a-f]{64})\n")
_NAME = re.compile(r"[^\s/\\.][^\s/\\]*")
_NAME_BYTES = 255


def model_folder(repository: Path, name: str) -> Path:
    """Return the folder of a model; refuse an invalid `name`, or a file in place of a folder."""
    if not _NAME.fullmatch(name) or not name.isprintable() or len(os.fsencode(name)) > _NAME_BYTES:
        problem = "must be usable as a folder and in a URL: no space, slash or control character, and"
        raise Refused("name", f"{problem} no leading dot", value=name)
    for path in (repository, repository / name):
        if path.exists() and not path.is_dir():
            raise InvalidOption(f"output {path}: is a file; a folder is required", option="output")
    return repository / name


def versions_in(folder: Path) -> list[int]:
    """Return the versions of a model: folders named by a number that does not begin with 0."""
    if not folder.is_dir():
        return []
    return sorted(
        int(path.name) for path in folder.iterdir() if path.is_dir() and re.fullmatch(r"[1-9]\d*", path.name)
    )


def is_edited(config: Path) -> bool:
    """Return whether an existing configuration was not written by qcompile, or was changed since."""
    if not config.is_file():
        return False
    header, newline, text = config.read_bytes().partition(b"\n")
    match = _HEADER.fullmatch((header + newline).decode(errors="replace"))
    return not match or hashlib.sha256(text).hexdigest() != match[1]


@contextmanager
def hidden_folder(repository: Path) -> Iterator[Path]:
    """Yield an empty hidden folder on the repository's file system; remove a repository that stays empty."""
    is_new = not repository.is_dir()
    with contextlib.ExitStack() as stack:
        try:
            repository.mkdir(parents=True, exist_ok=True)
            hidden = stack.enter_context(locked_folder(_hidden_parent(repository)))
        except OSError as error:
            raise _translate_os_error(repository, error) from error
        try:
            yield hidden
        finally:
            stack.close()
            if is_new and not any(repository.iterdir()):
                repository.rmdir()


def _translate_os_error(output: Path | str, error: OSError) -> QCompileError:
    """Translate an OSError into a storage error, or into InvalidOption for `output`."""
    usage = isinstance(error, FileExistsError | NotADirectoryError)
    problem = None if usage else storage_error(error)
    return problem or InvalidOption(f"output {output}: {error.strerror} ({error.filename})")


def _hidden_parent(repository: Path) -> Path:
    """Return the parent of hidden folders: if possible outside the repository, which a server may poll."""
    outside = repository.resolve().parent
    same = outside.stat().st_dev == repository.stat().st_dev and os.access(outside, os.W_OK | os.X_OK)
    parent = outside if same else repository
    remove_stale(parent)
    return parent


def copy_files(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files to their places below a new folder, and verify the digests of the copies."""
    try:
        for place, source in files.items():
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            with target.open("rb") as file:
                os.fsync(file.fileno())
            if digest_files([source]) != digest_files([target]):
                raise ArtifactError(f"{source}: its copy {place} differs; it changed meanwhile", file=source)
    except OSError as error:
        raise _translate_os_error(folder.name, error) from error


def put_in_place(staged: Path, folder: Path, version: int) -> None:
    """Move `staged` (a version's folder and the configuration) into the model's folder; undo it on errors."""
    undo: list[tuple[Path, Path]] = []

    def move(source: Path, target: Path) -> None:
        undo.append((target, source))
        os.rename(source, target)

    try:
        if not folder.exists():
            move(staged, folder)
            return
        replaced = staged.with_name("replaced")
        replaced.mkdir()
        for name in (str(version), CONFIG):
            if (folder / name).exists():
                move(folder / name, replaced / name)
            move(staged / name, folder / name)
    except BaseException as error:
        for target, source in reversed(undo):
            if target.exists() and not source.exists():
                os.rename(target, source)
        if isinstance(error, OSError):
            raise _translate_os_error(folder, error) from error
        raise


@dataclass(frozen=True)
class Packaged:
    """A model in a repository.

    Attributes:
        folder, name: The model's folder, and its name in requests.
        versions: All versions in the repository after packaging.
        max_batch_size: Largest batch that Triton forms; 0 without batching.
        config: The text of `config.pbtxt`.
        files: Files of this version, relative to its folder.
        server: The command that serves the repository.
    """

    folder: Path
    name: str
    version: int
    versions: Sequence[int]
    backend: str
    max_batch_size: int
    config: str
    files: Sequence[str]
    checks: Sequence[Check]
    warnings: Sequence[str]
    server: str

    def as_json(self) -> dict[str, object]:
        """Return the form that `--json` prints."""
        return {**asdict(self), "folder": str(self.folder)}


def package_triton(
    artifact: str | Path,
    repository: str | Path,
    spec: TritonOptions | None = None,
    /,
    *,
    progress: Progress = silent,
    **keywords: Unpack[TritonKeywords],
) -> Packaged:
    """Put an artifact into a Triton model repository, with its configuration and its manifest.

    Other versions remain. All share one configuration, so their inputs, outputs and number of profiles must
    be equal. The configuration is rewritten; if a user changed it, `overwrite` is required.

    Args:
        artifact: An engine of target "tensorrt", an ONNX file or TorchScript.
        repository: Model repository of the server; created if missing.
        spec: All options as one object.
        progress: Called at every step.
        keywords: Fields of `TritonSpec` by name; they override those of `spec`. `name` is required.

    Returns:
        The packaged model, with checks and warnings.

    Raises:
        MissingFile, ArtifactError, ModelError: If the artifact is missing, damaged, unsupported by Triton, or
            for another backend than the existing versions.
        InvalidOption: If an option is wrong or conflicts with the existing model; nothing is written then.
    """
    checked = spec_from_call(TritonSpec, spec, keywords)
    repository, name, version = Path(repository), checked.name, checked.version
    folder = model_folder(repository, name)
    present = [number for number in versions_in(folder) if number != version]
    _check_place(folder, present, checked)
    progress("check the artifact")
    with trust_files(checked.trust):
        model = read_triton_model(Path(artifact))
        config = make_config(model, name, checked)
        for number in present:
            _check_same(model, config, folder, number)
    text = format_config(config.fields)
    digest = hashlib.sha256(text.encode()).hexdigest()
    text = f"# Written by qcompile package triton; what follows is sha256:{digest}\n{text}"
    with hidden_folder(repository) as temporary:
        staged = temporary / name
        progress("copy")
        copy_files(model.files, staged / str(version))
        (staged / CONFIG).write_text(text, encoding="utf-8")
        put_in_place(staged, folder, version)
    server = ["tritonserver", f"--model-repository={repository.resolve()}", *config.server_options]
    return Packaged(
        folder, name, version, versions_in(folder), model.backend.name, config.max_batch_size, config=text,
        files=list(model.files), checks=list(model.checks), warnings=list(config.notes),
        server=shlex.join(server),
    )  # fmt: skip


def _check_place(folder: Path, present: Sequence[int], spec: TritonSpec) -> None:
    """Without `overwrite`, refuse an existing version and an edited configuration; refuse a policy that names
    absent versions."""
    version = spec.version
    if (folder / str(version)).exists() and not spec.overwrite:
        hint = f"give `version` {max([version, *present]) + 1}, or `overwrite`"
        raise InvalidOption(f"{folder}: version {version} exists", hint=hint, option="version")
    if is_edited(folder / CONFIG) and not spec.overwrite:
        problem = f"{folder / CONFIG}: was not written by qcompile, or was changed since"
        hint = "`overwrite` replaces it; keep a copy of your changes"
        raise InvalidOption(problem, hint=hint, option="overwrite")
    absent = sorted(set(spec.specific_versions) - {version, *present})
    if absent:
        raise Refused("version_policy", f"version {', '.join(map(str, absent))} is not in {folder}")


def _check_same(model: TritonModel, config: Config, folder: Path, version: int) -> None:
    """Refuse a model if its configuration cannot serve the existing `version` as well."""
    existing = _read_version(model, folder, version)
    batched = config.max_batch_size > 0
    tensors, existing_tensors = (tensor_fields(each, batched=batched) for each in (model, existing))
    differing = (
        (format_tensors(existing_tensors), format_tensors(tensors)) if tensors != existing_tensors else ()
    )
    if not differing and len(existing.profiles) != len(model.profiles):
        differing = f"{len(existing.profiles)} optimization profiles", str(len(model.profiles))
    if differing:
        problem = f"{folder}: version {version} has {differing[0]}; this one has {differing[1]}"
        hint = "give another `name`: one configuration serves all versions of a model"
        raise InvalidOption(problem, hint=hint)
    size = config.max_batch_size
    largest = max((last for _, last in profile_batches(existing)), default=size)
    if size > largest:
        problem = f"{folder}: version {version} takes batches up to {largest}; this one up to {size}"
        hint = f"give `max_batch_size` {largest}, or another `name`"
        raise InvalidOption(problem, hint=hint, option="max_batch_size")


def _read_version(model: TritonModel, folder: Path, version: int) -> TritonModel:
    """Return an existing version, read from its files; it may have been made by another tool."""
    file = folder / str(version) / model.backend.file
    file = file / model.backend.file if file.is_dir() else file
    subject, hint = f"{folder}: version {version}", "give another `name`"
    try:
        existing = read_triton_model(file, verify=False)
    except QCompileError as error:
        problem = f"{subject} cannot be compared with this one: {error.message}"
        raise InvalidOption(problem, hint=hint) from error
    if existing.backend is not model.backend:
        problem = f"is for the {existing.backend.name} backend; this one is for {model.backend.name}"
        raise ArtifactError(f"{subject} {problem}", hint=hint, file=file)
    return existing
