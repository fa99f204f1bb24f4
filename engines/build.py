"""Build an artifact, verify its precision, and find the layers for which a runtime refuses a graph.

A planned layer is a layer (Conv, MatMul, ...) with the requested precision in the graph. It missed that
precision if the runtime computes it in another one, and is unreported if the runtime reports no precision.
Layers are weighed by multiply-adds, or all alike if counts or names are unknown. The first rule that applies
decides:

1. No layer is planned, or all planned layers missed the precision: fail. A float32 artifact never passes for
   another precision. A graph without such layers passes in fp32, fp16 and bf16.
2. More than 10% missed, or one layer with `strict`: fail.
3. More than half is unreported, and the runtime may use other types than the graph's: fail. TensorRT reports
   nothing inside its fusions (of Transformers), but Q/DQ and flags are evidence: warn, or fail with `strict`.
4. Otherwise pass, and warn of missed layers, and of unreported layers if the runtime may use other types.

A runtime's optimizer can fail on a few layers of a valid graph, with an error that names none of them. The
search tries groups of layers and halves refused groups. If k of n layers are refused, it takes about
2 k log2(n / k) trials; each trial quantizes and compiles the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.artifact import Artifact, Manifest, commit, tool_versions
from ..core.files import write_text, writing
from ..core.processor import foreign_isa_warnings
from ..errors import BuildError, IntentNotReached, QCompileError
from ..model import onnx
from ..model.graph.graph import constant_names, graph_precision
from ..model.graph.multiply_adds import ALLOWED_SHARE, format_layers, multiply_adds, shares
from ..model.graph.onnx_file import Graph, is_large, read_graph
from ..model.outputs.judgement import BY_SIGNAL
from ..model.sessions.random_input import run_on
from ..model.sessions.session import slower_note
from ..model.sources.source import digest_source, parse_source
from ..spec.decode import non_default_options
from .base import BuildOutcome, BuildRequest, Engine, PlannedLayers

_MANIFEST_FIELDS = ("target", "precision")
"""Options that are also fields of a manifest."""
_UNREPORTED_SHARE = 0.5
_MOSTLY_FLOAT_SHARE = 0.5  # with a smaller share in the precision, a warning counts the float layers
_TRIALS = 48


def build_engine(engine: Engine, request: BuildRequest) -> Artifact:
    """Build an artifact from a graph in the right precision, verify it, and write it with its manifest."""
    spec, final = request.spec, Path(request.output)
    engine.require_builder()
    engine.check(spec)
    with writing(final) as path:
        outcome = _build(engine, request, path)
        counts = multiply_adds(request.onnx.model) if engine.takes == "onnx" else {}
        weighed = judge_precision(request.precision, outcome, counts, strict=spec.strict)
        failure = weighed.failure or outcome.failure
        if weighed.failure and not outcome.planned and engine.takes == "onnx":
            failure += _reasons_for_none(request)
        if not failure and not request.is_trial:
            speed_warnings = _speed_warning(engine, request, path)
            outcome = replace(outcome, warnings=[*outcome.warnings, *speed_warnings])
        manifest = _manifest(engine, request, outcome, weighed, counts)
        if spec.calibration_cache is not None:
            write_text(spec.calibration_cache, outcome.calibration_cache.decode())
        if failure and not spec.allow_fallback:
            rejected_hint = keep_rejected(path, final, manifest) if engine.keeps_rejected else ""
            raise IntentNotReached(
                f"{request.source or request.model} for {spec.target}: {failure}",
                hint=_fix_hint(weighed, outcome) + rejected_hint,
                proof={**outcome.proof, **weighed.proof},
                wrong_layer="" if weighed.failure else outcome.wrong_layer,
            )
        manifest = commit(path, manifest)
    return Artifact(final, manifest)


def _reasons_for_none(request: BuildRequest) -> str:
    """Return, as text, the recorded reasons why layers are not quantized; empty if none is recorded."""
    layers = [node.name for nodes in request.nodes.values() for node in nodes]
    reasons = {name: why for name, why in request.reasons.items() if name in layers}
    return f": {format_layers(reasons, shares([*reasons], {})[0])}" if reasons else ""


def _speed_warning(engine: Engine, request: BuildRequest, path: Path) -> list[str]:
    """Return a warning if the INT8 artifact is slower here than its float model, if both can be measured."""
    source = Path(request.source or request.model)
    is_comparable = engine.takes == "onnx" and engine.suffix == source.suffix and not request.worked_around
    if request.precision != "int8" or not is_comparable or foreign_isa_warnings(request.spec.isa):
        return []
    model = read_graph(source).model
    if graph_precision(model) != "fp32" or is_large(model):
        return []
    threads = request.spec.threads
    request.progress("compare speed with the float model")
    try:
        with (
            engine.open(str(source), threads=threads) as float_runner,
            engine.open(str(path), threads=threads) as artifact,
        ):
            feeds, _ = run_on(model, request.sample, float_runner.infer, inputs=float_runner.io.inputs)
            return slower_note(float_runner.prepare(feeds), artifact.prepare(feeds))
    except QCompileError:  # without rewrites for this runtime, the float file may not run
        return []


def _build(engine: Engine, request: BuildRequest, path: Path) -> BuildOutcome:
    """Run the engine's build. If the build fails after writing a file, `keep_rejected` may save the file."""
    try:
        return engine.build(replace(request, output=path))
    except BuildError as error:
        if engine.keeps_rejected and path.is_file():
            rejected_hint = keep_rejected(path, Path(request.output), None)
            error.hint = error.hint + rejected_hint if error.hint else rejected_hint.removeprefix("; ")
        raise


def keep_rejected(path: Path, final: Path, manifest: Manifest | None) -> str:
    """Rename an artifact that failed verification to `NAME.rejected.SUFFIX`; return a text for the hint."""
    final_path = final.with_name(f"{final.stem}.rejected{final.suffix}")
    with writing(final_path) as rejected_path:
        path.replace(rejected_path)
        if manifest is not None:
            commit(rejected_path, manifest)
    return f"; the artifact is saved as {final_path.name}"


def _manifest(
    engine: Engine,
    request: BuildRequest,
    outcome: BuildOutcome,
    weighed: PrecisionVerdict,
    counts: Mapping[str, int],
) -> Manifest:
    spec, of_onnx = request.spec, ("onnx",) if engine.takes == "onnx" else ()
    computing = _count_layers(request, outcome, counts)
    return Manifest(
        kind=outcome.kind,
        stage="build",
        target=spec.target,
        precision=request.precision,
        io=outcome.io,
        sources=_sources(engine, request),
        tools={**tool_versions(*engine.packages, *of_onnx), **outcome.versions},
        device=outcome.device,
        options=non_default_options(spec, without=_MANIFEST_FIELDS)
        | ({"tf32": True} if request.tf32 else {}),
        proof={
            **outcome.proof,
            **weighed.proof,
            "left_in_float": dict(request.left_in_float),
            **({"worked_around": dict(request.worked_around)} if request.worked_around else {}),
            **({"computing_layers": computing} if computing else {}),
            "planned_in_precision": outcome.planned,
            "reached_in_precision": outcome.reached,
        },
        checks=outcome.checks,
        warnings=[
            *request.warnings,
            *outcome.warnings,
            *_float_layer_warning(request, counts),
            *filter(None, [weighed.failure, outcome.failure]),
            *weighed.warnings,
            *_mostly_float_warning(request.precision, computing),
        ],
    )


def _count_layers(
    request: BuildRequest, outcome: BuildOutcome, counts: Mapping[str, int]
) -> dict[str, object]:
    """Count all layers that multiply, planned or not: those in the precision, and those in float.

    Return an empty dict for float precisions, without multiply-adds, and if the runtime calibrates.
    """
    precision = request.precision
    if precision not in BY_SIGNAL or not counts or request.spec.calibrator:
        return {}
    named_layers = outcome.layers or PlannedLayers(())
    unreached = {**named_layers.missed, **named_layers.unreported}
    inside = [node.name for node in request.nodes.get(precision, ()) if node.name not in unreached]
    reasons = {**request.reasons, **unreached}
    floats = {
        node.name: str(reasons.get(node.name, f"{node.op_type} is not quantized"))
        for kind, nodes in request.nodes.items()
        for node in nodes
        if kind != precision or node.name in unreached
    }
    share, unit = shares([*inside, *floats], counts)
    return {
        "all": len(share),
        "in_precision": len(inside),
        "share": round(sum(share[name] for name in inside), 6),
        "weighed_by": unit,
        "in_float": _with_shares(floats, share),
    }


def _mostly_float_warning(precision: str, computing: Mapping[str, Any]) -> list[str]:
    if not computing or computing["share"] >= _MOSTLY_FLOAT_SHARE:
        return []
    floats = computing["all"] - computing["in_precision"]
    return [
        f"{computing['share']:.1%} of all {computing['weighed_by']} are {precision}: {floats} of "
        f"{computing['all']} layers that compute are in float"
    ]


def _float_layer_warning(request: BuildRequest, counts: Mapping[str, int]) -> list[str]:
    """Return a warning on layers that have no Q/DQ because the runtime would compute them in float."""
    layers = request.left_in_float
    if not layers:
        return []
    share, unit = shares([*layers, *(name for name in request.planned if name not in layers)], counts)
    of_all = f"{len(layers)} of {len(share)} layers stay in float, {sum(share[name] for name in layers):.1%}"
    return [f"{of_all} of their {unit}: {format_layers(layers, share)}"]


def _fix_hint(weighed: PrecisionVerdict, outcome: BuildOutcome) -> str:
    if not weighed.failure:
        hint = (
            "keep layers in float32 (`layers` NAME=fp32), choose another precision, or give `allow_fallback`"
        )
        return outcome.hint or hint
    way_out = "choose another precision or target, or give `allow_fallback`"
    if weighed.proof.get("missed"):
        named_layers = "(`exclude` in quantize, or `layers` NAME=fp32)"
        return f"keep the missed layers in float {named_layers}, {way_out}"
    return way_out


def _sources(engine: Engine, request: BuildRequest) -> dict[str, str]:
    """Return the digests of the model and of the graph made from it."""
    onnx_file = engine.takes == "onnx"
    graph = request.onnx.digest() if onnx_file else digest_source(parse_source(request.model))
    return {"model": request.source_digest or graph, "graph": graph}


@dataclass(frozen=True)
class PrecisionVerdict:
    """Verdict on an artifact's precision: the failure if it fails, warnings, and proof for the manifest."""

    failure: str
    warnings: Sequence[str] = ()
    proof: Mapping[str, object] = field(default_factory=dict)


def judge_precision(
    precision: str, outcome: BuildOutcome, multiply_adds: Mapping[str, int], *, strict: bool = False
) -> PrecisionVerdict:
    """Compare the planned layers with those that reached the precision.

    `multiply_adds` maps node names to counts, as far as known. With `strict`, one missed layer fails, and
    evidence does not replace a report of the runtime.
    """
    layers, text = outcome.layers, _reached_text(precision, outcome)
    if (outcome.reached < 1 and not (layers and layers.unreported)) or outcome.planned < 1:
        layers_found = outcome.proof.get("layers_by_precision")
        nothing_computes = isinstance(layers_found, dict) and not any(layers_found.values())
        if nothing_computes and precision in ("fp32", "fp16", "bf16"):
            of_tensors = f"no layer multiplies: {precision} is the type of its tensors alone"
            return PrecisionVerdict("", (of_tensors,) if precision != "fp32" else ())
        unproven_layers = {**layers.missed, **layers.unreported} if layers else {}
        if layers and unproven_layers:
            text += f": {format_layers(unproven_layers, shares(layers.names, {})[0])}"
        return PrecisionVerdict(text)
    if layers is None:
        missing = outcome.planned - outcome.reached
        if missing > 0 and (strict or missing / outcome.planned > ALLOWED_SHARE):
            return PrecisionVerdict(text)
        return PrecisionVerdict("", (text,) if missing > 0 else ())
    share, unit = shares(layers.names, multiply_adds)
    missed = sum(share[name] for name in layers.missed)
    unreported = sum(share[name] for name in layers.unreported)
    unproven = unreported if layers.unproven else 0.0
    proof = {
        "weighed_by": unit,
        "missed_share": round(missed, 6),
        "unreported_share": round(unreported, 6),
        **({"evidence": layers.evidence} if layers.evidence else {}),
        "missed": _with_shares(layers.missed, share),
        "unreported": _with_shares(layers.unreported, share),
    }
    texts = []
    if layers.missed:
        texts.append(
            f"{text}; {missed:.1%} of the planned {unit} missed it: {format_layers(layers.missed, share)}"
        )
    if unproven:
        evidence = f"; {layers.evidence}" if layers.evidence else ""
        texts.append(
            f"{len(layers.unreported)} of {len(layers.names)} layers are unreported, {unreported:.1%} of the "
            f"planned {unit}: {format_layers(layers.unreported, share)}{evidence}"
        )
    if layers.missed and (strict or missed > ALLOWED_SHARE):
        return PrecisionVerdict(texts[0], (), proof)
    if unproven > _UNREPORTED_SHARE and (strict or not layers.evidence):
        return PrecisionVerdict(f"{precision} was requested and cannot be proven: {texts[-1]}", (), proof)
    return PrecisionVerdict("", tuple(texts), proof)


def _with_shares(layers: Mapping[str, str], share: Mapping[str, float]) -> dict[str, dict[str, object]]:
    return {name: {"reason": reason, "share": round(share[name], 6)} for name, reason in layers.items()}


def _reached_text(precision: str, outcome: BuildOutcome) -> str:
    layers, counts = outcome.proof.get("layers_by_precision"), "no layers were found"
    if isinstance(layers, dict):
        each = [f"{sum(kinds.values())} in {name}" for name, kinds in layers.items() if kinds]
        counts = ", ".join(each) or "no layer computes"
    return (
        f"{precision} was requested; {outcome.reached} of {outcome.planned} layers that compute "
        f"reached it ({counts})"
    )


def layers_to_leave_in_float(
    engine: Engine,
    request: BuildRequest,
    source: Graph,
    planned: Sequence[str],
    float_layers: Mapping[str, str],
    quantize_without: Callable[[Mapping[str, str]], Graph],
) -> Mapping[str, str]:
    """Map each layer that the engine computes in float, or for which it refuses the graph, to the reason.

    `source` is the float model. `quantize_without` quantizes the model with the given layers in float;
    `float_layers` were found earlier. Raise the engine's BuildError if the search finds no such layers.
    """
    try:
        return engine.missed_layers(request)
    except BuildError as error:
        refusal = error

    layers = [layer for layer in planned if layer not in float_layers]

    def is_taken(graph: Graph) -> bool:
        try:
            engine.missed_layers(replace(request, graph=graph))
        except BuildError:
            return False
        return True

    def takes(group: Sequence[str]) -> bool:
        request.progress("find the refused layers")
        untried = dict.fromkeys([layer for layer in layers if layer not in group], "not tried yet")
        return is_taken(quantize_without({**float_layers, **untried}))

    if not layers or not is_taken(source):
        raise refusal
    refused = refused_layers(layers, takes, alike=_kind_of_layer(source.model))
    if refused is None or len(refused) == len(layers):
        raise refusal
    reason = f"{engine.name} refuses the graph with it in INT8: {refusal.message.rpartition(': ')[2]}"
    return dict.fromkeys(refused, reason)


def refused_layers(
    layers: Sequence[str],
    takes: Callable[[Sequence[str]], bool],
    *,
    trials: int = _TRIALS,
    alike: Callable[[str], object] | None = None,
) -> list[str] | None:
    """Return layers to leave in float so that the runtime accepts the graph; None if the trials end first.

    The runtime must refuse the graph with all layers quantized. `takes` returns whether it accepts a graph
    with only the given layers quantized; `alike` returns a layer's kind. A network repeats its kinds of
    layers, so after half of the trials the search leaves all layers of the refused kinds in float at once.
    """
    accepted: list[str] = []
    refused: list[str] = []
    groups = _halves(layers)
    for trial in range(trials):
        if not groups:
            return refused
        if trial == trials // 2 and refused and alike is not None:
            kinds = {alike(layer) for layer in refused}
            other_kinds = [layer for layer in layers if alike(layer) not in kinds]
            if takes(other_kinds):
                return [layer for layer in layers if alike(layer) in kinds]
        group = groups.pop(0)
        if takes([*accepted, *group]):
            accepted += group
        elif len(group) == 1:
            refused += group
        else:
            groups[:0] = _halves(group)
    return refused if not groups else None


def _kind_of_layer(model: onnx.ModelProto) -> Callable[[str], object]:
    """Return a function from a layer to its kind: operator, and which of two operands are constants."""
    stored = constant_names(model)
    kinds = {
        node.name: (node.op_type, *(name in stored for name in node.input[:2])) for node in model.graph.node
    }
    return lambda layer: kinds.get(layer, layer)


def _halves(group: Sequence[str]) -> list[list[str]]:
    middle = len(group) // 2
    return [half for half in (list(group[:middle]), list(group[middle:])) if half]
