"""The verbs that inspect and package: `inspect`, `doctor`, `package`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.figures import counted
from ..spec.looking import DoctorCommand, EpContextCommand, InspectCommand, TritonCommand
from ..spec.tensors import ModelIO
from . import tables
from .session import Session
from .usage import OrderedGroup
from .verb import verb

if TYPE_CHECKING:
    from ..engines.doctor import Diagnosis


@verb(
    InspectCommand,
    "qcompile inspect model.onnx",
    "qcompile inspect model.onnx --nodes",
    "qcompile inspect model.onnx --nodes --precision int8",
    "qcompile inspect model.engine",
    "qcompile inspect model.ranges --json",
)
def inspect(session: Session, options: InspectCommand) -> int:
    """Print the facts about a file; return 1 if it does not match its manifest."""
    from ..bench.report.inspection import inspect as look

    facts = look(options.file, options)
    session.json(facts)
    session.say(f"{facts['file']}: {facts['kind']}, {tables.bytes_text(facts['size_bytes'])}")
    _PRINTERS.get(facts["kind"], _show_manifest)(session, facts)
    return 0 if facts.get("matches_manifest", True) else 1


def _show_onnx(session: Session, facts: dict[str, Any]) -> None:
    session.say(f"  opset {facts['opset']}, made by {facts['producer'] or 'unknown'}")
    tables.present_io(session, ModelIO.from_json(facts["io"]))
    share = f"{facts['quantized_share']:.0%}"
    session.say(f"  {facts['precision']}; {share} of the layers that compute are quantized")
    table = tables.make_table("", "operator", "nodes")
    for operator, count in facts["operators"].items():
        tables.add_row(table, operator, str(count))
    session.table(table)
    if "nodes" in facts:
        listing = tables.make_table("", "node", "operator", "precision", "Tensor Cores", text=True)
        for node in facts["nodes"]:
            tables.add_row(listing, node["name"], node["operator"], node["precision"], node["tensor_cores"])
        session.table(listing)
    _show_manifest(session, facts)


def _show_ranges(session: Session, facts: dict[str, Any]) -> None:
    samples, tensors = (counted(facts[f"{noun}s"], noun) for noun in ("sample", "tensor"))
    session.say(f"  {samples}, method {facts['method']}, of model {facts['model'][:19]}…")
    session.say(f"  {tensors} observed, {facts['shared']} share their ranges")
    for name, reason in facts["skipped"].items():
        session.say(f"  skipped {name}: {reason}")
    session.say(f"  qcompile ranges show {facts['file']} lists them")
    _show_manifest(session, facts)


def _show_program(session: Session, facts: dict[str, Any]) -> None:
    """Print the facts about an engine or a TorchScript archive, which only its manifest contains."""
    manifest = facts.get("manifest") or {}
    if manifest.get("io"):
        tables.present_io(session, ModelIO.from_json(manifest["io"]))
    for line in tables.profile_lines(manifest.get("proof", {})):
        session.say(f"  {line}")
    _show_manifest(session, facts)


def _show_results(session: Session, facts: dict[str, Any]) -> None:
    from ..bench.results.results import load_results

    session.table(tables.results_table(load_results(Path(facts["file"])), width=session.width))


def _show_manifest(session: Session, facts: dict[str, Any]) -> None:
    manifest = facts.get("manifest")
    if manifest is None:
        session.say("  no manifest: not made by qcompile, or its .json was left behind")
        return
    if not facts["matches_manifest"]:
        digest, recorded = facts["digest"][:19], manifest["digest"][:19]
        session.warn(
            [
                f"the file does not match its manifest: digest {digest}… differs from {recorded}…; "
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
    for line in tables.left_in_float_lines(proof, "its .json"):
        session.say(f"  {line}")
    if proof.get("has_run") is False:
        session.say("  not run: verified only by the types of the network")
    for check in manifest["checks"]:
        session.say(f"  checked: {check['name']}: {check['detail']}")
    session.warn(manifest["warnings"])


_PRINTERS = {
    "onnx": _show_onnx,
    "engine": _show_program,
    "torchscript": _show_program,
    "ranges": _show_ranges,
    "results": _show_results,
}


@verb(
    DoctorCommand,
    "qcompile doctor",
    "qcompile doctor --gpu sm86,sm89",
    "qcompile doctor --python tensorflow=tf/bin/python",
    files=False,
)
def doctor(session: Session, options: DoctorCommand) -> int:
    from ..engines import doctor as diagnose

    session.progress("look at the installation")
    diagnosis = diagnose(options)
    session.json(asdict(diagnosis))
    machine: dict[str, Any] = diagnosis.machine
    session.say(f"Python {diagnosis.python}, {diagnosis.system}, {machine['processor']}")
    session.say(", ".join(f"{name} {version}" for name, version in diagnosis.packages.items()))
    sets = ", ".join(machine["features"]) or "unknown instruction sets"
    memory, free = tables.bytes_text(machine["memory_bytes"]), tables.bytes_text(machine["free_bytes"])
    threads = counted(machine["threads"], "thread")
    session.say(f"processor: {sets}; {threads}, {memory} memory, {free} free on the disk")
    session.say(f"  {machine['int8']}")
    for index, gpu in enumerate(diagnosis.gpus):
        session.say(f"GPU {index}: {gpu.name}, {tables.bytes_text(gpu.memory_bytes)}, CUDA {gpu.cuda}")
    for types in diagnosis.types:
        note = f" ({types.note})" if types.note else ""
        taken = f"Tensor Cores take {', '.join(types.types)}" if types.types else "no Tensor Cores"
        session.say(f"  {types.capability} {types.architecture}{note}: {taken}")
    if not session.quiet:
        _show_targets(session, diagnosis)
        _show_precisions(session, diagnosis)
        _show_extras(session, diagnosis)
    for problem in diagnosis.problems:
        session.warn([f"{problem.problem}\n  fix: {problem.fix}"])
    return 1 if diagnosis.problems else 0


def _show_targets(session: Session, diagnosis: Diagnosis) -> None:
    table = tables.make_table("", "target", "builds here", "runs here", "on a GPU here", "fix", text=True)
    for state in diagnosis.targets:
        on_gpu = "no" if state.why_not_run else state.why_not_run_on_gpu
        reasons = (reason or "yes" for reason in (state.why_not_build, state.why_not_run, on_gpu))
        tables.add_row(table, state.target, *reasons, state.fix)
    session.table(table)


_SPARE = ("mxfp8", "nvfp4", "tf32", "fp8", "int4", "bf16")


def _show_precisions(session: Session, diagnosis: Diagnosis) -> None:
    """Print one row per target and device, and below, each reason once with its precisions."""
    without_build = {state.target for state in diagnosis.targets if state.why_not_build}  # their table has it
    rows: dict[tuple[str, str], dict[str, str]] = {}
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for cell in diagnosis.precisions:
        rows.setdefault((cell.target, cell.device), {})[cell.precision] = cell.state
        if cell.reason and cell.target not in without_build:
            reasons.setdefault((cell.target, cell.reason, cell.fix), []).append(cell.precision)
    precisions = list(next(iter(rows.values()), {}))
    table = tables.make_table(
        "precisions on this machine", "target", "on", *precisions, text=True, spare=_SPARE
    )
    for (target, device), states in rows.items():
        tables.add_row(table, target, device, *(states[name] for name in precisions))
    session.table(table)
    for (target, reason, fix), names in reasons.items():
        fix_text = f"; {session.spelled(fix)}" * bool(fix)
        session.say(f"  {target} {', '.join(dict.fromkeys(names))}: {reason}{fix_text}")
    session.say("  concluded from instruction sets and tables, not measured: qcompile bench measures")


def _show_extras(session: Session, diagnosis: Diagnosis) -> None:
    table = tables.make_table("", "extra", "state", "missing or wrong", "fix", text=True)
    for extra in diagnosis.extras:
        tables.add_row(table, extra.extra, extra.state, extra.problem or ", ".join(extra.missing), extra.fix)
    session.table(table)
    state = diagnosis.tensorflow
    versions = ", ".join(f"{name} {version}" for name, version in state.versions.items()) or "nothing known"
    session.say(f"TensorFlow by {state.python}: {state.problem or 'converts its models'} ({versions})")
    if state.fix:
        session.say(f"  fix: {session.spelled(state.fix)}")


@click.group(cls=OrderedGroup)
def package() -> None:
    """Package an artifact for the software that serves it."""


@verb(
    TritonCommand,
    "qcompile package triton model.engine --name resnet -o model_repository",
    "qcompile package triton model.engine --name resnet -o model_repository --version 2 "
    "--version-policy latest:2 --instances 2 --gpus 0,1 --preferred-batch 4,8 --max-queue-delay-us 100",
    "qcompile package triton bert.onnx --name bert -o model_repository --max-batch-size 8 "
    "--warm-up-shapes input_ids:8x128",
    short_help="write a model repository for Triton Inference Server",
)
def triton(session: Session, options: TritonCommand) -> None:
    from ..building.deploy import package_triton

    packaged = package_triton(options.artifact, options.output, options, progress=session.progress)
    session.json(packaged.as_json())
    batch = f"batches up to {packaged.max_batch_size}" if packaged.max_batch_size else "no batching"
    session.say(f"{packaged.folder}  version {packaged.version}, {packaged.backend}, {batch}")
    session.say("  config.pbtxt")
    for file in packaged.files:
        session.say(f"  {packaged.version}/{file}")
    for check in packaged.checks:
        session.say(f"  checked: {check.name}: {check.detail}")
    session.say(f"  serve: {packaged.server}")
    session.warn(packaged.warnings)


@verb(
    EpContextCommand,
    "qcompile package ep-context model.engine -o model_ctx.onnx",
    "qcompile package ep-context model.engine -o model_ctx.onnx --embed",
    short_help="write an ONNX file with the engine inside for ONNX Runtime and Windows ML",
)
def ep_context(session: Session, options: EpContextCommand) -> None:
    from ..building.deploy import package_ep_context

    packaged = package_ep_context(options.artifact, options.output, options, progress=session.progress)
    session.json(packaged.as_json())
    place = "inside" if packaged.embedded else f"beside it, in {packaged.files[-1].name}"
    session.say(f"{packaged.path}  for {packaged.provider}, GPUs {packaged.architecture}, the engine {place}")
    for check in packaged.checks:
        session.say(f"  checked: {check.name}: {check.detail}")
    for option in packaged.provider_options:
        session.say(f"  provider option, where the provider has it: {option}")
    session.warn(packaged.warnings)


ep_context.name = "ep-context"
package.add_command(triton)
package.add_command(ep_context)
