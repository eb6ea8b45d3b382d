"""How the rounds of one configuration become its label: in the way that re-measures best on that machine.

Hosts differ. On one, neighbours slow everything down alike, and dividing by the control workload steadies a label; on
another they slow down the control far more than the steps, or come in bursts that a low quantile and the faster of two
rounds pass by. So the statistic of a round's windows, how far the drift is divided out, and how rounds are joined are
chosen from the repetitions of the dataset, and judged on configurations that took no part in the choice.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LABEL = "label"
_STATISTICS = (LABEL, "p25", "p10", "min")
OVER_ROUNDS: dict[str, Callable[[Sequence[float]], float]] = {"median": statistics.median, "min": min}
_LEAST_PAIRS = 30  # of neighbouring rounds, to tell how far steps follow the control workload
_LEAST_JUDGED = 8  # configurations, to prefer one rule to another
_LARGEST_DRIFT = 1.0  # log units between two rounds; what differs more has another cause
_WORTH = 0.9  # another rule than the plain one has to re-measure better by this factor
_FOLDS = 10
# Two labels of two rounds each: the three ways to pair four rounds.
_PAIRINGS = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))


class Round(NamedTuple):
    """One round of one configuration.

    Attributes:
        times: Step time in s by statistic: ``label``, and quantiles of the windows where they are known.
        control_s: Time of the control workload during the round in s, or 0 if unknown.
    """

    times: Mapping[str, float]
    control_s: float


@dataclass(frozen=True)
class LabelRule:
    """How rounds become a label.

    Attributes:
        statistic: Statistic of the windows of a round; ``label`` is the one that the round was stored with.
        over_rounds: ``median`` or ``min``.
        exponent: Power of the control workload's time that is divided out: 0 not at all, 1 as much as it changed.
        usual_control_s: Time of the control workload under the conditions that labels are those of, in s; 0 if unknown.
    """

    statistic: str = LABEL
    over_rounds: str = "median"
    exponent: float = 1.0
    usual_control_s: float = 0.0

    def of_round(self, round_: Round) -> float:
        """Step time of one round under the usual conditions of its machine, in s.

        A round without the statistic (one that was recorded while training, say) gives its own label.
        """
        time_s = round_.times.get(self.statistic, round_.times[LABEL])
        if round_.control_s and self.usual_control_s:
            time_s *= (self.usual_control_s / round_.control_s) ** self.exponent
        return time_s

    def join(self, times_s: Sequence[float]) -> float:
        """Label of several rounds, from the step time of each under the usual conditions, in s."""
        return OVER_ROUNDS[self.over_rounds](times_s)

    def of_rounds(self, rounds: Sequence[Round]) -> float:
        """Label of several rounds, in s."""
        return self.join([self.of_round(round_) for round_ in rounds])

    def describe(self) -> str:
        """The rule in words."""
        return f"{self.statistic}, drift to the power {self.exponent:.2f}, {self.over_rounds} of the rounds"


def drift_rule(groups: Sequence[Sequence[Round]], statistic: str = LABEL, over_rounds: str = "median") -> LabelRule:
    """The rule of one statistic, with the drift divided out as far as the repetitions tell.

    Args:
        groups: Rounds by configuration, all on one machine and on as many threads, in the order of time.
        statistic: Statistic of the windows.
        over_rounds: How rounds are joined.
    """
    controls = [round_.control_s for rounds in groups for round_ in rounds if round_.control_s]
    usual = statistics.median(controls) if controls else 0.0
    return LabelRule(statistic, over_rounds, _exponent(groups, statistic), usual)


def choose_rule(groups: Sequence[Sequence[Round]]) -> LabelRule:
    """The rule that re-measures best: between labels of two rounds where enough configurations have four.

    Args:
        groups: As for ``drift_rule``.
    """
    plain = drift_rule(groups)
    known = [name for name in _STATISTICS if all(name in round_.times for rounds in groups for round_ in rounds)]
    judged = [rounds for rounds in groups if len(rounds) >= 4]
    count, joined = 2, tuple(OVER_ROUNDS)
    if len(judged) < _LEAST_JUDGED:
        judged = [rounds for rounds in groups if len(rounds) >= 2]
        count, joined = 1, ("median",)
    if len(judged) < _LEAST_JUDGED:
        return plain
    rules = [drift_rule(groups, name, over) for name in known for over in joined]
    errors = {rule: _mean_error(rule, judged, count) for rule in rules}
    best = min(rules, key=lambda rule: errors[rule])
    return best if errors[best] < _WORTH * errors[plain] else plain


def remeasured(groups: Sequence[Sequence[Round]], count: int) -> list[list[float]]:
    """|first / second - 1| of labels of so many rounds, by configuration; the rule is chosen on the other ones.

    Args:
        groups: As for ``drift_rule``.
        count: Rounds that make a label: 1 or 2.
    """
    found: list[list[float]] = [[] for _ in groups]
    for fold in range(min(_FOLDS, len(groups))):
        held = range(fold, len(groups), _FOLDS)
        rule = choose_rule([rounds for number, rounds in enumerate(groups) if number % _FOLDS != fold])
        for number in held:
            found[number] = list(errors_of(rule, groups[number], count))
    return found


def errors_of(rule: LabelRule, rounds: Sequence[Round], count: int) -> Iterator[float]:
    """|first / second - 1| of the labels of one configuration.

    Labels of one round are compared with the next one's; of four rounds or more, the first four give labels of two.
    """
    if count == 1:
        for first, second in zip(rounds[::2], rounds[1::2], strict=False):
            yield abs(rule.of_round(first) / rule.of_round(second) - 1)
    elif len(rounds) >= 4:
        for one, other in _PAIRINGS:
            yield abs(rule.of_rounds([rounds[i] for i in one]) / rule.of_rounds([rounds[i] for i in other]) - 1)


def _mean_error(rule: LabelRule, groups: Sequence[Sequence[Round]], count: int) -> float:
    return statistics.fmean(error for rounds in groups for error in errors_of(rule, rounds, count))


def _exponent(groups: Sequence[Sequence[Round]], statistic: str) -> float:
    """How far steps follow the control workload: the slope of the logarithms between neighbouring rounds.

    1 if a step slows down as much as the control does. Fewer repetitions than tell it leave it at 1.
    """
    pairs = [
        (
            math.log(first.times.get(statistic, first.times[LABEL]) / second.times.get(statistic, second.times[LABEL])),
            math.log(first.control_s / second.control_s),
        )
        for rounds in groups
        for first, second in itertools.pairwise(rounds)
        if first.control_s and second.control_s
    ]
    usable = [(y, x) for y, x in pairs if abs(y) < _LARGEST_DRIFT and abs(x) < _LARGEST_DRIFT]
    spread = sum(x * x for _, x in usable)
    if len(usable) < _LEAST_PAIRS or not spread > 0:
        return 1.0
    return min(max(sum(x * y for y, x in usable) / spread, 0.0), 1.0)
