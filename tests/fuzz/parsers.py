"""Every parser of files and of what is typed, as a function of bytes and a folder.

A parser returns, or raises a `QCompileError`. Where a form can be written, what was read is written and read
as the same. `crash` says what else reads the bytes: it may end the process, which a watched child contains.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import onnx
import safetensors.numpy

from qcompile.bench.diff.diff import parse_tolerances
from qcompile.bench.diff.layers.outcome import load_layers
from qcompile.bench.metrics.names import read_metric
from qcompile.bench.report.page import sections
from qcompile.bench.report.source import read_source
from qcompile.bench.report.summary import summarize
from qcompile.bench.results.render import markdown
from qcompile.bench.results.results import parse_results
from qcompile.calibration.calibrate import parse_shard
from qcompile.calibration.ranges_file import checksum, load_checkpoint, load_ranges, save_ranges
from qcompile.calibration.tensorrt_cache import parse_cache, version_code
from qcompile.calibration.thresholds import parse_method
from qcompile.cli.main import group
from qcompile.cli.verb import Verb, read
from qcompile.compiler.simplify.simplify import simplify
from qcompile.core.artifact import read_manifest
from qcompile.core.processes.worker import read_answer
from qcompile.data.arrays import load_arrays, load_polygraphy, read_shapes
from qcompile.data.images import decode
from qcompile.data.processors import decode_audio
from qcompile.data.spelling import parse_spelling, read_query
from qcompile.engines.gpu import parse_devices
from qcompile.engines.tensorrt.runner.loaded_engine import SUFFIX, RuntimeCacheFile
from qcompile.errors import ArtifactError, CalibrationError, InvalidOption, QCompileError
from qcompile.model.graph.input_notes import read_notes
from qcompile.model.outputs.output_forms import parse_rules
from qcompile.model.sources.named.hf_configuration import processor_of
from qcompile.model.sources.preprocessing import as_json, read_preprocessing
from qcompile.model.sources.source import parse_query, parse_source
from qcompile.pipeline.recipe.recipe import parse_recipe
from qcompile.spec.tensorrt import TensorRTOptions, parse_bytes
from qcompile.spec.tensors import (
    format_shape,
    parse_dynamic_axis,
    parse_input,
    parse_named_shape,
    parse_shape,
    parse_shapes,
)

FOLDER = Path(__file__).parent
Parse = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Parser:
    """A parser: its function of bytes and a folder, whether inputs are JSON, what reads the bytes but we."""

    parse: Parse
    json: bool = False
    crash: str = ""


def inputs(name: str, archive: str = "") -> dict[str, bytes]:
    """The files of an archive: inputs that once showed a defect or reach a line of their own."""
    path = FOLDER / "corpus" / f"{name}.tar.xz" if not archive else FOLDER / archive
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]


def _file(content: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def _text(content: bytes) -> str:
    """Bytes as Python has them from a command line: what is no UTF-8 becomes lone surrogates."""
    return content.decode("utf-8", "surrogateescape")


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ArtifactError("no JSON") from None


def _each(text: str, *parsers: Callable[[str], Any]) -> list[Any]:
    """What several parsers read of one text; None where one refuses it."""
    values = []
    for parse in parsers:
        try:
            values.append(parse(text))
        except QCompileError:
            values.append(None)
    return values


# What is typed


def shapes(content: bytes, _: Path) -> None:
    """Every spelling of a shape; what is printed is read as the same."""
    text = _text(content)
    shape, declared, *_rest = _each(
        text, parse_shape, parse_input, parse_named_shape, parse_dynamic_axis,
        lambda text: parse_shapes([text, "y:1"], option="x"),
    )  # fmt: skip
    assert shape is None or parse_shape(format_shape(shape)) == shape
    assert declared is None or parse_input(str(declared)) == declared


def options(content: bytes, _: Path) -> None:
    """Options with a grammar of their own."""
    text = _text(content)
    method, *_rest = _each(
        text, parse_method, parse_shard, version_code,
        lambda text: parse_rules([text]),
        lambda text: parse_tolerances([text], option="atol"),
        lambda text: parse_devices(text.split(",")),
        lambda text: parse_bytes(text, option="workspace"),
        lambda text: TensorRTOptions(memory_pools=(text,)).pool_bytes,
        lambda text: TensorRTOptions(io_formats=(text,)).tensor_formats,
        lambda text: TensorRTOptions(profiles=(text,)),
    )  # fmt: skip
    assert method is None or parse_method(str(method)) == method
    if ":" not in text:  # what has a colon may be a function, which is imported
        _each(text, read_metric)


def data_spelling(content: bytes, _: Path) -> None:
    """DATA; the spelling of what was read is read as the same."""
    spelling = parse_spelling(_text(content))
    again = parse_spelling(str(spelling))
    assert os.path.normpath(again.path) == os.path.normpath(spelling.path)
    assert (again.kind, again.query) == (spelling.kind, spelling.query)
    read_query(spelling.query, _text(content))


def model_spelling(content: bytes, folder: Path) -> None:
    """MODEL; the options that were read are written as they are read."""
    text = _text(content)
    (query,) = _each(text, lambda text: parse_query(text, "model"))
    assert query is None or not query.query or parse_query(query.query[1:], "model") == query
    source = parse_source(text, base=folder)
    if source.is_named:
        assert parse_source(source.absolute, base=folder).options == source.options


@cache
def _verbs() -> dict[str, Any]:
    commands, context = {}, click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        for verb in (command, *getattr(command, "commands", {}).values()):
            if isinstance(verb, Verb):
                commands[verb.name or name] = verb
    return commands


def command_line(content: bytes, _: Path) -> None:
    """Arguments of a verb, one a line, the verb first: read as they are typed, nothing is run."""
    name, *arguments = _text(content.replace(b"\0", b"")).split("\n")  # no argument holds a NUL
    verb = _verbs().get(name)
    if verb is None:
        raise InvalidOption(f"verb {name!r}: another is required")
    try:
        context = verb.make_context(name, [word for word in arguments if word not in ("--help", "-h")])
    except click.ClickException as error:
        error.format_message()
        return
    with context:
        read(verb.spec, context.params)


def runtime_cache(content: bytes, folder: Path) -> None:
    cache = RuntimeCacheFile(_file(content, folder, f"e{SUFFIX}").with_name("e"), "1.7", "sha256:0")
    cache.load(SimpleNamespace(deserialize=lambda _: True))
    assert cache.note


# Documents


def results(content: bytes, folder: Path) -> None:
    """Results; what is written of them is read as the same, and the report's sections can be made."""
    parsed = parse_results(content, folder / "results.json")
    text = json.dumps(parsed.as_json())
    again = parse_results(text.encode(), folder / "results.json")
    assert json.dumps(again.as_json()) == text
    markdown(parsed)


def manifest(content: bytes, folder: Path) -> None:
    """A manifest; what is written of it is read as the same."""
    path = _file(b"", folder, "m.onnx")
    _file(content, folder, "m.onnx.json")
    parsed = read_manifest(path)
    if parsed is not None:  # None is a stranger's JSON beside a model
        text = json.dumps(parsed.as_json())
        _file(text.encode(), folder, "m.onnx.json")
        assert json.dumps(read_manifest(path).as_json()) == text  # type: ignore[union-attr]


def input_notes(content: bytes, _: Path) -> None:
    """What an ONNX file says of its inputs; a damaged entry is none."""
    model = onnx.ModelProto()
    model.metadata_props.add(key="qcompile.inputs", value=content.decode("utf-8", "replace"))
    for note in read_notes(model).values():
        json.dumps(note.as_json())


# Files of calibration. A changed header gets its checksum; without it, all are refused at once.


def _whole(name: str) -> bytes:
    return inputs("", "whole.tar.xz")[name]


def _sealed(header: bytes, name: str) -> bytes:
    """A file whose tensors are those of a whole one, and whose metadata are this header."""
    tensors = safetensors.numpy.load(_whole(name))
    text = header.decode("utf-8", "replace")
    try:
        parsed = json.loads(header)
        text = json.dumps({**parsed, "checksum": checksum(parsed, tensors)}) if "checksum" in parsed else text
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return safetensors.numpy.save(tensors, {"qcompile": text})


def _limits(ranges: Any) -> None:
    for name in ranges.names():
        for symmetric in (True, False):
            low, high = ranges.limits(name, symmetric=symmetric)
            assert -math.inf < low <= high < math.inf, (name, low, high)


def ranges_file(content: bytes, folder: Path) -> None:
    """A ranges file; what is read is written and read as the same."""
    ranges = load_ranges(_file(content, folder, "a.ranges"))
    _limits(ranges)
    save_ranges(ranges, folder / "b.ranges")
    again = load_ranges(folder / "b.ranges")
    assert (again.model, again.portions, again.method) == (ranges.model, ranges.portions, ranges.method)


def ranges_merge(content: bytes, folder: Path) -> None:
    """Two shards, with headers from one JSON list, merged: no count is lost or made up."""
    try:
        headers = [json.dumps(header).encode() for header in json.loads(content)]
    except (ValueError, TypeError, RecursionError):
        headers = []
    if len(headers) != 2:
        raise CalibrationError("no two headers")
    first, second = (
        load_ranges(_file(_sealed(header, f"ranges.{n}"), folder, f"{n}.ranges"))
        for n, header in enumerate(headers)
    )
    before = {name: histogram.total for name, histogram in first.histograms.items()}
    first.merge(second)
    for name, histogram in first.histograms.items():
        assert histogram.total == before[name] + second.histograms[name].total, name
    _limits(first)


def ranges_counts(content: bytes, folder: Path) -> None:
    """Damaged counts: negative ones, and such that overflow when added."""
    tensors = safetensors.numpy.load(_whole("ranges.0"))
    name = max(tensors, key=lambda name: tensors[name].size)
    for place, value in struct.iter_unpack("<Hq", content[: len(content) // 10 * 10]):
        tensors[name].reshape(-1)[place % tensors[name].size] = value
    outer = json.loads(_whole("ranges.0")[8 : 8 + int.from_bytes(_whole("ranges.0")[:8], "little")])
    header = json.loads(outer["__metadata__"]["qcompile"])
    header.pop("checksum")  # as files of the former format
    ranges_file(safetensors.numpy.save(tensors, {"qcompile": json.dumps(header)}), folder)


def checkpoint(content: bytes, folder: Path) -> None:
    """A checkpoint of a calibration; one that is damaged is none."""
    loaded = load_checkpoint(_file(content, folder, "a.checkpoint"), {"model": "m", "data": ["d", 1]})
    if loaded is not None:
        assert min(loaded.units, loaded.samples) >= 0
        for histogram in loaded.histograms.values():
            histogram.add(np.float32([1.0, -3e38]))


# Data and models


def npy(content: bytes, folder: Path) -> None:
    """A .npy: both readers agree on its shape."""
    path = _file(content, folder, "x.npy")
    array = load_arrays(path)[""] if content[:6] == b"\x93NUMPY" else None
    shape = read_shapes(path)[""]
    assert array is None or (array.shape == shape and not array.dtype.hasobject)


PARSERS: dict[str, Parser] = {
    "shapes": Parser(shapes),
    "options": Parser(options),
    "data_spelling": Parser(data_spelling),
    "model_spelling": Parser(model_spelling),
    "command_line": Parser(command_line),
    "recipe": Parser(lambda c, _: parse_recipe(c, Path("recipe.toml"))),
    "results": Parser(results, json=True),
    "report": Parser(
        lambda c, f: sections(s := read_source(_file(c, f, "results.json")), summarize(s).recommended),
        json=True,
    ),
    "layers": Parser(lambda c, f: load_layers(_file(c, f, "layers.json")), json=True),
    "manifest": Parser(manifest, json=True),
    "preprocessing": Parser(lambda c, _: as_json(read_preprocessing(_json(c))), json=True),
    "input_notes": Parser(input_notes, json=True),
    "hf_folder": Parser(
        lambda c, f: processor_of(_file(c, f, "preprocessor_config.json").parent, "image_processor"),
        json=True,
    ),
    "worker_answers": Parser(lambda c, _: read_answer(c), json=True),
    "ranges_header": Parser(lambda c, f: ranges_file(_sealed(c, "ranges.0"), f), json=True),
    "ranges_file": Parser(ranges_file),
    "ranges_merge": Parser(ranges_merge, json=True),
    "ranges_counts": Parser(ranges_counts),
    "checkpoint": Parser(lambda c, f: checkpoint(_sealed(c, "checkpoint"), f), json=True),
    "checkpoint_file": Parser(checkpoint),
    "tensorrt_cache": Parser(lambda c, _: parse_cache(c, Path("c.cache"))),
    "runtime_cache": Parser(
        lambda c, f: runtime_cache(b"qcompile runtime cache 1\n" + c, f),
        json=True,
    ),
    "npy": Parser(npy),
    "npz": Parser(lambda c, f: (read_shapes(path := _file(c, f, "x.npz")), load_arrays(path))),
    "image": Parser(lambda c, _: [decode(io.BytesIO(c), mode, "x.png") for mode in ("RGB", "L")]),
    "audio": Parser(lambda c, _: decode_audio(io.BytesIO(c), 16000, 1.0, "x.wav")),
    "polygraphy_inputs": Parser(lambda c, f: load_polygraphy(_file(c, f, "inputs.json")), json=True),
    "onnx": Parser(
        lambda c, f: simplify(_file(c, f, "m.onnx"), f / "s.onnx"),
        crash="onnx, onnxsim and ONNX Runtime read the bytes",
    ),
}
