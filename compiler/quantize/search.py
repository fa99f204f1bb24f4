"""Search for the static INT8 graph with the least output error: method, balancing, layers left in float.

The best choice for each tensor is not always the best for the model. With samples, the search quantizes
candidates in turn, and selects the candidate with outputs closest to the float model's:

1. balanced channels: equalized (`balance.equalize`), then smoothed (`balance.smooth`);
2. corrected biases (`int8.corrections`), on few samples until the best candidate is final;
3. other methods, if the method is `auto` and the SNR below `_COMPARABLE_DB`: minmax, percentile, entropy.
   Bias correction with a clipping method destroys some models: few rows are clipped, but all are corrected;
4. the most damaging layers in float, as few as meet `max_damage`, or else the criteria of `diff`;
5. below `GOOD_DB`, further layers in float up to the knee: while layers with `_KNEE_SHARE` of the
   multiply-adds gain `_KNEE_DB`. Smaller layers must gain in proportion, but at least `_KNEE_LEAST_DB`.

With enough samples, candidates are compared on other samples than those for factors and biases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ...calibration import Method, parse_method
from ...core.memory import trim_heap
from ...errors import InvalidOption, QuantizationError
from ...model.graph.graph_rules import graph_rules
from ...model.graph.multiply_adds import multiply_adds, shares
from ...model.outputs.judgement import SNR_DB, decibels
from .balance.equalize import equalize_request
from .balance.smooth import observe_channels, smooth_request
from .judge import Judge
from .request import Outcome, OutputQuality, QuantizeRequest, glob_for_name
from .sensitivity import LayerSensitivity, rank_layers

Once = Callable[[QuantizeRequest], Outcome]

LEAST_GAIN_DB = 0.2
"""Minimum gain of a later candidate to replace an earlier one."""

_ENOUGH_DB = SNR_DB + 1.0
GOOD_DB = 20.0
"""Below this the search leaves layers in float up to the knee, and `quantize_graph` tries dynamic INT8."""

_COMPARABLE_DB = 50.0
_KNEE_DB, _KNEE_SHARE, _KNEE_LEAST_DB = 3.0, 0.05, 1.0  # half the error's energy for 5% of the work
_KNEE_TRIALS, _KNEE_STEP, _KNEE_HOPE = 6, 4, 0.5
_FREE_LOSS_DB, _SMALL_LOSS_DB, _REMAINING_DB = 1.0, 3.0, 30.0
_NAMED = 5  # layers that a warning names
_CORRECTED_ON = 8  # samples that correct the biases of candidates; the best gets `request.corrected_on`
_RANKED_ON = 2  # samples on which layers are ranked: each runs once per layer


@dataclass(frozen=True)
class _Candidate:
    """A quantized graph that the search tries, with its request."""

    request: QuantizeRequest
    outcome: Outcome
    judged: OutputQuality

    @property
    def rank_db(self) -> float:
        return self.judged.rank_db

    @property
    def integers(self) -> int:
        nodes = self.outcome.proof["nodes_by_precision"]
        assert isinstance(nodes, Mapping), "the proof of static quantization"
        return sum(nodes["int8"].values())

    def without(self, names: Sequence[str]) -> QuantizeRequest:
        """Return its request with further layers left in float."""
        return self.request.with_options(exclude=(*self.request.spec.exclude, *map(glob_for_name, names)))


class _Search:
    """Quantizes candidates of one model; `tried` has a row for each, for the manifest."""

    def __init__(self, once: Once, judge: Judge) -> None:
        self._once, self._judge = once, judge
        self.tried: list[dict[str, object]] = []

    def first(self, label: str, request: QuantizeRequest) -> _Candidate:
        """Quantize according to the request, and compare the outputs."""
        outcome = self._once(request)
        judged = self._judge(outcome)
        row: dict[str, object] = {"tried": label, "snr_db": round(judged.snr_db, 2)}
        row |= {"varying_db": round(judged.varying_db, 2)} if judged.varying_db < judged.snr_db else {}
        row |= {"choice_db": round(judged.choice_db, 2)} if judged.choice_db != judged.rank_db else {}
        self.tried.append(row)
        return _Candidate(request, replace(outcome, run=None), judged)

    def try_(self, label: str, request: QuantizeRequest) -> _Candidate | None:
        """Return another candidate, or None if the target would not execute it as planned."""
        trim_heap()
        try:
            return self.first(label, request)
        except QuantizationError as error:
            self.tried.append({"tried": label, "refused": str(error)})
            return None

    def better(
        self, best: _Candidate, label: str, request: QuantizeRequest, *, gain_db: float = LEAST_GAIN_DB
    ) -> _Candidate:
        """Return another candidate if it gains `gain_db` without fewer integer layers, else `best`."""
        candidate = self.try_(label, request)
        if candidate is None or candidate.judged.choice_db < best.judged.choice_db + gain_db:
            return best
        if candidate.integers < best.integers:
            self.tried[-1]["refused"] = "fewer layers are computed in integers"
            return best
        return candidate


def best_static(request: QuantizeRequest, once: Once, judge: Judge) -> Outcome:
    """Return the best static outcome; without `search` or data, or with fixed scales, quantize only once."""
    spec, ranges = request.spec, request.ranges
    if spec.max_damage is not None and spec.data is None:
        raise InvalidOption("`max_damage` is measured on samples", hint="give `data`", option="data")
    if spec.max_damage is not None and not spec.search:
        raise InvalidOption("`max_damage` needs a search; `search` is off", option="max_damage")
    searches = spec.search and spec.precision == "int8" and spec.data is not None
    if not searches or ranges is None or ranges.fixed:
        return once(request)
    return _search_static(request, once, judge)


def _search_static(request: QuantizeRequest, once: Once, judge: Judge) -> Outcome:
    request.progress("quantize, and compare")
    search, initial_method, spec = _Search(once, judge), _method(request), request.spec
    first_request = replace(request.with_options(correct_bias=False), corrected_on=_CORRECTED_ON)
    best = search.first(str(initial_method), first_request)
    best, balancing = _balance(search, best) if spec.balance else (best, {})
    if spec.correct_bias:
        best = search.better(
            best, "corrected biases", best.request.with_options(correct_bias=True), gain_db=0.0
        )
    other_methods = (Method("minmax"), Method("percentile", initial_method.percentile), Method("entropy"))
    # Above that, the samples do not separate methods, and a method that clips more may lose on other samples.
    compares_methods = best.rank_db < _COMPARABLE_DB or spec.max_damage is not None
    for method in other_methods if initial_method.name == "auto" and compares_methods else ():
        best = search.better(best, str(method), best.request.with_options(method=str(method)))
    quantized = best.judged
    best, in_float, refusal = _leave_in_float(search, best)
    best = _correct_on_more(search, best, request.corrected_on)
    best = _lstms_at_run_time(search, best)
    proof = {**best.outcome.proof, "search": search.tried, **balancing}
    if refusal:
        proof["search_refusal"] = refusal
    if isinstance(floats := best.outcome.proof.get("left_in_float"), dict):
        proof["left_in_float"] = {name: in_float.get(name, reason) for name, reason in floats.items()}
    proof["method"] = str(_method(best.request))
    warnings = list(best.outcome.warnings)
    if in_float and spec.max_damage is None:  # the user did not exclude these layers
        more = f" and {len(in_float) - _NAMED} more" if len(in_float) > _NAMED else ""
        layers = f"{', '.join(list(in_float)[:_NAMED])}{more}"
        cause = "because `diff` would reject the outputs otherwise"
        if _is_enough(quantized):
            cause = f"which gains {best.rank_db - quantized.rank_db:.1f} dB"
        warnings.append(f"left in float, {cause}: {layers}")
    return Outcome(best.outcome.model, proof, warnings, best.judged)


def _is_enough(judged: OutputQuality) -> bool:
    return judged.snr_db >= _ENOUGH_DB and not judged.failed


def _is_good(judged: OutputQuality) -> bool:
    return judged.rank_db >= GOOD_DB and not judged.failed


def _balance(search: _Search, best: _Candidate) -> tuple[_Candidate, dict[str, object]]:
    """Try the equalized and the smoothed model; return the best candidate, and entries for the manifest."""
    entries, request = dict[str, object](), best.request
    assert request.ranges is not None, "best_static asks"
    data = request.samples(max(request.ranges.samples, 1))  # as many as were calibrated on
    request.progress("equalize channels")
    rows = observe_channels(request, data)
    request, pairs, rescaled = equalize_request(request, data, rows)
    if pairs:
        before, best = best, search.better(best, "equalized", request)
        is_equalized = best is not before
        entries["equalized_pairs"] = pairs if is_equalized else 0
        rows = {name: observed for name, observed in rows.items() if not is_equalized or name not in rescaled}
    best.request.progress("smooth channels")
    request, smoothing = smooth_request(best.request, data, rows)
    if smoothing.rescaled:
        before, best = best, search.better(best, "smoothed", request)
        gained = "the outputs gain by it" if best is not before else "the outputs do not gain by it"
        entries["smoothed"] = smoothing.places if best is not before else {}
        entries["smoothing"] = f"{len(smoothing.places)} places: {gained}"
    entries["left_alone"] = smoothing.left_alone
    return best, entries


def _correct_on_more(search: _Search, best: _Candidate, samples: int) -> _Candidate:
    """Correct the biases of the best candidate on `samples`, if the data has more than the search used."""
    most_db, total = best.request.spec.max_damage, best.request.samples(samples).total
    if not best.outcome.proof["corrected_biases"] or (total is not None and total <= _CORRECTED_ON):
        return best
    request = replace(best.request, corrected_on=samples)
    corrected = search.better(best, f"biases corrected on {samples} samples", request, gain_db=0.0)
    return best if most_db is not None and corrected.judged.snr_db < most_db else corrected


def _lstms_at_run_time(search: _Search, best: _Candidate) -> _Candidate:
    """Compute LSTMs with scales that ONNX Runtime finds in every run, if the outputs lose little.

    The allowed loss is 1 dB, or up to 3 dB if 30 dB remain. A text recognizer becomes 2.7 times as fast as
    FP32, instead of 1.7.
    """
    request, spec = best.request, best.request.spec
    if not graph_rules(spec.target).by_onnxruntime or spec.max_damage is not None:
        return best
    if not any(node.op_type == "LSTM" for node in request.model.graph.node):
        return best
    most_db = max(_FREE_LOSS_DB, min(_SMALL_LOSS_DB, best.rank_db - _REMAINING_DB))
    dynamic = search.try_("LSTMs with scales found at run time", replace(request, dynamic_lstms=True))
    if dynamic is None or dynamic.judged.choice_db < best.judged.choice_db - most_db:
        return best
    return best if dynamic.judged.failed and not best.judged.failed else dynamic


def _leave_in_float(search: _Search, quantized: _Candidate) -> tuple[_Candidate, dict[str, str], str]:
    """Leave layers in float for `max_damage`, otherwise until `diff` accepts the outputs, and to the knee.

    Return the best candidate, the reason for each layer, and why layers in float do not help. Without
    `max_damage`, at most half of the layers: beyond that the caller rejects the model.
    """
    spec, least_db = quantized.request.spec, quantized.request.spec.max_damage
    if least_db is not None:
        if quantized.judged.snr_db >= least_db:
            return quantized, {}, ""
        ranked = _rank(quantized.request)
        best, in_float, _ = _fewest_in_float(
            search, quantized, ranked, lambda judged: judged.snr_db >= least_db, f"{least_db:g} dB"
        )
        return best, in_float, ""
    if spec.allow_loss or _is_good(quantized.judged):
        return quantized, {}, ""
    best, recurrent = quantized, dict[str, str]()
    if not _is_enough(quantized.judged):
        best, recurrent = _recurrences_in_float(search, quantized)
    if _is_good(best.judged):
        return best, recurrent, ""
    ranked, worst, tried_db = _rank(best.request), dict[str, str](), dict[int, float]()
    max_layers = _count_half(best.request, [damage.layer for damage in ranked])
    try:
        if not _is_enough(best.judged):
            best, worst, tried_db = _fewest_in_float(
                search, best, ranked, _is_enough, f"{_ENOUGH_DB:g} dB", max_layers=max_layers
            )
    except QuantizationError as error:
        refusal = error.message.partition(": ")[2]
        lost = f"most is lost in {', '.join(damage.layer for damage in ranked[:_NAMED])}"
        return quantized, {}, f"{refusal}; {lost}"
    best, further = _to_the_knee(search, best, ranked, len(worst), tried_db, max_layers=max_layers)
    return best, recurrent | worst | further, ""


def _count_half(request: QuantizeRequest, names: Sequence[str]) -> int:
    """Return how many of the first layers are half of all, or of the multiply-adds if that is more."""
    share, _ = shares(names, multiply_adds(request.model))
    return max(len(names) // 2, sum(total <= 0.5 for total in accumulate(share[name] for name in names)))


def _recurrences_in_float(search: _Search, best: _Candidate) -> tuple[_Candidate, dict[str, str]]:
    """Leave LSTMs and GRUs in float if that gains `_KNEE_DB`; return the candidate, and the reasons."""
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
    enough: Callable[[OutputQuality], bool], required: str, *, max_layers: int | None = None,
) -> tuple[_Candidate, dict[str, str], dict[int, float]]:  # fmt: skip
    """Leave the worst layers in float, at most `max_layers`, until `enough` accepts the outputs.

    Return the candidate, the reason for each layer, and the decibels by number of layers tried.
    """
    names = [damage.layer for damage in ranked]
    high = len(names) if max_layers is None else min(max_layers + 1, len(names))  # accepted, or never tried
    low, most_db, fewest = 0, best.judged.snr_db, None  # `low` layers are too few
    tried_db = dict[int, float]()
    while high - low > 1:
        middle = (low + high) // 2
        candidate = search.try_(f"{middle} layers in float", best.without(names[:middle]))
        tried_db[middle] = candidate.rank_db if candidate else -math.inf
        if candidate is not None:
            most_db = max(most_db, candidate.judged.snr_db)
        if candidate is not None and enough(candidate.judged):
            high, fewest = middle, candidate
        else:
            low = middle
    if fewest is None:
        raise QuantizationError(
            f"{best.request.path}: {most_db:.1f} dB with {low} of {len(names)} layers in float; "
            f"{required} is required",
            hint="lower `max_damage`, or keep the model in float",
        )
    why = f"for {required}: alone in INT8 it leaves"
    return fewest, {damage.layer: f"{why} {damage.snr_db:.1f} dB" for damage in ranked[:high]}, tried_db


def _to_the_knee(
    search: _Search, best: _Candidate, ranked: Sequence[LayerSensitivity], count: int,
    tried_db: Mapping[int, float], *, max_layers: int,
) -> tuple[_Candidate, dict[str, str]]:  # fmt: skip
    """Leave layers after the first `count` in float while the gain justifies their time; return the reasons.

    `tried_db` maps numbers of layers that were tried before to their decibels.
    """
    names, first, noise = [damage.layer for damage in ranked], count, [damage.noise for damage in ranked]
    share, _ = shares(names, multiply_adds(best.request.model))
    start, step = best, 1  # `start` already excludes the first `count` layers
    for _ in range(_KNEE_TRIALS):
        cost = sum(share[name] for name in names[count : count + step])
        if step > _KNEE_STEP or count + step > max_layers or cost > _KNEE_SHARE:
            break
        gain_db = max(_KNEE_DB * cost / _KNEE_SHARE, _KNEE_LEAST_DB)
        needed_db = best.rank_db + gain_db
        # Expected gain if the noises of layers are independent.
        promised_db = decibels(sum(noise[count:]), sum(noise[count + step :]))
        candidate = None
        if promised_db >= _KNEE_HOPE * gain_db and tried_db.get(count + step, needed_db) >= needed_db:
            without = start.without(names[first : count + step])
            candidate = search.try_(f"{count + step} layers in float", without)
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


def _rank(request: QuantizeRequest) -> list[LayerSensitivity]:
    """Return the layers by their noise at the outputs, the most damaging first."""
    assert request.ranges is not None, "best_static asks"
    request.progress("damage of each layer")
    trim_heap()
    floats = [pattern for pattern, kind in request.spec.layer_precisions.items() if kind != "int8"]
    return rank_layers(
        request.model, request.spec.target, request.ranges, request.samples(_RANKED_ON, is_spread=True),
        isa=request.spec.isa, method=_method(request),
        exclude=[*request.spec.exclude, *floats], only=request.spec.only,
    )  # fmt: skip
