"""The additive model: right prices where the data tell, the calibration's elsewhere."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils.estimator_checks import (
    check_do_not_raise_errors_in_init_or_set_params,
    check_get_params_invariance,
    check_no_attributes_set_in_init,
    check_parameters_default_constructible,
    check_set_params,
)

from trainpilot.errors import NotFittedError, PredictorError
from trainpilot.predictors.analytic import AdditiveModel


def parts(rows=200, count=4, seed=0):
    return np.exp(np.random.default_rng(seed).normal(0, 2, (rows, count)))


def test_known_prices_are_found():
    x = parts()
    true = np.array([2.0, 0.5, 1.0, 3.0])
    model = AdditiveModel().fit(x, x @ true)
    np.testing.assert_allclose(np.exp(model.common_), true, rtol=0.05)


def test_agrees_with_non_negative_least_squares_on_relative_error():
    from scipy.optimize import nnls

    x = parts(400)
    rng = np.random.default_rng(1)
    y = (x @ np.array([2.0, 0.5, 1.0, 3.0])) * np.exp(rng.normal(0, 0.02, len(x)))
    reference, _ = nnls(x / y[:, None], np.ones(len(y)))
    model = AdditiveModel(term_spread=10.0).fit(x, y)
    np.testing.assert_allclose(np.exp(model.common_), reference, rtol=0.01)


def test_a_part_that_no_row_has_keeps_its_price_relative_to_the_others():
    x = parts()
    x[:, 3] = 0.0
    model = AdditiveModel().fit(x, 2.0 * x.sum(axis=1))
    # Everything is twice as dear as the calibration says, so the unseen part is, too.
    assert np.exp(model.common_[3]) == pytest.approx(2.0, rel=0.05)
    assert model.predict(np.array([[0.0, 0.0, 0.0, 1.0]]))[0] == pytest.approx(2.0, rel=0.05)


def test_a_machine_a_thousand_times_slower_is_only_a_level():
    x = parts(20)
    model = AdditiveModel().fit(x, 1000.0 * x.sum(axis=1))
    np.testing.assert_allclose(model.predict(x), 1000.0 * x.sum(axis=1), rtol=0.02)


def test_contexts_have_their_own_prices_and_share_what_they_have_in_common():
    x = parts(400)
    contexts = np.array(["one", "two"] * 200)
    factor = np.where(contexts == "one", 1.0, 1.5)
    y = factor * (x @ np.array([2.0, 0.5, 1.0, 3.0]))
    model = AdditiveModel().fit(x, y, contexts)
    np.testing.assert_allclose(model.predict(x, contexts), y, rtol=0.03)
    pooled = AdditiveModel().fit(x, y).predict(x)
    assert np.abs(pooled / y - 1).mean() > 0.15
    # A context that was never seen is priced like the commonest one.
    np.testing.assert_array_equal(model.predict(x, ["three"] * len(x)), model.predict(x, ["one"] * len(x)))


def test_what_is_learned_of_a_setting_in_one_combination_holds_in_the_others():
    x = parts(600)
    law = x @ np.array([2.0, 0.5, 1.0, 3.0])
    contexts = [(1, "full"), (2, "full"), (1, "half")] * 200
    factor = {(1, "full"): 1.0, (2, "full"): 0.6, (1, "half"): 2.0}
    y = law * np.array([factor[context] for context in contexts])
    model = AdditiveModel().fit(x, y, contexts)
    together = model.predict(x, [(2, "half")] * len(x))
    np.testing.assert_allclose(together, law * 1.2, rtol=0.05)


def test_another_machine_is_one_more_setting():
    x = parts(300)
    law = np.array([2.0, 0.5, 1.0, 3.0])
    model = AdditiveModel().fit(x, x @ law, [("here",)] * len(x))
    there = law * np.array([1.5, 1.5, 2.0, 1.5])
    few = parts(30, seed=7)
    adapted = model.adapted((0, "there"), few, few @ there, [("there",)] * len(few), spread=0.5)
    np.testing.assert_allclose(adapted.predict(x, [("there",)] * len(x)), x @ there, rtol=0.05)
    # The machine that was known is priced as before, by the old model and by the new one.
    np.testing.assert_array_equal(adapted.predict(x, [("here",)] * len(x)), model.predict(x, [("here",)] * len(x)))
    np.testing.assert_array_equal(model.predict(x, [("there",)] * len(x)), model.predict(x, [("here",)] * len(x)))


def test_one_row_of_another_machine_moves_the_level():
    x = parts(300)
    model = AdditiveModel().fit(x, x.sum(axis=1))
    row = np.ones((1, 4))
    adapted = model.adapted((0, "there"), row, np.array([8.0]), [("there",)], spread=0.5)
    assert 6.0 < adapted.predict(row, [("there",)])[0] <= 8.0


def test_a_card_holds_everything():
    x = parts(100)
    contexts = [("one", 1), ("two", 2)] * 50
    model = AdditiveModel().fit(x, x.sum(axis=1) * np.array([1.0, 2.0] * 50), contexts)
    card = json.loads(json.dumps(model.to_card(["a", "b", "c", "d"])))
    restored = AdditiveModel.from_card(card, ["a", "b", "c", "d"])
    np.testing.assert_array_equal(restored.predict(x, contexts), model.predict(x, contexts))
    with pytest.raises(PredictorError, match="terms"):
        AdditiveModel.from_card(card, ["a", "b", "c", "e"])
    card["deviations"][0][2][0] = math.inf
    with pytest.raises(PredictorError, match="finite"):
        AdditiveModel.from_card(card, ["a", "b", "c", "d"])


def test_few_rows_shrink_towards_the_calibration():
    x = np.array([[1.0, 1.0, 0.0]])
    model = AdditiveModel().fit(x, [4.0])
    assert model.predict(x)[0] == pytest.approx(4.0, rel=0.05)
    # One row cannot tell the two parts apart: both are about twice as dear.
    np.testing.assert_allclose(np.exp(model.common_[:2]), 2.0, rtol=0.05)


def test_one_absurd_label_does_not_move_the_prices():
    x = parts(100)
    y = x.sum(axis=1)
    spoiled = y.copy()
    spoiled[7] *= 1000
    clean, robust = AdditiveModel().fit(x, y), AdditiveModel().fit(x, spoiled)
    np.testing.assert_allclose(robust.predict(x), clean.predict(x), rtol=0.05)


def test_unit_changes_are_exact():
    x = parts(50)
    y = x @ np.array([2.0, 0.5, 1.0, 3.0])
    seconds = AdditiveModel(level_spread=1e6).fit(x, y)
    milliseconds = AdditiveModel(level_spread=1e6).fit(x, 1000 * y)
    np.testing.assert_allclose(milliseconds.predict(x), 1000 * seconds.predict(x), rtol=1e-6)


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_predictions_are_positive_finite_and_rise_with_every_part(seed, rows, count):
    rng = np.random.default_rng(seed)
    x = np.exp(rng.normal(0, 6, (rows, count)))
    y = np.exp(rng.normal(0, 6, rows))
    model = AdditiveModel().fit(x, y)
    predicted = model.predict(x)
    assert np.isfinite(predicted).all()
    assert (predicted > 0).all()
    for column in range(count):
        more = x.copy()
        more[:, column] *= 3
        assert (model.predict(more) >= predicted).all()


def test_deterministic():
    x = parts()
    y = x.sum(axis=1)
    np.testing.assert_array_equal(AdditiveModel().fit(x, y).common_, AdditiveModel().fit(x, y).common_)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([[1.0, -1.0]], [1.0]),
        ([[np.nan, 1.0]], [1.0]),
        ([[0.0, 0.0]], [1.0]),
        ([[1.0, 1.0]], [0.0]),
        ([[1.0, 1.0]], [np.inf]),
        ([[1.0, 1.0]], [1.0, 2.0]),
        (np.empty((0, 2)), []),
    ],
)
def test_bad_data_is_refused(x, y):
    with pytest.raises(PredictorError):
        AdditiveModel().fit(np.array(x), np.array(y))


def test_asked_before_the_fit():
    with pytest.raises(NotFittedError):
        AdditiveModel().predict(np.ones((1, 2)))


def test_scikit_learn_conventions():
    name, model = "AdditiveModel", AdditiveModel()
    check_parameters_default_constructible(name, model)
    check_no_attributes_set_in_init(name, model)
    check_get_params_invariance(name, model)
    check_set_params(name, model)
    check_do_not_raise_errors_in_init_or_set_params(name, model)
    assert clone(AdditiveModel(noise=0.5)).noise == 0.5
