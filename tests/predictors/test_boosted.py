"""The boosted correction takes features by name and never answers nonsense."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from trainpilot.errors import NotFittedError, PredictorError
from trainpilot.predictors.boosted import BoostedResidual


def data(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"flops": rng.uniform(0, 20, rows), "batch": rng.uniform(0, 3, rows)})
    return x, 0.3 * np.sin(x["flops"]) + 0.1 * x["batch"]


def test_learns_a_smooth_correction():
    x, y = data()
    model = BoostedResidual(n_jobs=1).fit(x, y)
    fresh, truth = data(seed=1)
    assert np.abs(model.predict(fresh) - truth).mean() < 0.4 * np.abs(truth - y.mean()).mean()


def test_c04_columns_are_taken_by_name_and_arrays_are_refused():
    x, y = data()
    model = BoostedResidual(n_jobs=1).fit(x, y)
    right = model.predict(x)
    np.testing.assert_array_equal(model.predict(x[["batch", "flops"]]), right)
    np.testing.assert_array_equal(model.predict(x.assign(other=1.0)), right)
    with pytest.raises(PredictorError, match="named columns"):
        model.predict(x.to_numpy())
    with pytest.raises(PredictorError, match="feature batch is missing"):
        model.predict(x[["flops"]])
    # Without names in the fit there is no order to mistake.
    bare = BoostedResidual(n_jobs=1).fit(x.to_numpy(), y)
    np.testing.assert_array_equal(bare.predict(x.to_numpy()), right)
    assert not hasattr(bare, "feature_names_in_")


def test_c04_an_array_is_taken_only_with_the_names_of_the_fit_in_their_order():
    x, y = data()
    model = BoostedResidual(n_jobs=1).fit(x, y)
    np.testing.assert_array_equal(model.predict_named(x.to_numpy(), ["flops", "batch"]), model.predict(x))
    for names in (["batch", "flops"], ["flops"], ["flops", "batch", "other"]):
        with pytest.raises(PredictorError, match="in another order"):
            model.predict_named(x.to_numpy(), names)
    again = BoostedResidual(n_jobs=1).fit_named(x.to_numpy(), ["flops", "batch"], y.to_numpy())
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


@pytest.mark.parametrize("rows", [1, 64, 65])
def test_one_row_gets_exactly_what_it_gets_in_a_batch(rows):
    x, y = data()
    model = BoostedResidual(n_jobs=2).fit(x, y)
    batch = model.predict(x)
    np.testing.assert_array_equal(model.predict(x[:rows]), batch[:rows])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_c05_a_feature_that_is_not_finite_is_refused_by_name(value):
    x, y = data(50)
    model = BoostedResidual(n_jobs=1).fit(x, y)
    wrong = x.copy()
    wrong.loc[7, "batch"] = value
    with pytest.raises(PredictorError, match="feature batch is not a finite number"):
        model.predict(wrong)
    with pytest.raises(PredictorError, match="feature batch is not a finite number"):
        BoostedResidual(n_jobs=1).fit(wrong, y)
    with pytest.raises(PredictorError, match="finite|NaN|infinity"):
        BoostedResidual(n_jobs=1).fit(x, y + np.where(x.index == 3, value, 0.0) if value != 1e39 else y * np.inf)


def test_only_rises_with_the_features_that_must_rise():
    x, _ = data()
    falling = BoostedResidual(n_jobs=1).fit(x, -x["flops"])
    held = BoostedResidual(n_jobs=1, rising=("flops",), limit=100).fit(x, -x["flops"] + x["batch"])
    grid = pd.DataFrame({"flops": np.linspace(0, 20, 50), "batch": 1.0})
    free = falling.predict(grid)
    assert free[-1] < free[0] - 0.5
    assert (np.diff(held.predict(grid)) >= 0).all()


def test_the_correction_is_limited():
    x, _ = data()
    model = BoostedResidual(n_jobs=1, limit=0.5).fit(x, np.where(x["flops"] > 10, 9.0, -9.0))
    assert model.predict(x).max() == pytest.approx(0.5, rel=1e-3)
    assert model.predict(x).min() == pytest.approx(-0.5, rel=1e-3)
    assert np.abs(model.predict(x)).max() <= 0.5


def test_deterministic():
    x, y = data()
    first, second = (BoostedResidual(n_jobs=1).fit(x, y) for _ in range(2))
    assert first.booster_.save_raw("ubj") == second.booster_.save_raw("ubj")


def test_asked_before_the_fit():
    with pytest.raises(NotFittedError):
        BoostedResidual().predict(data(5)[0])
