"""The map of DESIGN: arrows run one way, only cli/ prints, nothing is unpickled or run by a shell."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = (
    "spec", "core", "model", "data", "calibration", "compiler", "engines", "building", "bench", "pipeline",
    "cli",
)  # fmt: skip
SOURCES = sorted(
    path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] in ROOMS or path.parent == ROOT
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# A room may import itself and those listed; modules at the root are named by their own name.
BELOW = {"errors", "version", "spec", "core", "model", "data", "calibration"}
ALLOWED = {
    "version": set[str](),
    "errors": set[str](),
    "spec": {"errors"},
    "core": {"errors", "version", "spec"},
    "model": {"errors", "version", "spec", "core"},
    "data": BELOW - {"calibration"},
    "calibration": BELOW,
    "compiler": BELOW,
    "engines": BELOW,
    "building": BELOW | {"compiler", "engines"},
    "bench": BELOW | {"engines"},
    "pipeline": BELOW | {"compiler", "engines", "building", "bench"},
    "cli": BELOW | {"compiler", "engines", "building", "bench", "pipeline"},
}


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else path.stem


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported_rooms(path: Path) -> set[str]:
    depth = len(path.relative_to(ROOT).parts)
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            found.update(names)
    return found


def forbidden(path: Path) -> Iterator[str]:
    """Where a file prints, exits, unpickles, or runs text or a shell."""
    for node in ast.walk(tree(path)):
        said = ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            said = node.func.id if node.func.id in ("print", "exit", "input", "eval", "exec") else ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func)
            unsafe = name == "torch.load" and "weights_only=True" not in map(ast.unparse, node.keywords)
            said = name if unsafe or name in ("sys.exit", "os.system", "pickle.load") else ""
        if isinstance(node, ast.keyword) and node.arg == "shell":
            said = "a shell string"
        if said:
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {said}"


def too_long(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths if path.read_text().count("\n") > 450]


def test_arrows_run_one_way() -> None:
    extra = {
        str(path.relative_to(ROOT)): imported_rooms(path) - ALLOWED[room(path)] - {room(path)}
        for path in SOURCES
        if room(path) not in ("__init__", "__main__")
    }
    assert not {path: rooms for path, rooms in extra.items() if rooms}


def imported_files(path: Path) -> set[Path]:
    """The files of the package that a file imports, also within functions and for types alone."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            found |= {base.with_suffix(".py"), *(base / f"{alias.name}.py" for alias in node.names)}
    return {file for file in found if file.is_file()}


def test_files_import_each_other_one_way() -> None:
    circles = graphlib.TopologicalSorter({path: imported_files(path) for path in SOURCES})
    circles.prepare()  # raises CycleError, which names the files


def test_only_the_command_line_prints_or_exits() -> None:
    assert not [said for path in SOURCES if room(path) != "cli" for said in forbidden(path)]


def test_files_fit_the_eye_and_say_what_they_are_for() -> None:
    assert not too_long([*SOURCES, *TESTS])
    silent = [str(path.relative_to(ROOT)) for path in SOURCES if not ast.get_docstring(tree(path))]
    assert not silent, "a docstring says what the file is for"


OTHER_PROGRAMS_FLAGS = {
    # tritonserver
    "--backend-config", "--cache-config", "--disable-auto-complete-config", "--model-repository",
    "--force-reinstall", "--no-deps",  # pip
    "--governor",  # cpupower
}  # fmt: skip
"""Flags in the messages and commands of the library that are not qcompile's."""


def flags_in(path: Path) -> set[str]:
    """The flags in the texts of a file that are no docstrings."""
    documented = {id(node.value) for node in ast.walk(tree(path)) if isinstance(node, ast.Expr)}
    return {
        flag
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", node.value)
    }


def test_only_the_command_line_spells_options_as_flags() -> None:
    """The library names an option by its field; `--flag` means nothing to the user of a recipe."""
    # spec/ declares how the command line spells options
    found = {path: flags_in(path) for path in SOURCES if room(path) not in ("cli", "spec")}
    assert not {
        str(path.relative_to(ROOT)): flags - OTHER_PROGRAMS_FLAGS
        for path, flags in found.items()
        if flags - OTHER_PROGRAMS_FLAGS
    }


def test_the_packages_of_setup_cfg_are_the_rooms() -> None:
    import configparser

    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = {name for name in config["options"]["packages"].split() if name}
    found = {"qcompile"} | {
        ".".join(("qcompile", *path.parent.relative_to(ROOT).parts))
        for path in SOURCES
        if path.name == "__init__.py" and path.parent != ROOT
    }
    assert listed == found
