"""Search the best static INT8 graph by its output error: method, balancing, layers left in float.

What is best for a tensor need not be best for the model. Where samples are given, candidates are quantized
in turn, and the one whose outputs are nearest to the float model's is kept:

1. channels evened out: equalized (`balance.equalize`), then smoothed (`balance.smooth`);
2. biases corrected (`int8.corrections`), on few samples until the best is known;
3. other methods, where `auto` is asked for and leaves less than `_TELLING_DB`: minmax, percentile, entropy. A
   correction of biases destroys some models together with a method that clips: few rows are clipped, and all
   get the correction;
4. the most damaging layers in float, as many as it takes: for `max_damage`, or where `diff` would not let
   the outputs pass;
5. below `GOOD_DB` further ones, up to the knee: while `_KNEE_DB` are gained by layers that are `_KNEE_SHARE`
   of the multiply-adds, and in proportion by those that are less, but at least `_KNEE_LEAST_DB`.

Where there are enough samples, those that judge are not those that factors and biases are learnt from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from ...calibration import Method, parse_method
from ...core.memory import give_back
from ...errors import InvalidOption, QuantizationError
from ...model.graph.graph_rules import graph_rules
from ...model.graph.multiply_adds import multiply_adds, shares
from ...model.outputs.judgement import SNR_DB, decibels
from .balance.equalize import equalized
from .balance.smooth import look_at_channels, smoothed
from .judge import Judge
from .request import Judged, Outcome, QuantizeRequest, exactly
from .sensitivity import LayerSensitivity, rank_layers

Once = Callable[[QuantizeRequest], Outcome]

LEAST_GAIN_DB = 0.2
"""What a later candidate must gain to replace an earlier one."""

_ENOUGH_DB = SNR_DB + 1.0
GOOD_DB = 20.0
"""Below it more is tried: layers in float up to the knee, and dynamic INT8."""

_TELLING_DB = 50.0
_KNEE_DB, _KNEE_SHARE, _KNEE_LEAST_DB = 3.0, 0.05, 1.0  # half of the error's energy for a 20th of the time
_KNEE_TRIALS, _KNEE_STEP, _KNEE_HOPE = 6, 4, 0.5
_NEXT_TO_NOTHING_DB, _LITTLE_DB, _MUCH_DB = 1.0, 3.0, 30.0
_NAMED = 5  # layers that a warning names
_CORRECTED_ON = 8  # samples that correct the biases of candidates; the best has its own number
_RANKED_ON = 2  # samples on which layers are ranked: each runs once per layer


@dataclass(frozen=True)
class _Candidate:
    """One way to quantize, and what it gives."""

    request: QuantizeRequest
    outcome: Outcome
    judged: Judged

    @property
    def integers(self) -> int:
        nodes = self.outcome.proof["nodes_by_precision"]
        assert isinstance(nodes, Mapping), "the proof of static quantization"
        return sum(nodes["int8"].values())


@dataclass
class _Search:
    """The best candidate for a model so far, and all that was tried."""

    judge: Judge
    once: Once
    best: _Candidate
    tried: list[dict[str, object]] = field(default_factory=list)
    by_count: dict[int, float] = field(default_factory=dict)  # layers in float to decibels
    refusal: str = ""  # why layers in float do not help

    @property
    def request(self) -> QuantizeRequest:
        return self.best.request

    def offer(self, what: str, request: QuantizeRequest, *, least_db: float = LEAST_GAIN_DB) -> bool:
        """Quantize another way; keep it where it gains. Return whether it did.

        What the target does not execute as planned is no candidate; the proof says so.
        """
        give_back()
        try:
            outcome = self.once(request)
            judged = self.judge(outcome)
        except QuantizationError as error:
            self.tried.append({"tried": what, "refused": str(error)})
            return False
        self.tried.append(_told(what, judged))
        candidate = _Candidate(request, replace(outcome, run=None), judged)
        if judged.choice_db < self.best.judged.choice_db + least_db:
            return False
        if least_db >= 0.0 and candidate.integers < self.best.integers:
            self.tried[-1]["refused"] = "fewer layers are computed in integers"
            return False
        self.best = candidate
        return True


def _told(what: str, judged: Judged) -> dict[str, object]:
    """What the manifest says of a candidate."""
    told: dict[str, object] = {"tried": what, "snr_db": round(judged.snr_db, 2)}
    told |= {"varying_db": round(judged.varying_db, 2)} if judged.varying_db < judged.snr_db else {}
    return told | ({"choice_db": round(judged.choice_db, 2)} if judged.choice_db != judged.rank_db else {})


def best_static(request: QuantizeRequest, once: Once, judge: Judge) -> Outcome:
    """Return the best outcome of static quantization.

    Without `search`, without data, or with fixed scales, the model is quantized as it is.
    """
    spec, ranges = request.spec, request.ranges
    if spec.max_damage is not None and spec.data is None:
        raise InvalidOption("`max_damage` is measured on samples", hint="give `data`", option="data")
    if spec.max_damage is not None and not spec.search:
        raise InvalidOption("`max_damage` needs a search; `search` is off", option="max_damage")
    searches = spec.search and spec.precision == "int8" and spec.data is not None
    if not searches or ranges is None or ranges.fixed:
        return once(request)
    return _searched(request, once, judge)


def _searched(request: QuantizeRequest, once: Once, judge: Judge) -> Outcome:
    request.progress("quantize, and compare")
    plain = replace(request.asking(correct_bias=False), corrected_on=_CORRECTED_ON)
    outcome = once(plain)
    judged = judge(outcome)
    search = _Search(judge, once, _Candidate(plain, replace(outcome, run=None), judged))
    chosen = _method(request)
    search.tried.append(_told(str(chosen), judged))
    balancing = _balance(search) if request.spec.balance else {}
    if request.spec.correct_bias:
        search.offer("corrected biases", search.request.asking(correct_bias=True), least_db=0.0)
    others = (Method("minmax"), Method("percentile", chosen.percentile), Method("entropy"))
    # Above that the samples that judge tell no methods apart, and one that clips more may lose on others.
    tells = search.best.judged.rank_db < _TELLING_DB or request.spec.max_damage is not None
    for method in others if chosen.name == "auto" and tells else ():
        search.offer(str(method), search.request.asking(method=str(method)))
    judged_before = search.best.judged
    kept = _kept_in_float(search)
    _correct_on(search, request.corrected_on)
    _lstms_at_run_time(search)
    outcome = search.best.outcome
    refused = {"search_refusal": search.refusal} if search.refusal else {}
    proof = {**outcome.proof, "search": search.tried, **balancing, **refused}
    if isinstance(left := outcome.proof.get("left_in_float"), dict):
        proof["left_in_float"] = {name: kept.get(name, reason) for name, reason in left.items()}
    proof["method"] = str(_method(search.request))
    warnings = list(outcome.warnings)
    if kept and request.spec.max_damage is None:  # nobody named these layers
        more = f" and {len(kept) - _NAMED} more" if len(kept) > _NAMED else ""
        layers = f"{', '.join(list(kept)[:_NAMED])}{more}"
        why = "because `diff` would not let the outputs pass otherwise"
        if judged_before.snr_db >= _ENOUGH_DB and not judged_before.failed:
            why = f"which gains {search.best.judged.rank_db - judged_before.rank_db:.1f} dB"
        warnings.append(f"left in float, {why}: {layers}")
    return Outcome(outcome.model, proof, warnings, search.best.judged)


def _correct_on(search: _Search, samples: int) -> None:
    """Correct the biases of the best on as many samples, where there are more than the candidates had."""
    before, spec = search.best, search.request.spec
    there = search.request.samples(samples).total
    if not before.outcome.proof["corrected_biases"] or (there is not None and there <= _CORRECTED_ON):
        return
    request = replace(search.request, corrected_on=samples)
    search.offer(f"biases corrected on {samples} samples", request, least_db=0.0)
    if spec.max_damage is not None and search.best.judged.snr_db < spec.max_damage:
        search.best = before


def _lstms_at_run_time(search: _Search) -> None:
    """Quantize LSTMs with scales that ONNX Runtime finds in every run, where they cost next to nothing.

    That is 1 dB, and 3 dB down to 30. A recognizer of texts is 2.7 times as fast as FP32, in place of 1.7.
    """
    before, spec = search.best, search.request.spec
    if not graph_rules(spec.target).by_onnxruntime or spec.max_damage is not None:
        return
    if any(node.op_type == "LSTM" for node in search.request.model.graph.node):
        now_db, request = before.judged.rank_db, replace(search.request, dynamic_lstms=True)
        most_db = max(_NEXT_TO_NOTHING_DB, min(_LITTLE_DB, now_db - _MUCH_DB))
        search.offer("LSTMs with scales found at run time", request, least_db=-most_db)
        if search.best.judged.failed and not before.judged.failed:
            search.best = before


def _kept_in_float(search: _Search) -> dict[str, str]:
    """Leave layers in float as `max_damage` asks, else where `diff` would refuse outputs, and to the knee.

    Return why each is. Without `max_damage` half of them at most: beyond it the caller refuses the model.
    """
    spec, whole = search.request.spec, search.best
    least_db = spec.max_damage
    if least_db is not None:
        if whole.judged.snr_db >= least_db:
            return {}
        return _take_back(
            search, _ranked(search.request), lambda judged: judged.snr_db >= least_db, f"{least_db:g} dB"
        )
    if spec.allow_loss or (whole.judged.rank_db >= GOOD_DB and not whole.judged.failed):
        return {}

    def enough(judged: Judged) -> bool:
        return judged.snr_db >= _ENOUGH_DB and not judged.failed

    recurrent = {} if enough(whole.judged) else _recurrences_in_float(search)
    if search.best.judged.rank_db >= GOOD_DB and not search.best.judged.failed:
        return recurrent
    ranked, kept = _ranked(search.request), dict[str, str]()
    most = _half(search.request, [damage.layer for damage in ranked])
    try:
        if not enough(search.best.judged):
            kept = _take_back(search, ranked, enough, f"{_ENOUGH_DB:g} dB", most=most)
    except QuantizationError as error:
        search.best, search.refusal = whole, error.message.partition(": ")[2]
        search.refusal += f"; most is lost in {', '.join(damage.layer for damage in ranked[:_NAMED])}"
        return {}
    return recurrent | kept | _to_the_knee(search, ranked, len(kept), most=most)


def _half(request: QuantizeRequest, names: Sequence[str]) -> int:
    """How many of the first layers are half of all, or of the multiply-adds if that is more."""
    share, _ = shares(names, multiply_adds(request.model))
    return max(len(names) // 2, sum(total <= 0.5 for total in accumulate(share[name] for name in names)))


def _recurrences_in_float(search: _Search) -> dict[str, str]:
    """Leave LSTMs and GRUs as they are, where their products cost so much; return why they are in float."""
    before, told = search.best, search.best.outcome.proof["lstms"]
    assert isinstance(told, Mapping), "the proof of static quantization"
    if not (opened := told["opened"]):
        return {}
    made = search.offer("recurrences in float", _without(search.request, opened), least_db=-math.inf)
    if made and search.best.judged.rank_db >= before.judged.rank_db + _KNEE_DB:
        return dict.fromkeys(opened, f"in INT8 they leave {before.judged.snr_db:.1f} dB")
    search.best = before
    return {}


def _to_the_knee(
    search: _Search, ranked: Sequence[LayerSensitivity], count: int, *, most: int
) -> dict[str, str]:
    """Leave layers behind the first `count` in float, while it is worth it; return why they are."""
    names, begun, noise = [damage.layer for damage in ranked], count, [damage.noise for damage in ranked]
    share, _ = shares(names, multiply_adds(search.request.model))
    request, step = search.request, 1
    for _ in range(_KNEE_TRIALS):
        more, before = names[count : count + step], search.best
        cost = sum(share[name] for name in more)
        if step > _KNEE_STEP or count + step > most or cost > _KNEE_SHARE:
            break
        tried = _without(request, names[begun : count + step])  # it excludes the first ones already
        gain_db = max(_KNEE_DB * cost / _KNEE_SHARE, _KNEE_LEAST_DB)
        needed_db = before.judged.rank_db + gain_db
        # Were the noises of layers independent, they would gain so much.
        promised_db = decibels(sum(noise[count:]), sum(noise[count + step :]))
        made = (
            promised_db >= _KNEE_HOPE * gain_db
            and search.by_count.get(count + step, needed_db) >= needed_db
            and search.offer(f"{count + step} layers in float", tried, least_db=-math.inf)
        )
        if made and search.best.judged.rank_db >= needed_db:
            count, step = count + step, 1
        else:
            search.best, step = before, 2 * step
    return {
        damage.layer: f"worth its time with others: alone in INT8 it leaves {damage.snr_db:.1f} dB"
        for damage in ranked[begun:count]
    }


def _method(request: QuantizeRequest) -> Method:
    assert request.ranges is not None, "best_static asks"
    return parse_method(request.spec.method) if request.spec.method else request.ranges.method


def _balance(search: _Search) -> dict[str, object]:
    """Offer the equalized and the smoothed model; return what the proof tells of it."""
    told = dict[str, object]()
    assert search.request.ranges is not None, "best_static asks"
    data = search.request.samples(max(search.request.ranges.samples, 1))  # as many as were observed
    search.request.progress("equalize channels")
    rows = look_at_channels(search.request, data)
    request, pairs, rescaled = equalized(search.request, data, rows)
    if pairs:
        is_kept = search.offer("equalized", request)
        told["equalized_pairs"] = pairs if is_kept else 0
        rows = {name: seen for name, seen in rows.items() if not is_kept or name not in rescaled}
    search.request.progress("smooth channels")
    request, done = smoothed(search.request, data, rows)
    if done.rescaled:
        kept = search.offer("smoothed", request)
        gained = "the outputs gain by it" if kept else "the outputs do not gain by it"
        told["smoothed"] = done.places if kept else {}
        told["smoothing"] = f"{len(done.places)} places: {gained}"
    told["left_alone"] = done.left_alone
    return told


def _ranked(request: QuantizeRequest) -> list[LayerSensitivity]:
    """The layers by what each does to the outputs, the most damaging first."""
    assert request.ranges is not None, "best_static asks"
    request.progress("damage of each layer")
    give_back()
    floats = [pattern for pattern, kind in request.spec.layer_precisions.items() if kind != "int8"]
    return rank_layers(
        request.model, request.spec.target, request.ranges, request.samples(_RANKED_ON, is_spread=True),
        isa=request.spec.isa, method=_method(request),
        exclude=[*request.spec.exclude, *floats], only=request.spec.only,
    )  # fmt: skip


def _without(request: QuantizeRequest, names: Sequence[str]) -> QuantizeRequest:
    """The request with layers left in float, beside those that it excludes."""
    return request.asking(exclude=(*request.spec.exclude, *map(exactly, names)))


def _take_back(
    search: _Search, ranked: Sequence[LayerSensitivity], enough: Callable[[Judged], bool], required: str, *,
    most: int | None = None,
) -> dict[str, str]:  # fmt: skip
    """Leave the worst layers in float, `most` of them, until the outputs are near enough; return why."""
    request, names = search.request, [damage.layer for damage in ranked]
    high = len(names) if most is None else min(most + 1, len(names))  # never tried, or enough
    low, most_db, kept = 0, search.best.judged.snr_db, None  # so many are too few
    while high - low > 1:
        middle = (low + high) // 2
        tried = _without(request, names[:middle])
        made = search.offer(f"{middle} layers in float", tried, least_db=-math.inf)
        most_db = max(most_db, search.best.judged.snr_db)
        search.by_count[middle] = search.best.judged.rank_db if made else -math.inf
        if made and enough(search.best.judged):
            high, kept = middle, search.best
        else:
            low = middle
    if kept is None:
        raise QuantizationError(
            f"{request.path}: {most_db:.1f} dB with {low} of {len(names)} layers in float; "
            f"{required} is required",
            hint="lower `max_damage`, or keep the model in float",
        )
    search.best = kept
    return {
        damage.layer: f"for {required}: alone in INT8 it leaves {damage.snr_db:.1f} dB"
        for damage in ranked[:high]
    }
