"""How rounds become labels."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainpilot.store.label_rule import LabelRule, Round, choose_rule, drift_rule, errors_of, remeasured


def round_(label: float, control: float = 0.0, **quantiles: float) -> Round:
    return Round({"label": label, **quantiles}, control)


def test_drift_is_divided_out_to_the_power_that_the_repetitions_tell():
    """Whenever the control takes twice as long, steps take the square root of it longer: the power is a half."""
    groups = [[round_(1.0 + i, 1.0), round_(math.sqrt(2.0) * (1.0 + i), 2.0), round_(1.0 + i, 1.0)] for i in range(20)]
    rule = drift_rule(groups)
    assert rule.exponent == pytest.approx(0.5)
    assert rule.usual_control_s == 1.0
    assert rule.of_rounds(groups[3]) == pytest.approx(4.0)
    assert list(errors_of(rule, groups[0], 1)) == pytest.approx([0.0])


def test_too_few_repetitions_leave_the_power_at_one():
    assert drift_rule([[round_(1.0, 1.0), round_(1.5, 2.0)]]).exponent == 1.0


def test_bursts_within_rounds_make_the_minimum_the_label():
    """Two of four rounds take a third longer and their windows' minimum does not: only minima re-measure exactly."""
    groups = []
    for i in range(12):
        times = [1.0, 1.0, 1.0, 1.0]
        times[i % 4] = times[(i + 1) % 4] = 4 / 3
        groups.append([round_(t * (i + 1), min=1.0 * (i + 1), p10=1.2 * t * (i + 1)) for t in times])
    rule = choose_rule(groups)
    assert rule.statistic == "min"
    assert rule.of_rounds(groups[0]) == 1.0
    assert [error for errors in remeasured(groups, 2) for error in errors] == pytest.approx([0.0] * 36)


def test_a_burst_in_one_round_makes_the_faster_of_two_the_label():
    """One of four rounds takes a third longer: of two rounds at most one does, so the faster one is exact."""
    groups = []
    for i in range(12):
        times = [1.0, 1.0, 1.0, 1.0]
        times[i % 4] = 4 / 3
        groups.append([round_(t * (i + 1)) for t in times])
    rule = choose_rule(groups)
    assert (rule.statistic, rule.over_rounds) == ("label", "min")
    assert [error for errors in remeasured(groups, 2) for error in errors] == pytest.approx([0.0] * 36)


def test_no_rule_is_preferred_for_a_small_gain_or_few_configurations():
    exact = [[round_(1.0, min=0.9)] * 4 for _ in range(12)]
    assert choose_rule(exact) == LabelRule()
    few = [[round_(1.0, min=0.9), round_(1.3, min=0.9)] * 2 for _ in range(7)]
    assert choose_rule(few) == LabelRule()


def test_the_rule_of_a_configuration_is_chosen_on_the_others():
    """The one configuration whose minimum is wrong cannot keep the minimum from being chosen for itself."""
    groups = [[round_(1.0, min=0.5), round_(1.2, min=0.5)] * 2 for _ in range(10)]
    odd = [round_(1.0, min=1.0), round_(1.0, min=2.0)] * 2
    found = remeasured([odd, *groups], 1)
    assert found[0] == pytest.approx([0.5, 0.5])
    assert found[1] == pytest.approx([0.0, 0.0])


def test_a_round_without_the_statistic_gives_its_own_label():
    assert LabelRule("p10").of_round(round_(3.0)) == 3.0


@given(st.integers(0, 2**32), st.sampled_from([2.0**-10, 0.5, 4.0]))
def test_other_units_change_nothing(seed: int, unit: float):
    draw = random.Random(seed)
    groups = [
        [round_(draw.uniform(1, 2), draw.uniform(1, 2), min=draw.uniform(0.8, 1)) for _ in range(4)] for _ in range(10)
    ]
    scaled = [[Round({k: v * unit for k, v in r.times.items()}, r.control_s) for r in rounds] for rounds in groups]
    one, other = choose_rule(groups), choose_rule(scaled)
    assert (one.statistic, one.over_rounds) == (other.statistic, other.over_rounds)
    assert other.of_rounds(scaled[0]) == pytest.approx(unit * one.of_rounds(groups[0]))
