"""The choice itself: from predictions to one backend. Pure; it probes and predicts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainpilot.backends import ExecutionSettings
from trainpilot.errors import NoDataError, UnknownNameError, UsageError
from trainpilot.predictors import Estimate, Prediction
from trainpilot.selection.probability import probability_smallest

OBJECTIVES = ("time", "energy")
CLEAR_CONFIDENCE = 0.6
"""Below this probability two candidates count as equally good (design)."""
UNKNOWN_RIVAL_CONFIDENCE = 0.8
"""Highest confidence while a usable candidate is unknown: that of the default rule (assumed)."""
_SIMPLEST_FIRST = ("cpu", "cuda", "mps", "xpu", "ane")


@dataclass(frozen=True)
class Limits:
    """What a run must stay within.

    Attributes:
        memory_bytes: Peak memory that fits, by candidate; a candidate that is not named has no known limit.
        power_w: Mean power over the run, or None for no limit.
    """

    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    power_w: float | None = None

    def __post_init__(self) -> None:
        if self.power_w is not None and not self.power_w > 0:
            raise UsageError(f"power limit must be above 0 W, got {self.power_w}")


@dataclass(frozen=True)
class Selection:
    """Where to train, and why.

    Attributes:
        backend: The chosen backend.
        confidence: Probability that the chosen candidate needs the least of the objective, 0 to 1; that of the
            rule where a rule answered.
        predictions: What each candidate would take, by candidate: a backend's name, with its execution settings
            behind it where several were compared.
        reasons: The decision in words, most important first.
        excluded: Why a candidate was not compared.
        clear: False where no difference could be told and the simpler candidate was taken.
        source: Where the numbers behind the choice come from; ``rules`` where nothing was known.
        objective: What was minimised.
        candidate: Key of the chosen candidate in ``predictions``.
        settings: Execution settings of the chosen candidate, or None for those of the workload.
    """

    backend: str
    confidence: float
    predictions: Mapping[str, Prediction]
    reasons: tuple[str, ...]
    excluded: Mapping[str, str]
    clear: bool
    source: str
    objective: str
    candidate: str
    settings: ExecutionSettings | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types: the part of the command line's document that tells the decision."""
        return {
            "predictions": [{**found.to_dict(), "candidate": label} for label, found in self.predictions.items()],
            "excluded": dict(self.excluded),
            "selected": self.backend,
            "confidence": self.confidence,
            "clear": self.clear,
            "source": self.source,
            "objective": self.objective,
            "reasons": list(self.reasons),
        }


def no_data_reason(backend: str) -> str:
    """Say that nothing is known of a backend and which command changes that."""
    return f"no data for backend {backend}: run `trainpilot benchmark --backend {backend}`"


def is_known(prediction: Prediction) -> bool:
    """True if a predictor had data: there is a total, and it was not guessed by a rule."""
    return prediction.total_time_s is not None and prediction.source in ("measured", "learned", "analytic")


def unknown_prediction(backend: str, note: str) -> Prediction:
    """A prediction without numbers; ``note`` says why."""
    return Prediction(
        backend=backend,
        step_time_s=None,
        setup_time_s=None,
        epoch_time_s=None,
        total_time_s=None,
        peak_memory_bytes=None,
        energy_j=None,
        source="unknown",
        in_range=False,
        notes=(note,),
    )


def choose(
    candidates: Mapping[str, Prediction],
    *,
    objective: str = "time",
    limits: Limits | None = None,
    excluded: Mapping[str, str] | None = None,
) -> Selection:
    """Choose the candidate that needs least, or the simpler one where no difference can be told.

    A candidate without a known total is never chosen. While one is left out for that reason alone, the confidence
    is at most ``UNKNOWN_RIVAL_CONFIDENCE``: it might have been faster.

    Args:
        candidates: Predictions by candidate. The label is free; ``Prediction.backend`` names the backend. Where two
            candidates are on the same backend, the earlier one counts as simpler.
        objective: ``time`` or ``energy``, of the whole plan.
        limits: What the run must stay within.
        excluded: Candidates that were ruled out before, with the reason.

    Raises:
        UnknownNameError: The objective does not exist.
        NoDataError: No candidate is left; the text has the reason of each.
    """
    if objective not in OBJECTIVES:
        raise UnknownNameError("objective", objective, OBJECTIVES)
    left_out = dict(excluded or {})
    amounts: dict[str, Estimate] = {}
    for label, prediction in candidates.items():
        reason = _why_not(label, prediction, objective, limits or Limits())
        if reason:
            left_out[label] = reason
        else:
            amount = prediction.energy_j if objective == "energy" else prediction.total_time_s
            assert amount is not None  # checked just now
            amounts[label] = amount
    if not amounts:
        # What runs here but was left out comes first: that is what the user can change.
        order = [*candidates, *(label for label in left_out if label not in candidates)]
        raise NoDataError("no backend can be chosen: " + "; ".join(f"{label}: {left_out[label]}" for label in order))
    unknown = [label for label, prediction in candidates.items() if not is_known(prediction)]
    probabilities = dict(zip(amounts, probability_smallest(list(amounts.values())), strict=True))
    best = max(amounts, key=lambda label: (probabilities[label], -amounts[label].value))
    contenders = _contenders(best, amounts)
    clear = probabilities[best] >= CLEAR_CONFIDENCE
    order = list(candidates)
    chosen = best if clear else min(contenders, key=lambda name: _simplicity(candidates[name], order.index(name)))
    reasons = [_verdict(chosen, contenders, amounts, objective, clear=clear)]
    confidence = probabilities[chosen]
    if unknown:
        confidence = min(confidence, UNKNOWN_RIVAL_CONFIDENCE)
        reasons.append(
            f"nothing is known of {', '.join(unknown)}, which might be better: "
            f"the confidence is at most {UNKNOWN_RIVAL_CONFIDENCE} (assumed)"
        )
    if any(amount.low is None for amount in amounts.values()) and len(amounts) > 1:
        reasons.append("an estimate without an interval is taken as right within a factor of 2 (assumed)")
    if candidates[chosen].peak_memory_bytes is None:
        reasons.append(f"peak memory on {chosen} is unknown, so whether it fits was not checked")
    return Selection(
        backend=candidates[chosen].backend,
        confidence=confidence,
        predictions=dict(candidates),
        reasons=tuple(reasons),
        excluded=left_out,
        clear=clear,
        source=candidates[chosen].source,
        objective=objective,
        candidate=chosen,
    )


def _why_not(label: str, prediction: Prediction, objective: str, limits: Limits) -> str:
    """Why a candidate cannot be compared; empty if it can."""
    if not is_known(prediction):
        return prediction.notes[0] if prediction.notes else no_data_reason(prediction.backend)
    peak = prediction.peak_memory_bytes
    room = limits.memory_bytes.get(label)
    if peak is not None and room is not None and peak.value > room:
        return f"does not fit: needs {_bytes(peak.value)} of {_bytes(room)}"
    if objective == "energy" and prediction.energy_j is None:
        return "its energy is unknown: no meter has measured it"
    if limits.power_w is not None:
        assert prediction.total_time_s is not None
        if prediction.energy_j is None or prediction.total_time_s.value == 0:
            return "its power is unknown: no meter has measured it"
        power_w = prediction.energy_j.value / prediction.total_time_s.value
        if power_w > limits.power_w:
            return f"needs {power_w:.3g} W on average, over the limit of {limits.power_w:.3g} W"
    return ""


def _contenders(best: str, amounts: Mapping[str, Estimate]) -> list[str]:
    """Candidates that ``best`` does not clearly beat in a comparison of two, itself included."""
    return [
        label
        for label, amount in amounts.items()
        if label == best or probability_smallest((amounts[best], amount))[0] < CLEAR_CONFIDENCE
    ]


def _simplicity(prediction: Prediction, position: int) -> tuple[int, int]:
    known = prediction.backend in _SIMPLEST_FIRST
    return (_SIMPLEST_FIRST.index(prediction.backend) if known else len(_SIMPLEST_FIRST), position)


def _verdict(
    chosen: str, contenders: list[str], amounts: Mapping[str, Estimate], objective: str, *, clear: bool
) -> str:
    unit = "J" if objective == "energy" else "s"
    shown = {label: f"{label} {_quantity(amount, unit)}" for label, amount in amounts.items()}
    if len(amounts) == 1:
        return f"{shown[chosen]} in total; it is the only candidate that can be compared"
    if clear:
        others = ", ".join(text for label, text in shown.items() if label != chosen)
        return f"{shown[chosen]} in total, against {others}"
    if contenders == [chosen]:
        return f"no clear difference between {', '.join(shown.values())}: {chosen} is the likeliest"
    between = " and ".join(shown[label] for label in contenders)
    return f"no clear difference between {between}: {chosen} is the simpler one"


def _quantity(amount: Estimate, unit: str) -> str:
    interval = "" if amount.low is None else f" ({amount.low:.3g} to {amount.high:.3g})"
    return f"{amount.value:.3g} {unit}{interval}"


def _bytes(size: float) -> str:
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else f"{size:.0f} bytes"
