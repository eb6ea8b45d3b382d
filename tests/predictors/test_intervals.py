"""Conformal intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainpilot.predictors.intervals import Intervals, conformal_bound, conformal_rank


@pytest.mark.parametrize(
    ("count", "level", "rank"),
    [(5, 0.9, None), (8, 0.9, None), (9, 0.9, 9), (18, 0.95, None), (19, 0.95, 19), (39, 0.9, 36), (39, 0.95, 38)],
)
def test_c07_rank_of_the_bound(count, level, rank):
    assert conformal_rank(count, level) == rank


def test_c07_too_few_scores_give_no_interval_and_say_so():
    scores = np.arange(8) / 10
    names = np.array([f"w{i}" for i in range(8)], dtype=object)
    inside = np.ones(8, dtype=bool)
    found = Intervals.of(scores, names, inside, np.zeros(8), 0.9)
    assert found.inside is None
    assert np.isnan(found.half_widths(np.array([True, False]), np.array([0.0, 1.0]))).all()
    assert found.why_none(in_range=True) == (
        "no valid interval: the predictor was tried on 8 unseen workloads inside its range, and 9 are needed for 90%"
    )


def test_c07_the_bound_is_the_score_of_the_rank():
    scores = np.arange(1, 40) / 100
    assert conformal_bound(scores, 0.9) == 0.36
    assert conformal_bound(scores[:9], 0.9) == 0.09


def test_scores_of_one_group_count_once():
    # Eight groups, one of them with a hundred rows: still too few.
    groups = [f"g{i}" for i in range(7)] + ["big"] * 100
    assert conformal_bound(np.ones(107), 0.9, groups) is None
    # Nine groups, all weight alike: the bound is the largest group's score, although its rows are few.
    groups = [f"g{i}" for i in range(8)] + ["big"] * 100
    scores = np.concatenate([np.full(7, 0.1), [5.0], np.full(100, 0.2)])
    assert conformal_bound(scores, 0.9, groups) == 5.0


def test_c07_coverage_on_fresh_data_is_at_least_nominal():
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        scores = np.abs(rng.normal(size=19))
        covered.append(abs(rng.normal()) <= conformal_bound(scores, 0.9))
    # 19 scores: rank 18, so 0.9 exactly; four standard errors of 400 trials.
    assert np.mean(covered) >= 0.9 - 4 * math.sqrt(0.09 / 400)


def test_outside_is_never_narrower_than_inside_and_grows_with_the_distance():
    names = np.array([f"w{i}" for i in range(40)], dtype=object)
    inside = np.arange(40) < 20
    errors = np.where(inside, 0.2, 0.05)
    found = Intervals.of(errors, names, inside, np.zeros(40), 0.9)
    half = found.half_widths(np.array([True, False, False]), np.array([0.0, 0.0, math.log(10)]))
    np.testing.assert_allclose(half, [0.2, 0.2, 0.2 * (1 + math.log(10))])


@given(st.lists(st.floats(0, 50), min_size=0, max_size=60), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_the_bound_covers_its_share_of_the_scores(scores, level):
    bound = conformal_bound(scores, level)
    if bound is None:
        assert math.ceil(round((len(scores) + 1) * level, 9)) > len(scores)
    else:
        assert sum(score <= bound for score in scores) >= level * len(scores) - 1e-9
