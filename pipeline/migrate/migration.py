"""`qcompile migrate`: a command line of trtexec or Polygraphy becomes a recipe, and its cache becomes ranges.

text ─ command_line ─▶ words ─ translate ─▶ intent ─┐
                              ONNX file ─ facts ────┴─ precision, as_recipe ─▶ recipe.toml
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InvalidOption, MissingFile, RecipeError
from ...files import check_output, require_file, write_text, writing
from ...spec.decode import called
from ...spec.recipes import MigrateSpec
from ..recipe import make_recipe
from .as_recipe import WRITTEN_BY, recipe_text, recipe_values
from .command_line import Invocation, read_command
from .facts import Places, read_facts
from .flags import RTX, Fate
from .intent import Intent, Outcome
from .precision import choose_precision
from .translate import translate

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import MigrateKeywords

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TF32_OFF, _USES_RTX = "NVIDIA_TF32_OVERRIDE", "POLYGRAPHY_USE_TENSORRT_RTX"
_VARIABLES: dict[str, tuple[Fate, str, str]] = {
    _USES_RTX: ("kept", "artifact.target", ""),
    "CUDA_VISIBLE_DEVICES": ("unneeded", "", "set it for `run` too: the first GPU is used"),
    "LD_PRELOAD": ("missing", "", "if it holds plugins, list the library in `plugins`"),
}
"""What becomes of a variable that is set for the command."""
_BEGINS_FILE = "@"


@dataclass(frozen=True)
class Migration:
    """A recipe that was written, and what became of each option and variable of the command.

    `ranges` are those of the calibration cache; `then` are commands that do what the command did.
    """

    recipe: Path
    ranges: Path | None
    tool: str
    outcomes: Sequence[Outcome]
    then: Sequence[str]

    @property
    def missing(self) -> Sequence[Outcome]:
        """The options that have no equal; empty where every intent is kept."""
        return [one for one in self.outcomes if one.fate == "missing"]

    def as_json(self) -> dict[str, object]:
        """Return the `--json` form."""
        return {
            "recipe": str(self.recipe),
            "ranges": str(self.ranges) if self.ranges else None,
            "tool": self.tool,
            "kept": not self.missing,
            "options": [one.as_json() for one in self.outcomes],
            "then": list(self.then),
        }


def migrate(
    command: str,
    output: str | Path = "recipe.toml",
    spec: MigrateSpec | None = None,
    /,
    **options: Unpack[MigrateKeywords],
) -> Migration:
    """Write the recipe of a command line; nothing of the command is run.

    Args:
        command: The whole command line, or "@" and a file that holds it.
        output: Recipe to write; ranges lie beside it.
        spec: How.
        options: Fields of `MigrateSpec` by name, in place of those of `spec`.

    Returns:
        What became of each option. Where one has no equal, the recipe is written too, and says so.

    Raises:
        InvalidOption: If an option is unknown or wrong, INT8 has nothing to calibrate on, or the output is
            a file that `migrate` did not write.
        MissingFile: If the model is not there.
        CalibrationError: If the calibration cache is not the model's.
    """
    output, spec = Path(output), called(MigrateSpec, spec, options)
    check_output(output)
    _keep_what_others_wrote(output)
    call = read_command(_text(command))
    target = spec.target or (RTX if call.variables.get(_USES_RTX, "0") not in ("", "0") else "tensorrt")
    intent = translate(call.tool, call.words, target)
    _surroundings(call, intent)
    if spec.gpus:
        intent.gpus = list(spec.gpus)
    places = Places(call, spec.paths, output)
    facts = read_facts(_model(intent, places))
    intent.data = spec.data or (places.find_data(intent.data) if intent.data else "")
    cache = places.find(intent.cache) if intent.cache else None
    if spec.data and intent.cache:
        intent.revise("calibrate.ranges", "unneeded", "`data` is given in its place")
        cache = None
    chosen = choose_precision(intent, facts, cache=cache is not None and cache.is_file())
    ranges = output.with_suffix(".ranges") if chosen.scales == "cache" else None
    sections = recipe_values(intent, facts, chosen, places, target=target, ranges=ranges)
    engine = output.parent / "out" / f"{sections['artifact']['name']}.engine"
    then = _then(output, facts.path, engine, intent)
    text = recipe_text(sections, intent, command=call.text, then=then)
    _check(text, output, intent)
    if ranges is not None and cache is not None:
        from ...calibration import save_ranges
        from ...calibration.tensorrt_cache import read_cache

        found = read_cache(cache, facts.path)
        with writing(ranges) as path:
            save_ranges(found, path)
    write_text(output, text)
    return Migration(output, ranges, call.tool, tuple(intent.outcomes), then)


def _keep_what_others_wrote(output: Path) -> None:
    """Refuse to overwrite a recipe that `init`, `auto` or a person wrote."""
    if output.is_file() and not output.read_text("utf-8", errors="replace").startswith(WRITTEN_BY):
        raise InvalidOption(
            f"`output` {output}: exists already, and `qcompile migrate` did not write it",
            hint="give another `output`, or move the file away",
            option="output",
        )


def _check(text: str, output: Path, intent: Intent) -> None:
    """Refuse a recipe that cannot run, by the options that it came from: it is not written."""
    try:
        make_recipe(tomllib.loads(text), output)
    except RecipeError as error:
        key = re.sub(r"\[\d+\]", "", str(error.data["key"]))
        typed = intent.flags_of(key) or f"`{key}`"
        problem = error.message.partition(f"'{error.data['key']}' ")[2]
        raise InvalidOption(f"{typed}: {problem}", hint=error.hint, option="command") from error


def _text(command: str) -> str:
    if not command.startswith(_BEGINS_FILE):
        return command
    path = require_file(Path(command[1:]), what="command")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidOption(f"`command` {path}: is no text ({error})", option="command") from error


def _model(intent: Intent, places: Places) -> Path:
    if not intent.model:
        missing = "; ".join(f"{one.flag}: {one.note}" for one in intent.missing)
        raise InvalidOption(
            "the command names no ONNX file, and a recipe starts from one", hint=missing, option="command"
        )
    path = places.find(intent.model)
    if not path.is_file():
        raise MissingFile(
            f"model {path} does not exist",
            hint=f"`paths` {intent.model}=FILE says where it lies here",
            file=path,
        )
    return path


def _surroundings(call: Invocation, intent: Intent) -> None:
    """Say what became of what stands in front of the program."""
    if call.wrapper:
        note = "nothing of the command is run"
        if call.mounts:
            folders = ", ".join(f"{there} is {here}" for there, here in call.mounts.items())
            note = f"{note}; {folders}"
        intent.outcomes.append(Outcome("", call.wrapper, "unneeded", note=note))
    for name, value in call.variables.items():
        fate, to, note = _VARIABLES.get(name, ("unneeded", "", "set it for `run` too, where it matters"))
        if name == _TF32_OFF and value == "0":
            intent.tf32 = False
            fate, to, note = "kept", "artifact.precision", "TF32 is off"
        intent.outcomes.append(Outcome("", f"{name}={value}", fate, to, note))


def _then(recipe: Path, model: Path, engine: Path, intent: Intent) -> list[str]:
    commands = [shlex.join(["qcompile", "run", str(recipe)])]
    if intent.compares is not None:
        data = [f"--{'data'}", intent.data] if intent.data else []
        commands.append(shlex.join(["qcompile", "diff", str(model), str(engine), *data, *intent.compares]))
    return commands
