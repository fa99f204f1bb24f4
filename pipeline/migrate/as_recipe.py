"""An intent becomes the values of a recipe, and these become its text with comments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ...plain_text import plain
from ...tensors import format_shape
from ..propose.init import toml
from .facts import ModelFacts, Places, complete_profiles
from .flags import RTX
from .intent import KINDS, Intent, Profile
from .precision import ChosenPrecision, io_formats, layer_precisions

Values = dict[str, object]
Sections = dict[str, Values]
"""Path of a table to its keys; "" is the top, "artifact" the one artifact."""
_WIDTH = 96
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
    chosen: ChosenPrecision,
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
        engine = f"{name}-{chosen.precision}"
    top: Values = {"version": 1, "name": f"{name}-onnx" if engine == name else name}
    artifact: Values = {"name": engine, "target": target, "precision": chosen.precision}
    if chosen.float_precision != "fp32" or chosen.precision == "int8":
        artifact["float_precision"] = chosen.float_precision
    if chosen.precision == "int4":
        artifact["mode"] = "weights"
    if layers := layer_precisions(intent, facts, chosen):
        artifact["layers"] = layers
    if intent.gpus:
        artifact["gpus"] = intent.gpus
    profiles = complete_profiles(intent, facts)
    if len(profiles) == 1:
        artifact |= _shapes(profiles[0])
    tensorrt = _build_options(intent, facts, places, profiles, target=target)
    sections: Sections = {
        "": top,
        # INT8 is placed on a folded graph; a cache and `layers` need the names of the file.
        "model": {
            "source": places.spell(facts.path),
            "simplify": chosen.scales == "data" and "layers" not in artifact,
        },
        "data": {"calibration": places.spell_data(intent.data)} if chosen.scales == "data" else {},
        "calibrate": _calibration(intent, chosen, places, ranges),
        "artifact": artifact,
        "artifact.tensorrt": tensorrt,
    }
    if intent.measures:
        sections["bench"] = _bench(intent, profiles)
    _settle(intent, facts, sections, engine)
    return sections


def recipe_text(sections: Sections, intent: Intent, *, command: str, then: Sequence[str]) -> str:
    """Return the recipe's text: its command, what is not kept, and beside each key the options it keeps."""
    lines = [WRITTEN_BY, *_wrapped(command)]
    for one in intent.missing:
        lines += [f"# Not kept: {plain(one.flag)}", f"#   {plain(one.note)}"]
    lines += ["# Run it:", *(f"#   {plain(text)}" for text in then)]
    for table, values in sections.items():
        if not values and table != "bench":
            continue
        lines += ["", f"[[{table}]]" if table == "artifact" else f"[{table}]"] if table else []
        for key, value in values.items():
            comment = _comment(intent, f"{table}.{key}" if table else key, value)
            lines.append(f"{key} = {toml(value)}{comment}")
    return "\n".join(lines) + "\n"


def _shapes(profile: Profile) -> Values:
    return {
        f"{kind}_shapes": [f"{name}:{format_shape(shape)}" for name, shape in profile[kind].items()]
        for kind in KINDS
        if profile.get(kind)
    }


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
        options["profiles"] = [_profile_text(one) for one in profiles]
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


def _calibration(intent: Intent, chosen: ChosenPrecision, places: Places, ranges: Path | None) -> Values:
    if ranges is not None:
        intent.revise("calibrate.method", "unneeded", "the cache holds the scales that were chosen")
        return {"ranges": places.spell(ranges)}
    if chosen.scales == "data" and intent.method:
        return {"method": intent.method}
    intent.revise("calibrate.method", "unneeded", "nothing is calibrated")
    return {}


def _bench(intent: Intent, profiles: Sequence[Profile]) -> Values:
    """`[bench]`; its batch is that of the shapes that inference runs with."""
    runs_at = intent.runs_at or next((one[kind] for one in profiles[:1] for kind in ("opt", "max", "min")
                                      if one.get(kind)), {})  # fmt: skip
    batches = {shape[0] for shape in runs_at.values() if shape}
    return {**({"batch_size": batches.pop()} if len(batches) == 1 else {}), **intent.bench}


def _settle(intent: Intent, facts: ModelFacts, sections: Sections, engine: str) -> None:
    """Say of the remaining options what became of them in this recipe."""
    if intent.engine:
        intent.revise("artifact.name", "kept", f"the engine is out/{engine}.engine")
    if "ranges" not in sections["calibrate"]:
        intent.revise("calibrate.ranges", "unneeded", "nothing is calibrated without int8")
    if not sections["data"] and intent.compares is None:
        intent.revise("data.calibration", "unneeded", "nothing is calibrated, and nothing compared")
    elif not sections["data"]:
        intent.revise("data.calibration", "kept", "samples of the comparison")
    if not intent.profiles or not complete_profiles(intent, facts):
        for kind in KINDS:
            intent.revise(f"artifact.{kind}_shapes", "unneeded", "the model is static: it has these shapes")
    bench = sections.get("bench")
    if bench is not None and "batch_size" not in bench:
        intent.revise("bench.batch_size", "unneeded", "the shapes of the profile are measured")
    for item in [item for item in intent.outcomes if item.fate == "kept"]:
        if bench is None and item.to.partition(".")[0] == "bench" and item.name not in _SKIPS:
            intent.settle(item.name, "unneeded", note="nothing is measured")
        elif not _is_there(item.to, sections):
            intent.settle(item.name, "unneeded", note="the recipe says it otherwise, or needs nothing for it")


def _is_there(key: str, sections: Sections) -> bool:
    """Whether the recipe has a key; a command is none, and a section may say it by not being there."""
    table, dot, name = key.rpartition(".")
    return not dot or name in sections.get(table, {})


def _plain(stem: str) -> str:
    """A name that a file and a recipe may have."""
    return re.sub(r"[/\\\0]", "-", stem).lstrip(".")


def _comment(intent: Intent, key: str, value: object) -> str:
    folded = "folded before it is calibrated; no option names a layer or a tensor of the file"
    kept = "layers and tensors keep the names that the command and its cache use"
    said = {"model.simplify": folded if value else kept}
    flags = intent.flags_of(key)
    text = said.get(key) or (flags if len(flags) <= _WIDTH else f"{flags[:_WIDTH]}…")
    return f"  # {plain(text)}" if text else ""


def _wrapped(command: str) -> list[str]:
    """The command as comment lines, divided between words."""
    lines = [""]
    for word in command.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) > _WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return [f"#   {plain(line)}" for line in lines]
