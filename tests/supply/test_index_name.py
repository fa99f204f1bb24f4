"""No text of the repository asks a package index for `qcompile`, somebody else's, or for `qcompile-onnx`.

pip, pipx, uv, Poetry, PDM and conda ask an index for a bare name, with or without extras and versions.
They ask none for a wheel file, a folder or `NAME @ URL`.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaged import ROOT

OWN_SAMPLES = "tests/supply/test_index_name.py"
TOOLS = re.compile(r"(?<![\w.-])(?:pip[\d.]*|pipx|uvx?|poetry|pdm|rye|conda|mamba|pixi)(?= )([^\n`#;|&]*)")
INSTALLS = ("install", "download", "wheel", "add", "upgrade", "update", "versions", "inject")
RUNS = ("uvx", "uv tool run", "pipx run")
NAME = r"qcompile(?:[-_.]onnx)?"
BARE = re.compile(rf"{NAME}(?:\[[^\]]*\]?)?(?:[<>=!~].*)?", re.I)
EXTRAS = re.compile(r"(?<![\w./-])qcompile\\*\[", re.I)
"""Those of the other project, in whatever text."""
LINES = re.compile(
    rf"^ *(?:- *)?[\"']?{NAME} *(?:[<>~!=]=|[<>])"  # a requirement
    rf"|^ *- *[\"']?{NAME}[\"']? *$"  # of conda, in YAML
    rf"|^ *{NAME} *= *[\"'{{]"  # of Poetry
    rf"|\bdependencies\b[^\n\]]*[\"']{NAME}[\"' <>~!=\[]",
    re.I | re.M,
)


def asked_for(text: str) -> Iterator[str]:
    """Yield the commands and requirements of a text that ask an index."""
    text = text.replace("\\\n", " ")
    yield from (found[0].strip() for pattern in (EXTRAS, LINES) for found in pattern.finditer(text))
    for found in TOOLS.finditer(re.sub(r"[\"'], *\n? *[\"']", " ", text)):  # argument lists of Python, too
        if any(BARE.fullmatch(word) for word in requirements(found[0])):
            yield found[0].strip()


def requirements(command: str) -> list[str]:
    """Return the words that a command takes as requirements, without what `NAME @ URL` names."""
    words = [word.strip("\"'\\()") for word in re.sub(r" *([<>=!~]=|[<>]) *", r"\1", command).split()]
    words = [word if "[" in word else word.rstrip("]\"'") for word in words]
    run = next((run for run in RUNS if command.startswith(f"{run} ")), "")
    if run:
        positional = [word for word in words[len(run.split()) :] if not word.startswith("-")]
        return [] if {"--from", "--spec"} & set(words) else positional[:1]
    verb = next((place for place, word in enumerate(words) if word in INSTALLS), len(words))
    skipped = 1 + (words[verb : verb + 1] == ["inject"])  # its first word is an environment
    taken = []
    for word, after in itertools.pairwise([*words[verb + skipped :], ""]):
        if after != "@":
            taken.append(word.rstrip(",.:"))
        if word != "." and word[-1:] in (",", ".", ":"):  # a sentence goes on
            break
    return taken


def strings(source: str) -> Iterator[str]:
    """Yield the strings of a Python file, as they are when adjacent ones are joined."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def in_file(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    texts = [text, *(strings(text) if path.suffix == ".py" else ())]
    return {found for one in texts for found in asked_for(one)}


def tracked() -> list[Path]:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in done.stdout.split("\0") if name and name != OWN_SAMPLES]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:8192]]


def test_no_file_asks_an_index_for_either_name() -> None:
    paths = tracked()
    names = {"README.md", "setup.cfg", "Makefile", "Dockerfile", "tutorial.ipynb", "gitlab.yml", "doctor.py"}
    assert names <= {path.name for path in paths}
    assert {str(path.relative_to(ROOT)): asked for path in paths if (asked := in_file(path))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "python -m pip install 'qcompile[torch,cpu]'", "pip3 install --upgrade qcompile==0.3.0",
        "%pip install QCompile", "RUN pip install \\\n    --no-cache-dir \\\n    qcompile_onnx",
        "pip install torch qcompile, then run it", "pipx inject qcompile-onnx qcompile-onnx[cpu]",
        "pipx runpip qcompile install 'qcompile[openvino]'", "uv tool run qcompile", "poetry add qcompile",
        "conda install -c conda-forge qcompile", "hint: qcompile[cuda]", "- qcompile>=0.3",
        'dependencies = ["numpy", "qcompile"]', 'qcompile = "^0.3"',
        '[sys.executable, "-m", "pip", "install",\n "qcompile"]',
    ],
)  # fmt: skip
def test_a_text_that_asks_an_index_is_found(text: str) -> None:
    assert list(asked_for(text))


def test_a_command_in_joined_strings_is_found(tmp_path: Path) -> None:
    (tmp_path / "hint.py").write_text(
        'hint = ("pip install "\n    "qcompile")\nmore = f"pip install {x} " f"qcompile"\n'
    )
    assert in_file(tmp_path / "hint.py") == {"pip install qcompile", "pip install {} qcompile"}


@pytest.mark.parametrize(
    "text",
    [
        "pip install -c constraints.txt -e '.[cpu,openvino]' scikit-learn", "pip install ./qcompile",
        'pip install "qcompile-onnx[cpu] @ file:///tmp/dist/qcompile_onnx-0.3.0-py3-none-any.whl"',
        "pip install 'openvino>=2024.4'    # for qcompile", "pip uninstall -y qcompile",
        "pipx runpip qcompile-onnx install 'openvino>=2024.4'", "pipx inject qcompile-onnx PACKAGE",
        "uvx --from 'dist/qcompile_onnx-0.3.0-py3-none-any.whl[cpu]' qcompile doctor",
        "`pip install openvino`, and `qcompile doctor` says so", "docker build -t qcompile .",
        "pip install openvino, then qcompile doctor", '{"qcompile": "0.3.0"}', "qcompile.cli:main",
    ],
)  # fmt: skip
def test_a_text_that_asks_none_is_left_alone(text: str) -> None:
    assert not list(asked_for(text))
