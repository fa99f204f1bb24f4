"""`qcompile migrate`: a command line of trtexec or Polygraphy becomes a recipe, and its cache becomes ranges.

text ─ command_line ─▶ words ─ translate ─▶ intent ─▶ precision (with the ONNX file) ─▶ recipe.toml
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InvalidOption, MissingFile, RecipeError
from ...files import check_output, require_file, write_text, writing
from ...plain_text import plain
from ...spec.decode import spec_from_call
from ...spec.recipes import MigrateSpec
from ...tensors import format_shape
from ..recipe import parse_recipe, toml
from .intent import KINDS, RTX, Fate, Intent, Invocation, Outcome, Profile, dashed, read_command
from .precision import (
    ChosenPrecision,
    ModelFacts,
    Places,
    choose_precision,
    complete_profiles,
    io_formats,
    layer_precisions,
    read_facts,
)
from .translate import translate

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import MigrateKeywords

Values = dict[str, object]
Sections = dict[str, Values]
"""Path of a table to its keys; "" is the top, "artifact" the one artifact."""
_WIDTH = 96
_FOLDED = "folded before it is calibrated; no option names a layer or a tensor of the file"
_NOT_FOLDED = "layers and tensors keep the names that the command and its cache use"
_SKIPS = ("buildOnly", "skipInference")
_IDLE_WITHOUT = (
    ("gpu_fallback", "dla_core", "without a DLA it changes nothing"),
    ("tiling_l2_limit", "tiling_level", "without tiling it changes nothing"),
    ("exclude_lean_runtime", "version_compatible", "the engine has no lean runtime"),
)
"""Option of the build, the one that it needs, and why nothing depends on it otherwise."""

WRITTEN_BY = "# Written by `qcompile migrate` from"
"""First line of every recipe that is written here."""


def recipe_values(
    intent: Intent,
    facts: ModelFacts,
    compute: ChosenPrecision,
    places: Places,
    *,
    target: str,
    ranges: Path | None,
) -> Sections:
    """Return what the recipe says; what becomes of its options is said in the intent.

    `ranges` is the file that the scales of the calibration cache are in, if there is one.
    """
    name = _plain(facts.path.stem) or "model"
    engine = _plain(Path(intent.engine.replace("\\", "/")).stem)
    if not engine or engine == "pytorch":
        engine = f"{name}-{compute.precision}"
    top: Values = {"version": 1, "name": f"{name}-onnx" if engine == name else name}
    artifact: Values = {"name": engine, "target": target, "precision": compute.precision}
    if compute.float_precision != "fp32" or compute.precision == "int8":
        artifact["float_precision"] = compute.float_precision
    if compute.precision == "int4":
        artifact["mode"] = "weights"
    if layers := layer_precisions(intent, facts, compute):
        artifact["layers"] = layers
    if intent.gpus:
        artifact["gpus"] = intent.gpus
    profiles = complete_profiles(intent, facts)
    if len(profiles) == 1:
        for kind in KINDS:
            if shapes := profiles[0].get(kind):
                spelled = [f"{key}:{format_shape(shape)}" for key, shape in shapes.items()]
                artifact[f"{kind}_shapes"] = spelled
    tensorrt = _build_options(intent, facts, places, profiles, target=target)
    sections: Sections = {
        "": top,
        # INT8 is placed on a folded graph; a cache and `layers` need the names of the file.
        "model": {
            "source": places.spell(facts.path),
            "simplify": compute.scales == "data" and "layers" not in artifact,
        },
        "data": {"calibration": places.moved(intent.data, places.spell)} if compute.scales == "data" else {},
        "calibrate": _calibration(intent, compute, places, ranges),
        "artifact": artifact,
        "artifact.tensorrt": tensorrt,
    }
    if intent.measures:
        first = profiles[0] if profiles else {}
        runs_at = intent.runs_at or first.get("opt") or first.get("max") or first.get("min") or {}
        batches = {shape[0] for shape in runs_at.values() if shape}
        batch: Values = {"batch_size": batches.pop()} if len(batches) == 1 else {}
        sections["bench"] = batch | intent.bench
    _settle(intent, profiles, sections, engine)
    return sections


def recipe_text(sections: Sections, intent: Intent, *, command: str, then: Sequence[str]) -> str:
    """Return the recipe's text: its command, what is not kept, and beside each key the options it keeps."""
    lines = textwrap.wrap(command, _WIDTH + 1, break_long_words=False, break_on_hyphens=False)
    lines = [WRITTEN_BY, *(f"#   {plain(line)}" for line in lines)]
    for outcome in intent.missing:
        lines += [f"# Not kept: {plain(outcome.flag)}", f"#   {plain(outcome.note)}"]
    lines += ["# Run it:", *(f"#   {plain(text)}" for text in then)]
    for table, values in sections.items():
        if not values and table != "bench":
            continue
        lines += ["", f"[[{table}]]" if table == "artifact" else f"[{table}]"] if table else []
        for key, value in values.items():
            flags = intent.flags_of(f"{table}.{key}" if table else key)
            comment = flags if len(flags) <= _WIDTH else f"{flags[:_WIDTH]}…"
            if (table, key) == ("model", "simplify"):
                comment = _FOLDED if value else _NOT_FOLDED
            lines.append(f"{key} = {toml(value)}" + (f"  # {plain(comment)}" if comment else ""))
    return "\n".join(lines) + "\n"


def _profile_text(profile: Profile) -> str:
    """`NAME:MIN..OPT..MAX,...` of a profile, with what follows from what is given."""
    names = {name: None for kind in KINDS for name in profile.get(kind, {})}
    parts = []
    for name in names:
        low, opt, high = (profile.get(kind, {}).get(name) for kind in KINDS)
        middle = opt or high or low or ()
        parts.append(f"{name}:{'..'.join(format_shape(shape or middle) for shape in (low, middle, high))}")
    return ",".join(parts)


def _build_options(
    intent: Intent, facts: ModelFacts, places: Places, profiles: Sequence[Profile], *, target: str
) -> Values:
    options = dict(intent.tensorrt)
    if formats := io_formats(intent, facts):
        options["io_formats"] = formats
    if len(profiles) > 1:
        options["profiles"] = [_profile_text(profile) for profile in profiles]
        for kind in KINDS:
            intent.revise(f"artifact.{kind}_shapes", "kept", "as a profile", key="artifact.tensorrt.profiles")
    else:
        intent.revise("artifact.tensorrt.profiles", "unneeded", "there is one profile")
    if options.get("timing_cache", "off") != "off":
        options["timing_cache"] = places.spell(places.find(str(options["timing_cache"])))
    elif options.get("timing_cache") == "off" and target == RTX:
        del options["timing_cache"]
        intent.revise("artifact.tensorrt.timing_cache", "unneeded", "TensorRT-RTX has none")
    if "plugins" in options:
        options["plugins"] = [places.spell(places.find(path)) for path in options["plugins"]]
    if "device" in options and intent.gpus:
        del options["device"]
        intent.revise("artifact.tensorrt.device", "unneeded", "the engine is built ahead of time for `gpus`")
    for option, needed, why in _IDLE_WITHOUT:
        if option in options and needed not in options:
            del options[option]
            intent.revise(f"artifact.tensorrt.{option}", "unneeded", why)
    return options


def _calibration(intent: Intent, compute: ChosenPrecision, places: Places, ranges: Path | None) -> Values:
    if ranges is not None:
        intent.revise("calibrate.method", "unneeded", "the cache holds the scales that were chosen")
        return {"ranges": places.spell(ranges)}
    if compute.scales == "data" and intent.method:
        return {"method": intent.method}
    intent.revise("calibrate.method", "unneeded", "nothing is calibrated")
    return {}


def _settle(intent: Intent, profiles: Sequence[Profile], sections: Sections, engine: str) -> None:
    """Say of the remaining options what became of them in this recipe."""
    if intent.engine:
        intent.revise("artifact.name", "kept", f"the engine is out/{engine}.engine")
    if "ranges" not in sections["calibrate"]:
        intent.revise("calibrate.ranges", "unneeded", "nothing is calibrated without int8")
    if not sections["data"] and intent.compares is None:
        intent.revise("data.calibration", "unneeded", "nothing is calibrated, and nothing compared")
    elif not sections["data"]:
        intent.revise("data.calibration", "kept", "samples of the comparison")
    if not intent.profiles or not profiles:
        for kind in KINDS:
            intent.revise(f"artifact.{kind}_shapes", "unneeded", "the model is static: it has these shapes")
    bench = sections.get("bench")
    if bench is not None and "batch_size" not in bench:
        intent.revise("bench.batch_size", "unneeded", "the shapes of the profile are measured")
    for item in [item for item in intent.outcomes if item.fate == "kept"]:
        table, dot, name = item.to.rpartition(".")
        if bench is None and "bench" in (table, item.to) and item.name not in _SKIPS:
            intent.settle(item.name, "unneeded", note="nothing is measured")
        # A command is no key, and a section may say it by not being there.
        elif dot and name not in sections.get(table, {}):
            intent.settle(item.name, "unneeded", note="the recipe says it otherwise, or needs nothing for it")


def _plain(stem: str) -> str:
    """A name that a file and a recipe may have."""
    return re.sub(r"[/\\\0]", "-", stem).lstrip(".")


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
        return [outcome for outcome in self.outcomes if outcome.fate == "missing"]

    def as_json(self) -> dict[str, object]:
        return {
            "recipe": str(self.recipe),
            "ranges": str(self.ranges) if self.ranges else None,
            "tool": self.tool,
            "kept": not self.missing,
            "options": [outcome.as_json() for outcome in self.outcomes],
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
    output, spec = Path(output), spec_from_call(MigrateSpec, spec, options)
    check_output(output)
    if output.is_file() and not output.read_text("utf-8", errors="replace").startswith(WRITTEN_BY):
        raise InvalidOption(
            f"`output` {output}: exists already, and `qcompile migrate` did not write it",
            hint="give another `output`, or move the file away",
            option="output",
        )
    call = read_command(_text(command))
    target = spec.target or (RTX if call.variables.get(_USES_RTX, "0") not in ("", "0") else "tensorrt")
    intent = translate(call.tool, call.words, target)
    _surroundings(call, intent)
    if spec.gpus:
        intent.gpus = list(spec.gpus)
    places = Places(call, spec.paths, output)
    facts = read_facts(_model(intent, places))
    intent.data = spec.data or (places.moved(intent.data, places.find) if intent.data else "")
    cache = places.find(intent.cache) if intent.cache else None
    if spec.data and intent.cache:
        intent.revise("calibrate.ranges", "unneeded", "`data` is given in its place")
        cache = None
    compute = choose_precision(intent, facts, cache=cache is not None and cache.is_file())
    ranges = output.with_suffix(".ranges") if compute.scales == "cache" else None
    sections = recipe_values(intent, facts, compute, places, target=target, ranges=ranges)
    engine = output.parent / "out" / f"{sections['artifact']['name']}.engine"
    then = [shlex.join(["qcompile", "run", str(output)])]
    if intent.compares is not None:
        data = [dashed("data"), intent.data] if intent.data else []
        diff = ["qcompile", "diff", str(facts.path), str(engine), *data, *intent.compares]
        then.append(shlex.join(diff))
    text = recipe_text(sections, intent, command=call.text, then=then)
    _check(text, output, intent)
    if ranges is not None and cache is not None:
        from ...calibration import save_ranges
        from ...calibration.tensorrt_cache import read_cache

        with writing(ranges) as path:
            save_ranges(read_cache(cache, facts.path), path)
    write_text(output, text)
    return Migration(output, ranges, call.tool, tuple(intent.outcomes), then)


def _check(text: str, output: Path, intent: Intent) -> None:
    """Refuse a recipe that cannot run, by the options that it came from: it is not written."""
    try:
        parse_recipe(text.encode(), output)
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
        missing = "; ".join(f"{outcome.flag}: {outcome.note}" for outcome in intent.missing)
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
            folders = ", ".join(f"{target} is {source}" for target, source in call.mounts.items())
            note = f"{note}; {folders}"
        intent.outcomes.append(Outcome("", call.wrapper, "unneeded", note=note))
    for name, value in call.variables.items():
        fate, to, note = _VARIABLES.get(name, ("unneeded", "", "set it for `run` too, where it matters"))
        if name == _TF32_OFF and value == "0":
            intent.tf32 = False
            fate, to, note = "kept", "artifact.precision", "TF32 is off"
        intent.outcomes.append(Outcome("", f"{name}={value}", fate, to, note))
