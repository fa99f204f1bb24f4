"""`qcompile package triton`: write a model repository for Triton Inference Server.

A model's folder is `NAME/config.pbtxt` and `NAME/VERSION/` (Triton, "Model Repository"). Everything is made
in a hidden folder beside the repository, which a server may be watching, and moved in whole: a new model by
one rename; a new version first, then the configuration. What fails in between is taken back.
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
    make_config,
    profile_batches,
    spelled,
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
    """Return where a model lies."""
    if not _NAME.fullmatch(name) or not name.isprintable() or len(os.fsencode(name)) > _NAME_BYTES:
        problem = "is the name of a folder and part of an address; no space, slash or control character, and"
        raise Refused("name", f"{problem} no dot at its beginning", value=name)
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


def edited(config: Path) -> bool:
    """Whether a configuration that is there is another's, or ours with changes."""
    if not config.is_file():
        return False
    header, newline, text = config.read_bytes().partition(b"\n")
    match = _HEADER.fullmatch((header + newline).decode(errors="replace"))
    return not match or hashlib.sha256(text).hexdigest() != match[1]


@contextmanager
def beside(repository: Path) -> Iterator[Path]:
    """Yield an empty hidden folder from which files can be renamed into the repository."""
    is_new = not repository.is_dir()
    with contextlib.ExitStack() as stack:
        try:
            repository.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(locked_folder(_place(repository)))
        except OSError as error:
            raise _refused(repository, error) from error
        try:
            yield temporary
        finally:
            stack.close()
            if is_new and not any(repository.iterdir()):
                repository.rmdir()


def _refused(output: Path | str, error: OSError) -> QCompileError:
    """What the file system says: a disk's problem, or a folder that cannot be one."""
    usage = isinstance(error, FileExistsError | NotADirectoryError)
    problem = None if usage else storage_error(error)
    return problem or InvalidOption(f"output {output}: {error.strerror} ({error.filename})")


def _place(repository: Path) -> Path:
    """A server that polls its repository takes every folder in it for a model: rather beside than inside."""
    outside = repository.resolve().parent
    same = outside.stat().st_dev == repository.stat().st_dev and os.access(outside, os.W_OK | os.X_OK)
    parent = outside if same else repository
    remove_stale(parent)
    return parent


def copy_files(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files to their places below a new folder, and compare what arrived."""
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
        raise _refused(folder.name, error) from error


def put_in_place(staged: Path, folder: Path, version: int) -> None:
    """Move `staged` (a version's folder and the configuration) to where the model lies, or change nothing."""
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
            raise _refused(folder, error) from error
        raise


@dataclass(frozen=True)
class Packaged:
    """A model in a repository.

    Attributes:
        folder, name: Of the model, as requests spell it.
        versions: All that are there now.
        max_batch_size: Largest batch that Triton forms; 0 for none.
        config: The text of `config.pbtxt`.
        files: What was written for the version, below its folder.
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

    Versions that are there stay, and must have the same inputs, outputs and profiles: one configuration
    serves them all. It is written anew, unless somebody changed it.

    Args:
        artifact: An engine of target "tensorrt", an ONNX file or TorchScript.
        repository: Folder that the server is started with; made where it is missing.
        spec: What Triton is told beside the model.
        progress: Told of every step.
        keywords: Fields of `TritonSpec` by name, in place of those of `spec`; `name` is required.

    Returns:
        What was written, checked, and should be known.

    Raises:
        MissingFile, ArtifactError, ModelError: If the artifact is missing, damaged, or nothing Triton serves.
        InvalidOption: If an option or the model that is there stands against it. Nothing is then written.
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
    with beside(repository) as temporary:
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
    """Refuse what would take something away that nobody said may go."""
    version = spec.version
    if (folder / str(version)).exists() and not spec.overwrite:
        hint = f"give `version` {max([version, *present]) + 1}, or `overwrite`"
        raise InvalidOption(f"{folder}: version {version} is there", hint=hint, option="version")
    if edited(folder / CONFIG) and not spec.overwrite:
        problem = f"{folder / CONFIG}: was not written by qcompile, or was changed since"
        hint = "`overwrite` replaces it; keep a copy of your changes"
        raise InvalidOption(problem, hint=hint, option="overwrite")
    absent = sorted(set(spec.specific_versions) - {version, *present})
    if absent:
        raise Refused("version_policy", f"version {', '.join(map(str, absent))} is not in {folder}")


def _check_same(model: TritonModel, config: Config, folder: Path, version: int) -> None:
    """Refuse a model whose version beside this one could not be served by this one's configuration."""
    before = _read_version(model, folder, version)
    batched = config.max_batch_size > 0
    mine, theirs = (tensor_fields(each, batched=batched) for each in (model, before))
    differing = (spelled(theirs), spelled(mine)) if mine != theirs else ()
    if not differing and len(before.profiles) != len(model.profiles):
        differing = f"{len(before.profiles)} optimization profiles", str(len(model.profiles))
    if differing:
        problem = f"{folder}: version {version} has {differing[0]}; this one has {differing[1]}"
        hint = "give another `name`: one configuration serves all versions of a model"
        raise InvalidOption(problem, hint=hint)
    size = config.max_batch_size
    most = max((last for _, last in profile_batches(before)), default=size)
    if size > most:
        problem = f"{folder}: version {version} takes batches up to {most}; this one up to {size}"
        hint = f"give `max_batch_size` {most}, or another `name`"
        raise InvalidOption(problem, hint=hint, option="max_batch_size")


def _read_version(model: TritonModel, folder: Path, version: int) -> TritonModel:
    """A version that is there already, read as it lies: Triton names its files, not its maker."""
    file = folder / str(version) / model.backend.file
    file = file / model.backend.file if file.is_dir() else file
    subject, hint = f"{folder}: version {version}", "give another `name`"
    try:
        before = read_triton_model(file, verify=False)
    except QCompileError as error:
        problem = f"{subject} cannot be compared with this one: {error.message}"
        raise InvalidOption(problem, hint=hint) from error
    if before.backend is not model.backend:
        problem = f"is for the {before.backend.name} backend; this one is for {model.backend.name}"
        raise ArtifactError(f"{subject} {problem}", hint=hint, file=file)
    return before
