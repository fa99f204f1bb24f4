"""`qcompile inspect --tensor-cores`: print the layers whose sizes do not fit; export the model first."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidOption
from ..files import temporary_folder
from ..spec.looking import InspectCommand
from .session import Session
from .tables import DASH, add_row, make_table

_SHOWN = 30


def show_tensor_cores(session: Session, given: InspectCommand) -> None:
    """Print the layers that do not fit, and the sentence about the whole model.

    Raises:
        InvalidOption: If what is given is no model.
    """
    from ..model.source import parse_source
    from ..reporting.tensor_cores import tensor_core_facts

    if given.file.suffix in (".engine", ".plan", ".ranges", ".json"):
        raise InvalidOption(
            f"`tensor_cores` {given.file}: an ONNX file or a PyTorch MODEL is required",
            hint="give the model that it was made from",
            option="tensor_cores",
        )
    source = parse_source(str(given.file))
    if source.is_named and not source.options.weights:
        source = parse_source(str(given.file), weights="random")  # sizes do not depend on them
    with temporary_folder("sizes") as folder:
        path = source.path if source.kind == "onnx" else None
        if path is None:
            from ..compiler.export import export

            path = folder / "model.onnx"
            export(source, path, inputs=given.inputs, progress=session.progress)
        facts = tensor_core_facts(path, precision=given.precision, gpus=given.gpus)
    session.json({"file": str(given.file), **facts})
    odd = [one for one in facts["layers"] if one["kind"] == "unaligned"]
    _show_table(session, facts, odd)
    tensorrt = [one for one in facts["layers"] if one["below_tensorrt"]]
    if tensorrt:
        session.say(
            f"{len(tensorrt)} more are no multiple of {facts['tensorrt_alignment']}, "
            "which TensorRT's guide asks for and pads to"
        )
    for one in facts["gpus"]:
        session.say(
            f"{one['gpu']}: {one['why_not'] or 'its Tensor Cores take ' + facts['precision'].upper()}"
        )
    session.say(facts["summary"])


def _show_table(session: Session, facts: dict[str, Any], odd: list[dict[str, Any]]) -> None:
    if not odd:
        return
    title = f"{facts['precision'].upper()}: sizes that are no multiple of {facts['alignment']}"
    table = make_table(
        title, "layer", "operator", "groups", "K or channels in", "N or channels out", "M", "multiply-adds",
        "wasted if padded",
    )  # fmt: skip
    for one in odd[:_SHOWN]:
        add_row(
            table,
            one["name"],
            one["operator"],
            str(one["groups"]),
            *(_size(one, name) for name in ("k", "n", "m")),
            f"{one['share']:.2%}",
            f"{one['wasted_share']:.1%}",
        )
    session.table(table)
    if len(odd) > _SHOWN:
        session.say(f"{len(odd) - _SHOWN} more, with smaller shares: --json has all")


def _size(one: dict[str, Any], name: str) -> str:
    size, padded = one[name], one[f"padded_{name}"]
    if size is None:
        return DASH
    return str(size) if size == padded else f"{size} -> {padded}"
