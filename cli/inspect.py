"""`qcompile inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..spec.looking import InspectCommand
from ..tensors import ModelIO
from .session import Session
from .tables import add_row, bytes_text, make_table, present_io, profile_lines, results_table
from .verb import verb


@verb(
    InspectCommand,
    "qcompile inspect model.onnx",
    "qcompile inspect model.onnx --nodes",
    "qcompile inspect model.onnx --nodes --precision int8",
    "qcompile inspect model.engine",
    "qcompile inspect model.ranges --json",
)
def inspect(session: Session, given: InspectCommand) -> int:
    """Print what is known of a file; the exit code is 1 if it is not what its manifest says."""
    from ..reporting.inspection import inspect as look

    facts = look(given.file, given)
    session.json(facts)
    session.say(f"{facts['file']}: {facts['kind']}, {bytes_text(facts['size_bytes'])}")
    _SHOW.get(facts["kind"], _show_manifest)(session, facts)
    return 0 if facts.get("matches_manifest", True) else 1


def _show_onnx(session: Session, facts: dict[str, Any]) -> None:
    session.say(f"  opset {facts['opset']}, made by {facts['producer'] or 'unknown'}")
    present_io(session, ModelIO.from_json(facts["io"]))
    share = f"{facts['quantized_share']:.0%}"
    session.say(f"  {facts['precision']}; {share} of the layers that compute are quantized")
    table = make_table("", "operator", "nodes")
    for operator, count in facts["operators"].items():
        add_row(table, operator, str(count))
    session.table(table)
    if "nodes" in facts:
        listing = make_table("", "node", "operator", "precision", "Tensor Cores", text=True)
        for node in facts["nodes"]:
            add_row(listing, node["name"], node["operator"], node["precision"], node["tensor_cores"])
        session.table(listing)
    _show_manifest(session, facts)


def _show_ranges(session: Session, facts: dict[str, Any]) -> None:
    session.say(f"  {facts['samples']} samples, method {facts['method']}, of model {facts['model'][:19]}…")
    session.say(f"  {facts['tensors']} tensors observed, {facts['shared']} share their ranges")
    for name, reason in facts["skipped"].items():
        session.say(f"  skipped {name}: {reason}")
    session.say(f"  qcompile ranges show {facts['file']} lists them")
    if not facts["has_checksum"]:
        session.say("  no checksum: an earlier version made it; a damage would not be found")
    _show_manifest(session, facts)


def _show_program(session: Session, facts: dict[str, Any]) -> None:
    """What only its manifest tells of an engine or a TorchScript archive."""
    manifest = facts.get("manifest") or {}
    if manifest.get("io"):
        present_io(session, ModelIO.from_json(manifest["io"]))
    for line in profile_lines(manifest.get("proof", {})):
        session.say(f"  {line}")
    _show_manifest(session, facts)


def _show_results(session: Session, facts: dict[str, Any]) -> None:
    from ..bench.results.results import load_results

    session.table(results_table(load_results(Path(facts["file"])), width=session.width))


_LEFT_SHOWN = 10


def _show_manifest(session: Session, facts: dict[str, Any]) -> None:
    manifest = facts.get("manifest")
    if manifest is None:
        session.say("  no manifest: not made by qcompile, or its .json was left behind")
        return
    if not facts["matches_manifest"]:
        digest, said = facts["digest"][:19], manifest["digest"][:19]
        session.warn(
            [
                f"the file is not the one its manifest describes: digest {digest}… differs from {said}…; "
                f"it was changed. Make it again, or remove {facts['file']}.json if the change was meant"
            ]
        )
    tools = ", ".join(f"{name} {version}" for name, version in manifest["tools"].items())
    session.say(f"  made by {manifest['stage']} with {tools}")
    for word in ("target", "precision"):
        if manifest[word]:
            session.say(f"  {word}: {manifest[word]}")
    if manifest["device"]:
        for key, value in manifest["device"].items():
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            session.say(f"  {key}: {shown}")
    proof = manifest["proof"]
    label = "layers" if proof.get("has_run") is False else "layers, as executed"
    executed = proof.get("as_executed") or proof.get("layers_by_precision") or {}
    for precision, kinds in executed.items():
        if kinds:
            counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            session.say(f"  {precision} {label}: {counts}")
    for word in ("evidence", "inspector"):
        if proof.get(word):
            session.say(f"  {word}: {proof[word]}")
    left = proof.get("left_in_float", {})
    for name, reason in list(left.items())[:_LEFT_SHOWN]:
        session.say(f"  left in float: {name} ({reason})")
    if len(left) > _LEFT_SHOWN:
        session.say(f"  left in float: {len(left) - _LEFT_SHOWN} more, see its .json")
    if proof.get("has_run") is False:
        session.say("  it has not been run: the proof is the types of the network")
    for check in manifest["checks"]:
        session.say(f"  checked: {check['name']}: {check['detail']}")
    session.warn(manifest["warnings"])


_SHOW = {
    "onnx": _show_onnx,
    "engine": _show_program,
    "torchscript": _show_program,
    "ranges": _show_ranges,
    "results": _show_results,
}
