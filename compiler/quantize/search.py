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
from dataclasses import dataclass, replace
from itertools import accumulate

from ...calibration import Method, parse_method
from ...core.figures import counted
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
    def rank_db(self) -> float:
        return self.judged.rank_db

    @property
    def integers(self) -> int:
        nodes = self.outcome.proof["nodes_by_precision"]
        assert isinstance(nodes, Mapping), "the proof of static quantization"
        return sum(nodes["int8"].values())

    def without(self, names: Sequence[str]) -> QuantizeRequest:
        """Return its request with layers left in float, beside those that it excludes."""
        return self.request.asking(exclude=(*self.request.spec.exclude, *map(exactly, names)))


class _Search:
    """Makes candidates of one model; `tried` has a row of each for the manifest."""

    def __init__(self, once: Once, judge: Judge) -> None:
        self._once, self._judge = once, judge
        self.tried: list[dict[str, object]] = []

    def first(self, what: str, request: QuantizeRequest) -> _Candidate:
        """Quantize as the request says, and judge the outcome."""
        outcome = self._once(request)
        judged = self._judge(outcome)
        row: dict[str, object] = {"tried": what, "snr_db": round(judged.snr_db, 2)}
        row |= {"varying_db": round(judged.varying_db, 2)} if judged.varying_db < judged.snr_db else {}
        row |= {"choice_db": round(judged.choice_db, 2)} if judged.choice_db != judged.rank_db else {}
        self.tried.append(row)
        return _Candidate(request, replace(outcome, run=None), judged)

    def try_(self, what: str, request: QuantizeRequest) -> _Candidate | None:
        """Return another candidate; None where the target does not execute it as planned."""
        give_back()
        try:
            return self.first(what, request)
        except QuantizationError as error:
            self.tried.append({"tried": what, "refused": str(error)})
            return None

    def better(
        self, best: _Candidate, what: str, request: QuantizeRequest, *, gain_db: float = LEAST_GAIN_DB
    ) -> _Candidate:
        """Return another candidate if it gains `gain_db` and computes as much in integers, else `best`."""
        candidate = self.try_(what, request)
        if candidate is None or candidate.judged.choice_db < best.judged.choice_db + gain_db:
            return best
        if candidate.integers < best.integers:
            self.tried[-1]["refused"] = "fewer layers are computed in integers"
            return best
        return candidate


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
    search, chosen, spec = _Search(once, judge), _method(request), request.spec
    plain = replace(request.asking(correct_bias=False), corrected_on=_CORRECTED_ON)
    best = search.first(str(chosen), plain)
    best, balancing = _balanced(search, best) if spec.balance else (best, {})
    if spec.correct_bias:
        best = search.better(best, "corrected biases", best.request.asking(correct_bias=True), gain_db=0.0)
    others = (Method("minmax"), Method("percentile", chosen.percentile), Method("entropy"))
    # Above that the samples that judge tell no methods apart, and one that clips more may lose on others.
    tells = best.rank_db < _TELLING_DB or spec.max_damage is not None
    for method in others if chosen.name == "auto" and tells else ():
        best = search.better(best, str(method), best.request.asking(method=str(method)))
    quantized = best.judged
    best, in_float, refusal = _partly_in_float(search, best)
    best = _corrected_on(search, best, request.corrected_on)
    best = _lstms_at_run_time(search, best)
    proof = {**best.outcome.proof, "search": search.tried, **balancing}
    if refusal:
        proof["search_refusal"] = refusal
    if isinstance(left := best.outcome.proof.get("left_in_float"), dict):
        proof["left_in_float"] = {name: in_float.get(name, reason) for name, reason in left.items()}
    proof["method"] = str(_method(best.request))
    warnings = list(best.outcome.warnings)
    if in_float and spec.max_damage is None:  # nobody named these layers
        more = f" and {len(in_float) - _NAMED} more" if len(in_float) > _NAMED else ""
        layers = f"{', '.join(list(in_float)[:_NAMED])}{more}"
        why = "because `diff` would not let the outputs pass otherwise"
        if _is_enough(quantized):
            why = f"which gains {best.rank_db - quantized.rank_db:.1f} dB"
        warnings.append(f"left in float, {why}: {layers}")
    return Outcome(best.outcome.model, proof, warnings, best.judged)


def _is_enough(judged: Judged) -> bool:
    return judged.snr_db >= _ENOUGH_DB and not judged.failed


def _is_good(judged: Judged) -> bool:
    return judged.rank_db >= GOOD_DB and not judged.failed


def _balanced(search: _Search, best: _Candidate) -> tuple[_Candidate, dict[str, object]]:
    """Try the equalized and the smoothed model; return the best, and what the proof says of it."""
    entries, request = dict[str, object](), best.request
    assert request.ranges is not None, "best_static asks"
    data = request.samples(max(request.ranges.samples, 1))  # as many as were observed
    request.progress("equalize channels")
    rows = look_at_channels(request, data)
    request, pairs, rescaled = equalized(request, data, rows)
    if pairs:
        before, best = best, search.better(best, "equalized", request)
        is_equalized = best is not before
        entries["equalized_pairs"] = pairs if is_equalized else 0
        rows = {name: seen for name, seen in rows.items() if not is_equalized or name not in rescaled}
    best.request.progress("smooth channels")
    request, done = smoothed(best.request, data, rows)
    if done.rescaled:
        before, best = best, search.better(best, "smoothed", request)
        gained = "the outputs gain by it" if best is not before else "the outputs do not gain by it"
        entries["smoothed"] = done.places if best is not before else {}
        entries["smoothing"] = f"{len(done.places)} places: {gained}"
    entries["left_alone"] = done.left_alone
    return best, entries


def _corrected_on(search: _Search, best: _Candidate, samples: int) -> _Candidate:
    """Correct the biases of the best on as many samples, where there are more than the candidates had."""
    most_db, total = best.request.spec.max_damage, best.request.samples(samples).total
    if not best.outcome.proof["corrected_biases"] or (total is not None and total <= _CORRECTED_ON):
        return best
    request = replace(best.request, corrected_on=samples)
    corrected = search.better(best, f"biases corrected on {counted(samples, 'sample')}", request, gain_db=0.0)
    return best if most_db is not None and corrected.judged.snr_db < most_db else corrected


def _lstms_at_run_time(search: _Search, best: _Candidate) -> _Candidate:
    """Quantize LSTMs with scales that ONNX Runtime finds in every run, where they cost next to nothing.

    That is 1 dB, and 3 dB down to 30. A recognizer of texts is 2.7 times as fast as FP32, in place of 1.7.
    """
    request, spec = best.request, best.request.spec
    if not graph_rules(spec.target).by_onnxruntime or spec.max_damage is not None:
        return best
    if not any(node.op_type == "LSTM" for node in request.model.graph.node):
        return best
    most_db = max(_NEXT_TO_NOTHING_DB, min(_LITTLE_DB, best.rank_db - _MUCH_DB))
    dynamic = search.try_("LSTMs with scales found at run time", replace(request, dynamic_lstms=True))
    if dynamic is None or dynamic.judged.choice_db < best.judged.choice_db - most_db:
        return best
    return best if dynamic.judged.failed and not best.judged.failed else dynamic


def _partly_in_float(search: _Search, whole: _Candidate) -> tuple[_Candidate, dict[str, str], str]:
    """Leave layers in float as `max_damage` asks, else where `diff` would refuse outputs, and to the knee.

    Return the best candidate, why each layer is in float, and why layers in float do not help. Without
    `max_damage` half of them at most: beyond it the caller refuses the model.
    """
    spec, least_db = whole.request.spec, whole.request.spec.max_damage
    if least_db is not None:
        if whole.judged.snr_db >= least_db:
            return whole, {}, ""
        ranked = _ranked(whole.request)
        best, in_float, _ = _fewest_in_float(
            search, whole, ranked, lambda judged: judged.snr_db >= least_db, f"{least_db:g} dB"
        )
        return best, in_float, ""
    if spec.allow_loss or _is_good(whole.judged):
        return whole, {}, ""
    best, recurrent = whole, dict[str, str]()
    if not _is_enough(whole.judged):
        best, recurrent = _recurrences_in_float(search, whole)
    if _is_good(best.judged):
        return best, recurrent, ""
    ranked, worst, tried_db = _ranked(best.request), dict[str, str](), dict[int, float]()
    most = _half(best.request, [damage.layer for damage in ranked])
    try:
        if not _is_enough(best.judged):
            best, worst, tried_db = _fewest_in_float(
                search, best, ranked, _is_enough, f"{_ENOUGH_DB:g} dB", most=most
            )
    except QuantizationError as error:
        refusal = error.message.partition(": ")[2]
        lost = f"most is lost in {', '.join(damage.layer for damage in ranked[:_NAMED])}"
        return whole, {}, f"{refusal}; {lost}"
    best, further = _to_the_knee(search, best, ranked, len(worst), tried_db, most=most)
    return best, recurrent | worst | further, ""


def _half(request: QuantizeRequest, names: Sequence[str]) -> int:
    """How many of the first layers are half of all, or of the multiply-adds if that is more."""
    share, _ = shares(names, multiply_adds(request.model))
    return max(len(names) // 2, sum(total <= 0.5 for total in accumulate(share[name] for name in names)))


def _recurrences_in_float(search: _Search, best: _Candidate) -> tuple[_Candidate, dict[str, str]]:
    """Leave LSTMs and GRUs as they are, where their products cost so much; return why they are in float."""
    lstms = best.outcome.proof["lstms"]
    assert isinstance(lstms, Mapping), "the proof of static quantization"
    if not (opened := lstms["opened"]):
        return best, {}
    candidate = search.try_("recurrences in float", best.without(opened))
    if candidate is not None and candidate.rank_db >= best.rank_db + _KNEE_DB:
        return candidate, dict.fromkeys(opened, f"in INT8 they leave {best.judged.snr_db:.1f} dB")
    return best, {}


def _fewest_in_float(
    search: _Search, best: _Candidate, ranked: Sequence[LayerSensitivity],
    enough: Callable[[Judged], bool], required: str, *, most: int | None = None,
) -> tuple[_Candidate, dict[str, str], dict[int, float]]:  # fmt: skip
    """Leave the worst layers in float, `most` of them, until the outputs are near enough.

    Return the candidate, why each layer is in float, and decibels by each number of layers tried.
    """
    names = [damage.layer for damage in ranked]
    high = len(names) if most is None else min(most + 1, len(names))  # never tried, or enough
    low, most_db, fewest = 0, best.judged.snr_db, None  # so many are too few
    tried_db = dict[int, float]()
    while high - low > 1:
        middle = (low + high) // 2
        candidate = search.try_(f"{counted(middle, 'layer')} in float", best.without(names[:middle]))
        tried_db[middle] = candidate.rank_db if candidate else -math.inf
        if candidate is not None:
            most_db = max(most_db, candidate.judged.snr_db)
        if candidate is not None and enough(candidate.judged):
            high, fewest = middle, candidate
        else:
            low = middle
    if fewest is None:
        raise QuantizationError(
            f"{best.request.path}: {most_db:.1f} dB with {low} of {counted(len(names), 'layer')} in float; "
            f"{required} is required",
            hint="lower `max_damage`, or keep the model in float",
        )
    why = f"for {required}: alone in INT8 it leaves"
    return fewest, {damage.layer: f"{why} {damage.snr_db:.1f} dB" for damage in ranked[:high]}, tried_db


def _to_the_knee(
    search: _Search, best: _Candidate, ranked: Sequence[LayerSensitivity], count: int,
    tried_db: Mapping[int, float], *, most: int,
) -> tuple[_Candidate, dict[str, str]]:  # fmt: skip
    """Leave layers behind the first `count` in float, while it is worth it; return why they are.

    `tried_db` has the decibels of numbers of layers that were tried before.
    """
    names, first, noise = [damage.layer for damage in ranked], count, [damage.noise for damage in ranked]
    share, _ = shares(names, multiply_adds(best.request.model))
    begin, step = best, 1  # `begin` excludes the first layers already
    for _ in range(_KNEE_TRIALS):
        cost = sum(share[name] for name in names[count : count + step])
        if step > _KNEE_STEP or count + step > most or cost > _KNEE_SHARE:
            break
        gain_db = max(_KNEE_DB * cost / _KNEE_SHARE, _KNEE_LEAST_DB)
        needed_db = best.rank_db + gain_db
        # Were the noises of layers independent, they would gain so much.
        promised_db = decibels(sum(noise[count:]), sum(noise[count + step :]))
        candidate = None
        if promised_db >= _KNEE_HOPE * gain_db and tried_db.get(count + step, needed_db) >= needed_db:
            without = begin.without(names[first : count + step])
            candidate = search.try_(f"{counted(count + step, 'layer')} in float", without)
        if candidate is not None and candidate.rank_db >= needed_db:
            best, count, step = candidate, count + step, 1
        else:
            step *= 2
    return best, {
        damage.layer: f"worth its time with others: alone in INT8 it leaves {damage.snr_db:.1f} dB"
        for damage in ranked[first:count]
    }


def _method(request: QuantizeRequest) -> Method:
    assert request.ranges is not None, "best_static asks"
    return parse_method(request.spec.method) if request.spec.method else request.ranges.method


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
