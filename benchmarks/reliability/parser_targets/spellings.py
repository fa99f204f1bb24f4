"""Parsers of what is typed: shapes, tolerances, data, models, options, whole command lines."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import click
from target import Target, folder, text_of

from qcompile.bench.metrics.names import read_metric
from qcompile.bench.results.regress import parse_limit
from qcompile.bench.workers.interpreters import parse_interpreters
from qcompile.calibration.calibrate import parse_shard
from qcompile.calibration.tensorrt_cache import version_code
from qcompile.calibration.thresholds import parse_method
from qcompile.cli.main import _VERBS
from qcompile.cli.verb import Verb, read
from qcompile.comparison.diff import parse_rules, parse_tolerances
from qcompile.data.spelling import FUNCTION, Spelling, parse_spelling, read_query
from qcompile.engines.gpu import parse_devices
from qcompile.errors import InvalidOption
from qcompile.model.source import parse_source
from qcompile.model.source_options import parse_query
from qcompile.pipeline.migrate import polygraphy, trtexec
from qcompile.pipeline.migrate.command_line import read_command
from qcompile.pipeline.recipe_batches import _read_profile
from qcompile.spec.tensorrt import TensorRTOptions, parse_bytes
from qcompile.tensors import (
    format_shape,
    parse_dynamic_axis,
    parse_input,
    parse_named_shape,
    parse_shape,
    parse_shapes,
)


def shapes(content: bytes) -> None:
    """Every spelling of a shape; what is printed is read as the same."""
    text = text_of(content)
    for parse in (
        parse_named_shape,
        parse_dynamic_axis,
        lambda text: parse_shapes([text, "y:1"], option="x"),
    ):
        _tried(parse, text)
    shape = _tried(parse_shape, text)
    if shape is not None:
        assert parse_shape(format_shape(shape)) == shape, (text, shape)
        assert all(extent >= 0 for extent in shape if isinstance(extent, int)), text
    declared = _tried(parse_input, text)
    if declared is not None:
        assert parse_input(str(declared)) == declared, text
        assert all(one.minimum >= 1 for one in declared.extents), text


def options(content: bytes) -> None:
    """Options with a grammar of their own."""
    text = text_of(content)
    limits = _tried(lambda text: parse_tolerances([text], option="atol"), text)
    if limits is not None:
        assert all(0 <= value < float("inf") for value in limits.values()), text
    parsers: list[Callable[[str], Any]] = [
        lambda text: parse_rules([text], option="rules"),
        parse_limit,
        parse_shard,
        version_code,
        lambda text: parse_devices(text.split(",")),
        lambda text: parse_interpreters([text]),
        lambda text: parse_bytes(text, option="workspace"),
        _read_profile,
        lambda text: TensorRTOptions(memory_pools=(text,)).pool_bytes,
        lambda text: TensorRTOptions(io_formats=(text,)).tensor_formats,
        lambda text: TensorRTOptions(profiles=(text,)),
    ]
    for parse in parsers:
        _tried(parse, text)
    method = _tried(parse_method, text)
    if method is not None:
        assert parse_method(str(method)) == method, text
    if ":" not in text:  # what has a colon may be a function, which is imported
        _tried(read_metric, text)


def data(content: bytes) -> None:
    """DATA; the spelling of what was read is read as the same."""
    text = text_of(content)
    found = parse_spelling(text)
    assert _normal(parse_spelling(str(found))) == _normal(found), text
    if found.kind != FUNCTION:
        located = found.located(folder())
        assert _normal(parse_spelling(str(located))) == _normal(located), text
    read_query(found.query, text)


def _normal(spelling: Spelling) -> Spelling:
    return replace(spelling, path=os.path.normpath(spelling.path))


def model(content: bytes) -> None:
    """MODEL; the options that were read are written as they are read."""
    text = text_of(content)
    said = _tried(lambda text: parse_query(text, "model"), text)
    if said is not None and said.query:
        assert parse_query(said.query[1:], "model") == said, text
    found = parse_source(text, base=folder())
    if found.is_named:
        assert parse_source(found.absolute, base=folder()).options == found.options, text


@functools.cache
def _commands() -> dict[str, Verb]:
    found: dict[str, Verb] = {}
    for name in _VERBS:
        command = getattr(import_module(f"qcompile.cli.{name}"), name)
        for one in (command, *getattr(command, "commands", {}).values()):
            if isinstance(one, Verb):
                found[one.name or name] = one
    return found


def command(content: bytes) -> None:
    """Arguments of a verb, one a line, the verb first: read as they are typed, nothing is run."""
    verb, *arguments = text_of(content.replace(b"\0", b"")).split("\n")  # no argument holds a NUL
    chosen = _commands().get(verb)
    if chosen is None:
        raise InvalidOption(f"verb {verb!r}: another is required")
    try:
        context = chosen.make_context(verb, [one for one in arguments if one not in ("--help", "-h")])
    except click.ClickException as error:
        error.format_message()
        return
    with context:
        read(chosen.spec, context.params, told=lambda _: None)


def migrate(content: bytes) -> None:
    """Command lines of trtexec and Polygraphy."""
    call = read_command(text_of(content))
    translate = {"trtexec": trtexec.translate, "polygraphy": polygraphy.translate}[call.tool]
    for target in ("tensorrt", "tensorrt-rtx"):
        translate(call.words, target)
    shlex.split(call.text)


def _tried(parse: Callable[[str], Any], text: str) -> Any:
    from qcompile.errors import QCompileError

    try:
        return parse(text)
    except QCompileError:
        return None


def _lines(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


_COMMANDS = (
    "export\nmodel.py:build\n-o\nm.onnx\n--input\nx:[batch,3,224,224]\n--dynamic\nx:0=batch",
    "build\nm.onnx\n-o\nm.engine\n--target\ntensorrt-rtx\n--precision\nint8\n--gpu\nsm86,sm90\n--workspace\n4G",
    "bench\na.onnx\n--baseline\nb.onnx\n--max-time\n60\n--timeout\n600\n--batch-sizes\n1,2,4\n--metric\nf1:macro",
    "diff\na\nb\n--atol\ny:1e-3\n--rtol\n0.01\n--max-drop\n0.5\n--judge\ny:classes\n--threshold\n20",
    "tune\nm\n-o\nout\n--data\nd.npz\n--max-drop\n1\n--max-time\n1e9",
    "calibrate\nm.onnx\n--data\nimages:d?samples=8\n-o\nr\n--method\npercentile:99.9\n--shard\n1/2",
    "quantize\nm.onnx\n-o\nq.onnx\n--ranges\nr\n--layer\nconv*=fp16\n--max-damage\n3\n--exclude\nConv,Add",
    "report\nr.json\n--max-size\n5\n--max-latency\n1e-3\n-o\nr.html",
    "auto\nm\n--data\nd\n--max-drop\n1",
    "run\nr.toml\n--again\nbench\n--dry-run",
)
_MIGRATED = (
    "trtexec --onnx=m.onnx --saveEngine=m.engine --fp16 --int8 --minShapes=x:1x3x8x8 --optShapes=x:2x3x8x8"
    " --maxShapes=x:4x3x8x8 --memPoolSize=workspace:512M,tacticSharedMem:64K --duration=10",
    "polygraphy run m.onnx --trt --int8 --calibration-cache=c.cache --trt-min-shapes x:[1,3,8,8]"
    " --trt-opt-shapes x:[1,3,8,8] --trt-max-shapes x:[8,3,8,8] --pool-limit workspace:1e9 --atol y:1e-3",
    'docker run --rm -v $PWD:/w -w /w image bash -c "trtexec --onnx=/w/m.onnx --layerPrecisions=*:fp16"',
    "sudo X=1 trtexec --onnx=a.onnx --inputIOFormats=fp16:chw,int8:chw32 --shapes='x':1x3"
    " --precisionConstraints=obey",
    "polygraphy convert m.onnx -o m.engine --fp16 --layer-precisions conv:float32"
    " --data-loader-script d.py:load",
)

TARGETS = (
    Target(
        "shapes",
        shapes,
        _lines(
            "x:1x3x224x224",
            "x:[batch,3,height=32..64..512,width=..512]:int64",
            "1,3,8",
            "x:0=batch",
            "scalar",
            "serving:0:[?,3]:float16",
            "a.b/c_:[N+1, h*2]",
            "[]",
            "x:[]:bool",
        ),
        words=(
            "float32",
            "..",
            "x:",
            "[",
            "]",
            "=32..512",
            "bfloat16",
            "²",
            "٣",
            "99999999999999999999",
            "-1",
        ),
        longest=256,
    ),
    Target(
        "options",
        options,
        _lines(
            "y:1e-3",
            "classes",
            "y:embedding",
            "slower:5%",
            "accuracy:0.5",
            "percentile:99.9",
            "2/8",
            "8.5.3.1",
            "cpu,cuda:1",
            "tensorrt=python3",
            "64K",
            "1.5GiB",
            "x:1x3..2x3..4x3",
            "workspace=4G",
            "x=float16:chw32",
            "f1:macro",
            "ndcg:10",
            "auto",
        ),
        words=("nan", "inf", "-inf", "1e999", "infinity", "0x10", "1_0", "²", "%", "-0.0"),
        longest=128,
    ),
    Target(
        "data_spelling",
        data,
        _lines(
            "images:d?samples=8&seed=1&part=calibration",
            "d/x.npz",
            "csv:t.csv?column=text&label=y",
            "file.py:load",
            "package.module:load",
            "./images:x%3Fy?balanced=false",
            "images:d?preprocessing=hf:./f&masks=l",
            "images:d?annotations=a.json&masks=m",
        ),
        words=(
            "%3F",
            "%26",
            "%25",
            "\0",
            "__main__:x",
            "~",
            "~root/",
            "..",
            "jsonl:",
            "&",
            "?",
            "C:\\",
            "timm:",
        ),
        longest=512,
    ),
    Target(
        "model_spelling",
        model,
        _lines(
            "timm:resnet18?weights=random&classes=10&seed=3",
            "hf:./folder?task=text-classification",
            "torchvision:resnet18?size=32x64&download=1",
            "m.py:build?weights=w.safetensors",
            "a.b:c",
            "m.onnx",
            "folder:serve",
            "weights=a%20b&size=8",
        ),
        words=("%26", "\0", "~", "~root", "hf:/", "classes=", "²", "__main__:x", "..", ".pt2", "1" * 300),
        longest=512,
    ),
    Target(
        "command_line",
        command,
        _lines(*_COMMANDS),
        words=("nan", "inf", "1e400", "--input", "--max-time", "\n", "--", "-1", "sm999", "²"),
        longest=1024,
    ),
    Target(
        "migrate",
        migrate,
        _lines(*_MIGRATED),
        words=(
            "--onnx=",
            "'",
            '"',
            "$(",
            "${A}",
            "nan",
            "inf",
            "1e999",
            "trtexec",
            "-c",
            "docker run",
            "\\\n",
            ":",
        ),
        longest=1024,
    ),
)
