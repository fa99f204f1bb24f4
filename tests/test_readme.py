"""What the README promises is run, from the wheel: no command sees the repository."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from packaged import build, copy_source, environment, share_all
from readme_walk import README, ROOT, block, check_python, check_walk, copy_example

PROMISES = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
WRITTEN = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")))
DOCUMENTS = (
    *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
)  # fmt: skip
VERSIONS = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with a copy of the example."""
    return copy_example(tmp_path)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of an environment with the wheel, and every package of this one but the repository."""
    folder = tmp_path_factory.mktemp("installed")
    made = environment(folder / "environment", build(copy_source(folder / "source"), folder / "dist"))
    share_all(made)
    return made


def test_the_example_and_the_walk_of_the_readme_work_line_by_line(workplace: Path, programs: Path) -> None:
    printed = check_walk(programs, workplace)
    claimed = re.search(r'proves that "(.*?)"', README, re.S)
    assert claimed
    assert " ".join(claimed[1].split()) in " ".join(printed.split())
    for column in ("speed-up", "accuracy", "output SNR"):
        assert column in printed


def test_the_python_of_the_readme_works(workplace: Path, programs: Path) -> None:
    check_python(programs, workplace)


def test_the_example_and_the_walk_show_every_stage() -> None:
    lines = [*block("example", "console").splitlines(), *block("walk", "console").splitlines()]
    assert {shlex.split(line)[1] for line in lines} >= {
        "export", "simplify", "calibrate", "quantize", "build", "diff", "bench", "package", "tune",
        "inspect",
    }  # fmt: skip
    assert len(block("example", "console").splitlines()) == 5


def test_the_readme_fits_90_lines() -> None:
    assert README.count("\n") <= 90


def test_every_promise_names_tests_that_there_are() -> None:
    rows = re.findall(r"^\| ([A-Z`].*?) \| (.*?) \|$", PROMISES, re.M)
    assert len(rows) > 15
    tests = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)\(", tests, re.M))
    for promise, names in rows:
        named = re.findall(r"`(test_\w+)`", names)
        assert named, promise
        assert set(named) <= defined, f"{promise}: {set(named) - defined}"


def test_the_readme_names_the_commands_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_heading_that_a_link_names_exists() -> None:
    for document in WRITTEN:
        for target, heading in re.findall(r"\]\(([^)#]*)#([^)]+)\)", document.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                text = (document.parent / target if target else document).read_text(encoding="utf-8")
                titles = re.findall(r"^#+ (.*)$", text, re.M)
                known = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
                assert heading in known, f"{document.name}: {target}#{heading}"


def test_the_recipe_of_the_guide_is_read(tmp_path: Path) -> None:
    from qcompile.pipeline.recipe.recipe import read_recipe

    text = (ROOT / "docs/recipe.md").read_text(encoding="utf-8")
    shown = re.search(r"```toml\n(.*?)```", text, re.S)
    assert shown
    (tmp_path / "recipe.toml").write_text(shown[1])
    assert [one.name for one in read_recipe(tmp_path / "recipe.toml").artifact] == ["cpu-int8", "gpu-int8"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_document_names_a_tag_or_a_script_that_the_tree_lacks(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert not [version for version in VERSIONS if re.search(rf"\bv{re.escape(version)}\b", text)]
    named = set(re.findall(r"\b(?:tests|examples)/[\w/.-]*\.(?:py|toml|jsonl)\b", text))
    assert not {path for path in named if not (ROOT / path).is_file()}


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.name)
def test_every_path_that_a_document_names_exists(document: Path) -> None:
    path = r"`((?:[\w.-]+/)+|(?:[\w.-]+/)+[\w.-]+\.py|[\w-]+\.py)`"
    named = re.findall(path, document.read_text(encoding="utf-8"))
    folders = (ROOT, ROOT / "tests", ROOT / "tests/engines/tensorrt")
    missing = {path for path in named if not any((folder / path).exists() for folder in folders)}
    assert not missing, f"{document.name} names {missing}"


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.name)
def test_every_option_that_a_document_names_exists(document: Path) -> None:
    from reference_pages import verbs

    known = {
        flag
        for _, made in verbs()
        for option in made.get_params(click.Context(made))
        for flag in (*option.opts, *option.secondary_opts)
    }
    known |= {"--help", "--json", "--version"}
    foreign = {
        "--slow", "--without-halves",  # pytest
        "--onnx", "--saveEngine", "--loadEngine", "--minShapes", "--calib", "--fp16", "--bf16",  # trtexec
        "--int8", "--best", "--noTF32", "--noSpinWait", "--useCudaGraph", "--noCudaGraph",  # trtexec
        "--useSpinWait", "--includeDataTransfers", "--noDataTransfers",  # trtexec
        "--trt", "--onnxrt", "--data-loader-script",  # polygraphy
        "--governor", "--query-gpu", "--format",  # cpupower, nvidia-smi
        "--disable-auto-complete-config", "--model-repository", "--rm", "--gpus",  # Triton, docker
        "--build-arg", "--network", "--from", "--with", "--index-url", "--dry-run",  # docker, uvx, pip
        "--force-reinstall",  # pip
        "--results", "--table", "--list-of", "--no-deps",  # architectures/walk.py, and pip for it
        "--torch-python", "--torch-path", "--python-version", "--only-binary",  # gpu_day.py, pip
        "--show-values",  # polygraphy
        "--protocol", "--tls-ca-file", "--scheduler-file", "--dashboard-address",  # dask scheduler
        "--request-rate-range", "--concurrency-range", "--measurement-interval",  # perf_analyzer
        "--bundle",  # cosign
        "--gres", "--ntasks-per-node", "--cpus-per-task",  # srun
        "--host", "--nthreads",  # dask worker
    }  # fmt: skip
    option = r"(?<![\w-])--[a-z][A-Za-z0-9-]*"
    named = set(re.findall(option, document.read_text(encoding="utf-8")))
    assert named <= known | foreign, f"{document.name} names {named - known - foreign}"
