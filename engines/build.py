"""Build an artifact, weigh what was proven of it, and find the layers for which a runtime refuses a graph.

Layers are weighed by their multiply-adds; where those of a planned layer are unknown, every layer weighs the
same. In this order:

1. Nothing planned, or nothing reached or unreported: fails. An artifact that is float32 although another
   precision was asked for never passes.
2. More than 10% missed, or one layer with `strict`: fails.
3. More than half is unreported, and nothing else is known of it: fails. Types that bind the runtime prove it.
   Of a runtime that tells nothing of what it fuses, as TensorRT of Transformers, it is a warning, except with
   `strict`.
4. Less is missed or unreported: a warning that names the layers. Binding types need none.

Passes of a runtime can fail on a few layers of a valid graph, with an error that names none of them. Groups
of layers are offered to it, halved where they are refused: n layers of which k are refused cost about
2 k log2(n / k) trials, each of which quantizes and compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.artifact import Artifact, Manifest, commit, tool_versions
from ..core.files import write_text, writing
from ..core.processor import why_unchecked
from ..errors import BuildError, IntentNotReached, QCompileError
from ..model import onnx
from ..model.graph.graph import constant_names, graph_precision
from ..model.graph.multiply_adds import ALLOWED_SHARE, multiply_adds, named, shares
from ..model.graph.onnx_file import Graph, is_large, read_graph
from ..model.outputs.judgement import BY_SIGNAL
from ..model.sessions.random_input import run_on
from ..model.sessions.session import slower_note
from ..model.sources.source import digest_source, parse_source
from ..spec.decode import non_default_options
from .base import BuildOutcome, BuildRequest, Engine, Planned

_OWN_FIELDS = ("target", "precision")
"""Options that a manifest has fields of its own for."""
_UNREPORTED_SHARE = 0.5
_LITTLE = 0.5  # share of the multiply-adds below which an artifact is hardly of its precision
_TRIALS = 48


def build_engine(engine: Engine, request: BuildRequest) -> Artifact:
    """Build from a graph that has the right precision already."""
    spec, final = request.spec, Path(request.output)
    engine.require_builder()
    engine.check(spec)
    with writing(final) as path:
        outcome = _build(engine, request, path)
        counts = multiply_adds(request.onnx.model) if engine.takes == "onnx" else {}
        weighed = weigh(request.precision, outcome, counts, strict=spec.strict)
        failure = weighed.failure or outcome.failure
        if weighed.failure and not outcome.planned and engine.takes == "onnx":
            failure += _why_none(request)
        if not failure and not request.is_trial:
            slower = _slower_than_float(engine, request, path)
            outcome = replace(outcome, warnings=[*outcome.warnings, *slower])
        manifest = _manifest(engine, request, outcome, weighed, counts)
        if spec.calibration_cache is not None:
            write_text(spec.calibration_cache, outcome.calibration_cache.decode())
        if failure and not spec.allow_fallback:
            kept = keep_rejected(path, final, manifest) if engine.keeps_rejected else ""
            raise IntentNotReached(
                f"{request.source or request.model} for {spec.target}: {failure}",
                hint=_way_out(weighed, outcome) + kept,
                proof={**outcome.proof, **weighed.proof},
                wrong_layer="" if weighed.failure else outcome.wrong_layer,
            )
        manifest = commit(path, manifest)
    return Artifact(final, manifest)


def _why_none(request: BuildRequest) -> str:
    """Why a graph has no layer in the precision at all, where its manifest says so."""
    layers = [node.name for nodes in request.nodes.values() for node in nodes]
    reasons = {name: why for name, why in request.reasons.items() if name in layers}
    return f": {named(reasons, shares([*reasons], {})[0])}" if reasons else ""


def _slower_than_float(engine: Engine, request: BuildRequest, path: Path) -> list[str]:
    """What a user should know of the speed of INT8 that runs here, beside its float model."""
    source = Path(request.source or request.model)
    runs = engine.takes == "onnx" and engine.suffix == source.suffix and not request.worked_around
    if request.precision != "int8" or not runs or why_unchecked(request.spec.isa):
        return []
    model = read_graph(source).model
    if graph_precision(model) != "fp32" or is_large(model):
        return []
    threads = request.spec.threads
    request.progress("compare speed with the float model")
    try:
        with (
            engine.open(str(source), threads=threads) as plain,
            engine.open(str(path), threads=threads) as made,
        ):
            feeds, _ = run_on(model, request.sample, plain.infer, inputs=plain.io.inputs)
            return slower_note(plain.prepare(feeds), made.prepare(feeds))
    except QCompileError:  # the float file may lack what was rewritten for this runtime
        return []


def _build(engine: Engine, request: BuildRequest, path: Path) -> BuildOutcome:
    """What the engine makes; where it fails after it has written, that is kept, if it keeps such."""
    try:
        return engine.build(replace(request, output=path))
    except BuildError as error:
        if engine.keeps_rejected and path.is_file():
            kept = keep_rejected(path, Path(request.output), None)
            error.hint = error.hint + kept if error.hint else kept.removeprefix("; ")
        raise


def keep_rejected(path: Path, final: Path, manifest: Manifest | None) -> str:
    """Move an artifact that is not what was asked for to a name of its own; return that as words for a hint.

    Its build may have taken an hour: it can still be run, measured and looked into.
    """
    rejected = final.with_name(f"{final.stem}.rejected{final.suffix}")
    with writing(rejected) as kept:
        path.replace(kept)
        if manifest is not None:
            commit(kept, manifest)
    return f"; what was built is kept as {rejected.name}"


def _manifest(
    engine: Engine, request: BuildRequest, outcome: BuildOutcome, weighed: Weighed, counts: Mapping[str, int]
) -> Manifest:
    spec, of_onnx = request.spec, ("onnx",) if engine.takes == "onnx" else ()
    computing = _computing(request, outcome, counts)
    return Manifest(
        kind=outcome.kind,
        stage="build",
        target=spec.target,
        precision=request.precision,
        io=outcome.io,
        sources=_sources(engine, request),
        tools={**tool_versions(*engine.packages, *of_onnx), **outcome.versions},
        device=outcome.device,
        options=non_default_options(spec, without=_OWN_FIELDS) | ({"tf32": True} if request.tf32 else {}),
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
            *_left_out(request, counts),
            *filter(None, [weighed.failure, outcome.failure]),
            *weighed.warnings,
            *_mostly_float(request.precision, computing),
        ],
    )


def _computing(request: BuildRequest, outcome: BuildOutcome, counts: Mapping[str, int]) -> dict[str, object]:
    """Of all layers that multiply, planned or not: how many reached the precision, their share, the others.

    Empty where the graph does not say the precision: of floats, and where the runtime finds the scales.
    """
    precision = request.precision
    if precision not in BY_SIGNAL or not counts or request.spec.calibrator:
        return {}
    named_layers = outcome.layers or Planned(())
    lost = {**named_layers.missed, **named_layers.unreported}
    inside = [node.name for node in request.nodes.get(precision, ()) if node.name not in lost]
    reasons = {**request.reasons, **lost}
    floats = {
        node.name: str(reasons.get(node.name, f"{node.op_type} is not quantized"))
        for kind, nodes in request.nodes.items()
        for node in nodes
        if kind != precision or node.name in lost
    }
    share, counted = shares([*inside, *floats], counts)
    return {
        "all": len(share),
        "in_precision": len(inside),
        "share": round(sum(share[name] for name in inside), 6),
        "weighed_by": counted,
        "in_float": _listed(floats, share),
    }


def _mostly_float(precision: str, computing: Mapping[str, Any]) -> list[str]:
    """What a user should know where little of the arithmetic is in the precision."""
    if not computing or computing["share"] >= _LITTLE:
        return []
    floats = computing["all"] - computing["in_precision"]
    return [
        f"{computing['share']:.1%} of all {computing['weighed_by']} are {precision}: {floats} of "
        f"{computing['all']} layers that compute are in float"
    ]


def _left_out(request: BuildRequest, counts: Mapping[str, int]) -> list[str]:
    """What was taken out of the plan, because the runtime was asked and computes it in float."""
    left = request.left_in_float
    if not left:
        return []
    share, counted = shares([*left, *(name for name in request.planned if name not in left)], counts)
    of_all = f"{len(left)} of {len(share)} layers stay in float, {sum(share[name] for name in left):.1%}"
    return [f"{of_all} of their {counted}: {named(left, share)}"]


def _way_out(weighed: Weighed, outcome: BuildOutcome) -> str:
    if not weighed.failure:
        hint = (
            "keep layers in float32 (`layers` NAME=fp32), choose another precision, or give `allow_fallback`"
        )
        return outcome.hint or hint
    way_out = "choose another precision or target, or give `allow_fallback`"
    if weighed.proof.get("missed"):
        named_layers = "(`exclude` in quantize, or `layers` NAME=fp32)"
        return f"leave the layers that missed in float {named_layers}, {way_out}"
    return way_out


def _sources(engine: Engine, request: BuildRequest) -> dict[str, str]:
    """The digests of the model and of the graph that was made from it."""
    onnx_file = engine.takes == "onnx"
    graph = request.onnx.digest() if onnx_file else digest_source(parse_source(request.model))
    return {"model": request.source_digest or graph, "graph": graph}


@dataclass(frozen=True)
class Weighed:
    """Why an artifact is not what was asked for, empty where it is; what missed or is unreported in one that
    passes; the proof for the manifest."""

    failure: str
    warnings: Sequence[str] = ()
    proof: Mapping[str, object] = field(default_factory=dict)


def weigh(
    precision: str, outcome: BuildOutcome, multiply_adds: Mapping[str, int], *, strict: bool = False
) -> Weighed:
    """Weigh what was planned against what was reached.

    The multiply-adds are those of nodes by name, as far as they are known. With `strict` one layer that
    missed is enough to fail, and flags prove nothing.
    """
    layers, text = outcome.layers, _reached_text(precision, outcome)
    if (outcome.reached < 1 and not (layers and layers.unreported)) or outcome.planned < 1:
        layers_found = outcome.proof.get("layers_by_precision")
        nothing_computes = isinstance(layers_found, dict) and not any(layers_found.values())
        if nothing_computes and precision in ("fp32", "fp16", "bf16"):
            of_tensors = f"no layer of it computes products: {precision} is the type of its tensors alone"
            return Weighed("", (of_tensors,) if precision != "fp32" else ())
        unproven_layers = {**layers.missed, **layers.unreported} if layers else {}
        if layers and unproven_layers:
            text += f": {named(unproven_layers, shares(layers.names, {})[0])}"
        return Weighed(text)
    if layers is None:
        missing = outcome.planned - outcome.reached
        if missing > 0 and (strict or missing / outcome.planned > ALLOWED_SHARE):
            return Weighed(text)
        return Weighed("", (text,) if missing > 0 else ())
    share, counted = shares(layers.names, multiply_adds)
    missed = sum(share[name] for name in layers.missed)
    unreported = sum(share[name] for name in layers.unreported)
    unproven = unreported if layers.unproven else 0.0
    proof = {
        "weighed_by": counted,
        "missed_share": round(missed, 6),
        "unreported_share": round(unreported, 6),
        **({"evidence": layers.evidence} if layers.evidence else {}),
        "missed": _listed(layers.missed, share),
        "unreported": _listed(layers.unreported, share),
    }
    texts = []
    if layers.missed:
        texts.append(
            f"{text}; {missed:.1%} of the planned {counted} missed it: {named(layers.missed, share)}"
        )
    if unproven:
        known = f"; {layers.evidence}" if layers.evidence else ""
        texts.append(
            f"{len(layers.unreported)} of {len(layers.names)} layers are unreported, {unreported:.1%} of the "
            f"planned {counted}: {named(layers.unreported, share)}{known}"
        )
    if layers.missed and (strict or missed > ALLOWED_SHARE):
        return Weighed(texts[0], (), proof)
    if unproven > _UNREPORTED_SHARE and (strict or not layers.evidence):
        return Weighed(f"{precision} was asked for and cannot be proven: {texts[-1]}", (), proof)
    return Weighed("", tuple(texts), proof)


def _listed(layers: Mapping[str, str], share: Mapping[str, float]) -> dict[str, dict[str, object]]:
    return {name: {"reason": reason, "share": round(share[name], 6)} for name, reason in layers.items()}


def _reached_text(precision: str, outcome: BuildOutcome) -> str:
    layers, counts = outcome.proof.get("layers_by_precision"), "no layers were found"
    if isinstance(layers, dict):
        each = [f"{sum(kinds.values())} in {name}" for name, kinds in layers.items() if kinds]
        counts = ", ".join(each) or "no layer computes"
    return (
        f"{precision} was asked for; {outcome.reached} of {outcome.planned} layers that compute "
        f"reached it ({counts})"
    )


def missed_or_refused(
    engine: Engine,
    request: BuildRequest,
    source: Graph,
    planned: Sequence[str],
    left: Mapping[str, str],
    without: Callable[[Mapping[str, str]], Graph],
) -> Mapping[str, str]:
    """Return the layers that an engine computes in float, or for which it refuses the graph, with reasons.

    `source` is the float model; `left` are layers that are in float already; `without` quantizes
    with the layers it is given left in float, and returns the graph.
    """
    try:
        return engine.missed_layers(request)
    except BuildError as error:
        refusal = error

    layers = [layer for layer in planned if layer not in left]

    def is_taken(graph: Graph) -> bool:
        try:
            engine.missed_layers(replace(request, graph=graph))
        except BuildError:
            return False
        return True

    def takes(some: Sequence[str]) -> bool:
        request.progress("find the layers that it refuses")
        others = dict.fromkeys([layer for layer in layers if layer not in some], "is not tried yet")
        return is_taken(without({**left, **others}))

    if not layers or not is_taken(source):
        raise refusal
    refused = refused_layers(layers, takes, alike=_alike(source.model))
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
    """Return layers without which the runtime takes the graph; None where so many trials do not find them.

    All together are refused. `takes` says whether the graph is taken with these layers alone as planned.
    Where half of the trials do not do, all layers for which `alike` gives the same as for one that was
    found may be those: a network has many of a kind.
    """
    taken: list[str] = []
    refused: list[str] = []
    groups = _halves(layers)
    for trial in range(trials):
        if not groups:
            return refused
        if trial == trials // 2 and refused and alike is not None:
            kinds = {alike(layer) for layer in refused}
            others = [layer for layer in layers if alike(layer) not in kinds]
            if takes(others):
                return [layer for layer in layers if alike(layer) in kinds]
        group = groups.pop(0)
        if takes([*taken, *group]):
            taken += group
        elif len(group) == 1:
            refused += group
        else:
            groups[:0] = _halves(group)
    return refused if not groups else None


def _alike(model: onnx.ModelProto) -> Callable[[str], object]:
    """Return what gives a layer's kind: its operator, and which of its operands are computed."""
    stored = constant_names(model)
    kinds = {
        node.name: (node.op_type, *(name in stored for name in node.input[:2])) for node in model.graph.node
    }
    return lambda layer: kinds.get(layer, layer)


def _halves(group: Sequence[str]) -> list[list[str]]:
    middle = len(group) // 2
    return [half for half in (list(group[:middle]), list(group[middle:])) if half]
