"""Apply options to TensorRT's builder configuration, and reject options that TensorRT refuses.

Optimization profiles (the permitted shapes of dynamic inputs) are checked before the build starts. The timing
cache stores TensorRT's kernel timings per device and version for later builds. Concurrent builds may share a
file: a build reads the file at the start and, at the end, merges its timings into the file under a lock.

If TensorRT rejects a cache, a warning reports this, and kernels are timed again. For instance, TensorRT 8.5
without cuDNN cannot read the caches that it wrote (KataGo issue 739). It creates an empty cache from their
bytes, which `set_timing_cache` may accept. Therefore TensorRT's log is checked before the return value, which
trtexec 8.5 (samples/common/sampleEngines.cpp, `networkToSerializedEngine`) and Polygraphy
(backend/trt/config.py) ignore.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....core.files import open_lock, writing
from ....errors import BuildError, InvalidOption, first_line
from ....model.graph.input_notes import AxisRange, InputNote
from ....spec.artifacts import BuildSpec
from ....spec.tensorrt import AUTO, OFF, TensorRTOptions
from ....spec.tensors import TensorInfo, fill_dynamic, format_shape, parse_shape
from ...gpu import Gpu
from ..adapter import Adapter
from ..log import Log, listening, plain, setting
from ..runner.io_tensors import InputRange

_FLAGS = ("version_compatible", "exclude_lean_runtime", "gpu_fallback", "sparse_weights", "weight_streaming")
"""Options with a builder flag of the same name."""
_VERBOSITY = {"": "DETAILED", "detailed": "DETAILED", "layer-names": "LAYER_NAMES_ONLY", "none": "NONE"}


def configure(adapter: Adapter, builder: Any, config: Any, log: Log, options: TensorRTOptions) -> None:
    """Set all options except precision, GPUs, profiles, calibrator and timing cache."""
    module, name = adapter.module, adapter.name
    adapter.share_profiles(config)
    config.profiling_verbosity = getattr(module.ProfilingVerbosity, _VERBOSITY[options.profiling_verbosity])
    kinds, sizes = module.MemoryPoolType, options.pool_bytes
    pools = {adapter.member(kinds, pool, "`memory_pools`", "pool"): size for pool, size in sizes.items()}
    if options.workspace_bytes:
        pools[kinds.WORKSPACE] = options.workspace_bytes
    for pool, size in pools.items():
        option = f"`memory_pools` {pool.name.lower().replace('_', '-')}"
        with setting(log, f"`workspace` {options.workspace}" if pool.name == "WORKSPACE" else option, name):
            config.set_memory_pool_limit(pool, size)
    for option, attribute, value in _attributes(adapter, config, options):
        adapter.require_config(attribute, option)
        with setting(log, option, name):
            setattr(config, attribute, value)
        if getattr(config, attribute) != value:
            raise InvalidOption(f"{option}: {name} ignored it", option=option.split()[0])
    if options.tactic_sources:
        with setting(log, "`tactic_sources`", name):
            config.set_tactic_sources(adapter.tactic_sources(options.tactic_sources))
    if options.dla_core >= 0:  # for every layer
        if options.dla_core >= builder.num_DLA_cores:
            problem = f"`dla_core` {options.dla_core}: this machine has {builder.num_DLA_cores} DLA cores"
            raise InvalidOption(problem, hint="leave it out: the GPU is used", option="dla_core")
        config.default_device_type, config.DLA_core = module.DeviceType.DLA, options.dla_core
    subject = "`strip_weights`" if options.strip_weights else "`refit`"
    strip_flags = adapter.strip_flags(refit=options.refit, strip=options.strip_weights)
    flags = [(subject, flag) for flag in strip_flags]
    enabled = [f"`{flag_name}`" for flag_name in _FLAGS if getattr(options, flag_name)]
    flags += [(option, adapter.flag(option.strip("`").upper(), option)) for option in enabled]
    for option, flag in flags:
        with setting(log, option, name):
            config.set_flag(flag)
        if not config.get_flag(flag):
            raise InvalidOption(f"{option}: {name} ignored it", option=option)


def _attributes(adapter: Adapter, config: Any, options: TensorRTOptions) -> Iterator[tuple[str, str, Any]]:
    """Yield each option's text for messages, the attribute of the configuration, and its value."""
    if (effort := options.optimization_level) >= 0:
        yield f"`optimization_level` {effort}", "builder_optimization_level", effort
    if options.aux_streams >= 0:
        yield "`aux_streams`", "max_aux_streams", options.aux_streams
    if (tiling := options.tiling_level) >= 0:
        kind = getattr(adapter.module, "TilingOptimizationLevel", int)
        yield f"`tiling_level` {tiling}", "tiling_optimization_level", kind(tiling)
    if options.l2_limit_bytes:
        yield "`tiling_l2_limit`", "l2_limit_for_tiling", options.l2_limit_bytes
    if options.build_route:
        # Recipes may come from strangers: only compiler options that TensorRT lists are permitted.
        adapter.require_config("build_route", "`build_route`")
        routes = build_routes(config)
        for option in (word.partition("=")[0] for word in options.build_route.split()):
            if option not in routes:
                hint = "`dry_run` lists the options and their values"
                raise adapter.lacks(f"`build_route` {option}", "such option of its compiler", hint)
        yield "`build_route`", "build_route", options.build_route
    if options.hardware_compatible:
        level = adapter.hardware_level(options.hardware_compatible)
        yield "`hardware_compatible`", "hardware_compatibility_level", level


def build_routes(config: Any) -> dict[str, str]:
    """Return the options permitted in `build_route`, mapped to their values, from TensorRT's JSON (NvInfer.h
    of 11.1:11402, getAllBuildRoutes); {} before TensorRT 11.1 and in TensorRT-RTX 1.7.1."""
    text = getattr(config, "all_build_routes", "")
    options = json.loads(text)["tuner_options"] if text else []
    return {str(option["option"]): str(option["allowed_values"]) for option in options}


def add_profiles(builder: Any, config: Any, profiles: Sequence[Sequence[InputRange]]) -> None:
    for number, ranges in enumerate(profiles, 1):
        if config.add_optimization_profile(_profile(builder, ranges)) < 0:
            spelled = ", ".join(map(_describe, ranges))
            raise BuildError(f"TensorRT refuses optimization profile {number} ({spelled})")


def set_calibration_profile(builder: Any, config: Any, ranges: Sequence[InputRange]) -> None:
    """Set a calibration profile with only the data's shapes; TensorRT calibrates at its OPT shapes."""
    if not config.set_calibration_profile(_profile(builder, ranges)):
        raise BuildError(f"TensorRT refuses the calibration profile ({', '.join(map(_describe, ranges))})")


def _profile(builder: Any, ranges: Sequence[InputRange]) -> Any:
    """Return a profile. Its setters raise RuntimeError if C++ returns false
    (pyCore.cpp), and TypeError for values that `Dims` cannot hold."""
    profile = builder.create_optimization_profile()
    for item in ranges:
        set_range = profile.set_shape_input if item.of_values else profile.set_shape
        try:
            set_range(item.name, item.min, item.opt, item.max)
        except (RuntimeError, TypeError, ValueError) as error:
            problem = f"TensorRT refuses the range of {_describe(item)}: {first_line(error)}"
            raise BuildError(problem) from error
    return profile


def _describe(item: InputRange) -> str:
    least, usual, most = (format_shape(shape) for shape in (item.min, item.opt, item.max))
    kind = "values of input" if item.of_values else "input"
    return f"{kind} {item.name!r}: {least}, {usual}, {most} (min, opt, max)"


_DEFAULT_OPT, _DEFAULT_MAX = 8, 16

Shapes = Mapping[str, tuple[int, ...]]


def make_profiles(
    inputs: Sequence[TensorInfo],
    spec: BuildSpec,
    shape_tensors: Collection[str] = (),
    notes: Mapping[str, InputNote] | None = None,
) -> list[list[InputRange]]:
    """Return the ranges of all dynamic inputs, for each profile; [] if no input is dynamic.

    The spec's `profiles` are texts `NAME:MIN..OPT..MAX`, with commas between inputs. Without `profiles`, the
    spec's `min_shapes`, `opt_shapes` and `max_shapes` form one profile. An input in `shape_tensors` holds a
    shape, and its range is a range of values. `notes` come from the ONNX file.
    """
    texts, notes, kinds = spec.tensorrt.profiles, notes or {}, ("min", "opt", "max")
    if texts and (spec.min_shapes or spec.opt_shapes or spec.max_shapes):
        raise InvalidOption("`profiles`: excludes `min_shapes`, `opt_shapes` and `max_shapes`")
    dynamic = [tensor for tensor in inputs if tensor.dynamic_axes or tensor.name in shape_tensors]
    batches = {tensor.dynamic_axes.get(0, "?") for tensor in dynamic} - {"?"}
    profiles = []
    for index, text in enumerate(texts or [""], 1):
        option = f"`profiles` {index}" if texts else ""
        shapes = _parse(text, option) if texts else {kind: spec.shapes(f"{kind}_shapes") for kind in kinds}
        missing = [tensor.name for tensor in dynamic if texts and tensor.name not in shapes["opt"]]
        if missing:
            raise InvalidOption(f"{option}: gives no shapes for {', '.join(missing)}", option="profiles")
        _check_shapes(inputs, shapes, shape_tensors, option)
        axis_ranges: dict[str, tuple[int, int, int]] = {}
        specified = {name for few in shapes.values() for name in few}
        by_name = {}
        for tensor in sorted(dynamic, key=lambda tensor: tensor.name not in specified):
            of_values, note = tensor.name in shape_tensors, notes.get(tensor.name)
            item = by_name[tensor.name] = _input_range(tensor, shapes, of_values, note, batches, axis_ranges)
            for axis, name in () if of_values else tensor.dynamic_axes.items():
                if name != "?" and tensor.name in specified:
                    axis_ranges.setdefault(name, (item.min[axis], item.opt[axis], item.max[axis]))
        ranges = [by_name[tensor.name] for tensor in dynamic]
        _check_shared_axes(inputs, ranges)
        profiles.append(ranges)
    return [ranges for ranges in profiles if ranges]


def _parse(text: str, option: str) -> dict[str, Shapes]:
    shapes: dict[str, dict[str, tuple[int, ...]]] = {"min": {}, "opt": {}, "max": {}}
    for part in re.split(r",(?=[^,\[\]]*:)", text):
        name, colon, shapes_text = part.strip().rpartition(":")
        shape_texts = shapes_text.split("..")
        if not (name and colon) or len(shape_texts) != len(shapes):
            hint = "for instance image:1x3x224x224..8x3x224x224..32x3x224x224"
            raise InvalidOption(f"{option}: {part!r} is not NAME:MIN..OPT..MAX", hint=hint, option="profiles")
        for of_kind, shape in zip(shapes.values(), shape_texts, strict=True):
            extents = parse_shape(shape, option=option)
            if any(isinstance(extent, str) for extent in extents):
                shown = format_shape(extents)
                raise InvalidOption(f"{option}: input {name!r}: {shown} is not made of numbers")
            of_kind[name] = tuple(int(extent) for extent in extents)
    return {**shapes}


def _check_shared_axes(inputs: Sequence[TensorInfo], ranges: Sequence[InputRange]) -> None:
    """Require one range for each axis name; TensorRT reports a mismatch only at inference."""
    tensors = {tensor.name: tensor for tensor in inputs}
    first: dict[str, tuple[str, tuple[int, int, int]]] = {}
    for item in ranges:
        for axis, name in () if item.of_values else tensors[item.name].dynamic_axes.items():
            limits = item.min[axis], item.opt[axis], item.max[axis]
            where, first_limits = first.setdefault(name, (item.name, limits))
            if first_limits != limits and name != "?":
                first_text, text = ("/".join(map(str, extents)) for extents in (first_limits, limits))
                problem = f"{first_text} (min/opt/max) in input {where!r}, {text} in input {item.name!r}"
                hint = "give both inputs the same extents there"
                raise InvalidOption(f"axis {name!r}: {problem}; one axis has one range", hint=hint)


def _check_shapes(
    inputs: Sequence[TensorInfo], by_kind: Mapping[str, Shapes], shape_tensors: Collection[str], option: str
) -> None:
    for kind, shapes in by_kind.items():
        for name, shape in shapes.items():
            tensor = next((tensor for tensor in inputs if tensor.name == name), None)
            if tensor is None:
                names = ", ".join(tensor.name for tensor in inputs)
                subject = option or f"`{kind}_shapes`"
                raise InvalidOption(f"{subject}: no input {name!r}; the inputs are {names}")
            count = tensor.shape[0] if tensor.shape else 1
            if name in shape_tensors and len(shape) != count:
                problem = f"input {name!r} holds a shape of {count} values; its {kind} has {len(shape)}"
                raise InvalidOption(problem, hint="give its minimum, optimal and maximum values")
            if name not in shape_tensors and not tensor.accepts(shape):
                raise InvalidOption(
                    f"input {name!r}: {kind} shape {format_shape(shape)} does not fit "
                    f"{format_shape(tensor.shape)}"
                )


def _input_range(
    tensor: TensorInfo,
    by_kind: Mapping[str, Shapes],
    of_values: bool,
    note: InputNote | None,
    batches: Collection[str],
    named: Mapping[str, tuple[int, int, int]],
) -> InputRange:
    """Return the range of a dynamic input.

    Missing shapes are copied: MIN from OPT, OPT from MAX or MIN, MAX from OPT. If the spec gives the input no
    shape, axes in `named` get the ranges of these axes in other inputs. A batch axis (the first, or with a
    name in `batches`) gets 1, 8 and 16. Other axes get a range from `note`: OPT is the example's extent,
    MAX is the axis's limit or twice that extent. If the note has extents of data, OPT is their median, and
    MAX covers them.
    """
    low, opt, high = (by_kind[kind].get(tensor.name) for kind in ("min", "opt", "max"))
    if low is None and opt is None and high is None:
        if of_values:
            problem = "its values are a shape, and no ranges for them are given"
            hint = "give the values with `min_shapes`, `opt_shapes` and `max_shapes`, or `profiles`"
            raise InvalidOption(f"input {tensor.name!r}: {problem}", hint=hint)
        if note is not None and len(note.example) == len(tensor.shape):
            default = _range_from_note(tensor, note, batches)
        elif (unknown := {axis for axis, dim in tensor.dynamic_axes.items() if dim not in named}) - {0}:
            axes = f"axes {sorted(unknown)} of {format_shape(tensor.shape)}"
            problem = f"input {tensor.name!r}: {axes} are dynamic and no shapes are given"
            raise InvalidOption(problem, hint="give `min_shapes`, `opt_shapes` and `max_shapes`")
        else:
            low, opt, high = (fill_dynamic(tensor, n) for n in (1, _DEFAULT_OPT, _DEFAULT_MAX))
            default = InputRange(tensor.name, low, opt, high)
        low, opt, high = (
            tuple(
                named[dim][kind] if isinstance(dim, str) and dim in named else extent
                for dim, extent in zip(tensor.shape, shape, strict=True)
            )
            for kind, shape in enumerate((default.min, default.opt, default.max))
        )
    opt = opt or high or low
    assert opt is not None
    low, high = low or opt, high or opt
    for smaller, larger, words in ((low, opt, ("min", "opt")), (opt, high, ("opt", "max"))):
        if any(a > b for a, b in zip(smaller, larger, strict=True)):
            raise InvalidOption(
                f"input {tensor.name!r}: {words[0]} shape {format_shape(smaller)} is above "
                f"{words[1]} {format_shape(larger)}",
                hint=f"raise `{words[1]}_shapes` or lower `{words[0]}_shapes`",
            )
    return InputRange(tensor.name, low, opt, high, of_values)


def _range_from_note(tensor: TensorInfo, note: InputNote, batches: Collection[str]) -> InputRange:
    shapes: list[tuple[int, int, int]] = []
    for axis, extent in enumerate(tensor.shape):
        limits, example, largest = note.axes.get(axis, AxisRange()), note.example[axis], 0
        if note.seen and axis in note.seen:
            least, example, most = note.seen[axis]
            largest = most if least < most else 0  # a single extent does not imply a range
        if isinstance(extent, int):
            shapes.append((extent, extent, extent))
            continue
        is_batch = (axis == 0 or extent in batches) and example <= _DEFAULT_MAX
        sizes = (_DEFAULT_OPT, max(_DEFAULT_MAX, largest)) if is_batch else (example, largest or 2 * example)
        opt, high = (limits.round_up(size) for size in sizes)
        if axis and not is_batch and limits.maximum is not None:
            high = limits.round_up(limits.maximum)
        shapes.append((limits.round_up(1), opt, high))
    low, opts, highs = zip(*shapes, strict=True)
    return InputRange(tensor.name, low, opts, highs)


@dataclass(frozen=True)
class CacheFile:
    """A file of kernel timings. `is_ours` means that qcompile chose the file's name, by device and version,
    and replaces an unreadable file. An unreadable file that the user named may belong to another device, and
    is not changed."""

    path: Path
    is_ours: bool

    def __str__(self) -> str:
        return f"timing cache {self.path}"


def cache_file(adapter: Adapter, gpu: Gpu | None, choice: str) -> CacheFile | None:
    if choice == OFF or (choice == AUTO and not adapter.keeps_timing_caches):
        return None
    if not adapter.keeps_timing_caches:
        lacking = "use for one: it chooses its kernels where the engine runs"
        raise adapter.lacks("`timing_cache`", lacking, "leave it out")
    if choice != AUTO:
        return CacheFile(Path(choice), is_ours=False)
    device = f"{gpu.name}-{gpu.architecture}" if gpu else "unknown"
    name = re.sub(r"[^\w.-]+", "_", f"{adapter.module.__name__}-{adapter.version}-{device}")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return CacheFile(Path(base) / "qcompile" / "timing" / f"{name}.cache", is_ours=True)


def use_cache(config: Any, log: Log, file: CacheFile | None) -> tuple[str, ...]:
    """Load the timing cache into a build; return a warning if the cache cannot be used."""
    if file is None:
        return ()
    try:
        refusal = _set_cache(config, log, _read_cache(file.path))
    except OSError as error:
        if not file.is_ours:
            raise InvalidOption(f"{file}: {error.strerror}", option="timing_cache") from error
        refusal = str(error.strerror)
    if not refusal:
        return ()
    consequence = "it will be replaced" if file.is_ours else "it is of another device or version, or damaged"
    _set_cache(config, log, b"")
    return (f"{file} is not used, kernels are timed again: {refusal}; {consequence}",)


def merge_cache(config: Any, log: Log, file: CacheFile | None) -> tuple[str, ...]:
    """Write a build's timings, merged with the file's; return a warning on failure. The engine, already on
    disk, is not affected."""
    if file is None:
        return ()
    try:
        refusal = _merge_into_file(config, log, file)
    except Exception as error:  # from the disk or from TensorRT's binding
        why = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
        refusal = why or type(error).__name__
    return (f"{file}: kernel timings are not saved: {refusal}",) if refusal else ()


def _merge_into_file(config: Any, log: Log, file: CacheFile) -> str:
    measured = config.get_timing_cache()
    if measured is None:
        return "TensorRT has no timing cache of this build"
    file.path.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(file.path.with_name(f"{file.path.name}.lock")) as lock:
        with contextlib.suppress(ImportError):  # not POSIX: only the rename prevents a partial file
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)  # another build holds the lock only while it writes the file
        stored = _read_cache(file.path)
        if stored:
            with listening(log) as cache_log:
                stored_cache = config.create_timing_cache(stored)
                combined = stored_cache is not None and measured.combine(stored_cache, False)
            refusal = _cache_message(cache_log) or ("" if combined else "it cannot be merged with the file's")
            if refusal and not file.is_ours:
                return f"{refusal}; remove the file, or name another with `timing_cache`"
        serialized = measured.serialize()
        if serialized is None:
            return "TensorRT does not serialize it"
        with writing(file.path) as temporary:
            temporary.write_bytes(memoryview(serialized))
    return ""


def _set_cache(config: Any, log: Log, content: bytes) -> str:
    with listening(log) as cache_log:
        cache = config.create_timing_cache(content)
        accepted = cache is not None and config.set_timing_cache(cache, False)
    return _cache_message(cache_log) or ("" if accepted else "TensorRT refuses it")


def _cache_message(log: Log) -> str:
    messages = [*log.errors, *(text for text in log.warnings if "cache" in text.lower())]
    return plain(messages[0]) if messages else ""


def _read_cache(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
