"""CONTRIBUTING's map: arrows run one way, only cli/ prints, nothing is unpickled or run by a shell."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def floors() -> list[set[str]]:
    """The rooms of CONTRIBUTING's picture from left to right; one in line 2 is beside the one above."""
    picture = re.search(r"^```\n(errors .*?)\n(.*?)\n```", GUIDE, re.M | re.S)
    assert picture
    first, second = ({m[0]: m.start() for m in re.finditer(r"[a-z]+", line)} for line in picture.groups())
    beside = {
        room: min(first, key=lambda above: abs(first[above] - column)) for room, column in second.items()
    }
    return [{room, *(other for other, above in beside.items() if above == room)} for room in first]


FLOORS = floors()
ROOMS = set().union(*FLOORS) - {"errors"}
SOURCES = sorted(
    path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] in ROOMS or path.parent == ROOT
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# `version.py` imports nothing, and nothing in spec/ needs it.
ALLOWED = {
    room: set[str]().union(*FLOORS[:floor], {"version"} if floor > 1 else set())
    for floor, rooms in enumerate(FLOORS)
    for room in rooms
} | {"version": set[str]()}

HIDDEN_ARROWS = {
    ("spec/engines.py", "engines"),  # the classes of the engines; model/graph/graph_rules.py loads them
    ("core/notebook.py", "bench"),  # tables and pictures for Jupyter
    ("spec/decode.py", "data"),  # samples in memory become files
    ("core/processes/untrusted.py", "__main__"),  # the command line, in a child process
    ("engines/reproducer.py", "bench"),  # the worker that runs a script
}
"""Modules of rooms to the right that a file names in a text."""


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


def test_the_rooms_of_the_picture_are_the_folders_of_the_package() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == ROOMS
    assert len(ROOMS) == 11
    assert {path.stem for path in ROOT.glob("*.py")} == {"__init__", "__main__", "errors", "version"}


def test_the_table_of_the_rooms_names_each_folder() -> None:
    """Its first column has the rooms, its last the folders in them."""
    rows = re.findall(r"^\| `(\w+)/` \| .*? \| (.*?) ?\|$", GUIDE, re.M)
    told = {room: set(re.findall(r"`([\w/]+)/`", folders)) for room, folders in rows}
    found = {
        room: {
            str(path.parent.relative_to(ROOT))
            for path in (ROOT / room).rglob("__init__.py")
            if path.parent != ROOT / room
        }
        for room in ROOMS
    }
    assert told == found


def test_arrows_run_one_way() -> None:
    extra = {
        str(path.relative_to(ROOT)): imported_rooms(path) - ALLOWED[room(path)] - {room(path)}
        for path in SOURCES
        if room(path) not in ("__init__", "__main__")
    }
    assert not {path: rooms for path, rooms in extra.items() if rooms}


def test_arrows_between_rooms_are_few() -> None:
    arrows = {
        (room(path), other)
        for path in SOURCES
        if room(path) not in ("__init__", "__main__")
        for other in imported_rooms(path) - {room(path)}
    }
    assert len(arrows) <= 70, sorted(arrows)


def named_rooms(path: Path) -> set[str]:
    """The rooms whose modules a file names in texts: `qcompile.bench.worker`, `.engines.x:Class`."""
    texts = {
        node.value
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    spelled = re.compile(r"qcompile\.(\w[\w.]*)|\.(\w+(?:\.\w+)+)(?::\w+)?")
    matches = filter(None, map(spelled.fullmatch, texts))
    modules = {match[1] or match[2] for match in matches}
    return {
        name.split(".")[0]
        for name in modules
        if ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()
        or ROOT.joinpath(*name.split("."), "__init__.py").is_file()
    }


def test_texts_that_name_a_room_to_the_right_are_listed() -> None:
    found = {
        (str(path.relative_to(ROOT)), other)
        for path in SOURCES
        if room(path) not in ("__init__", "__main__", "cli")
        for other in named_rooms(path) - ALLOWED[room(path)] - {room(path)}
    }
    assert found == HIDDEN_ARROWS


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
