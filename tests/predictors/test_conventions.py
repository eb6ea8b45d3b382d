"""scikit-learn's own checks of an estimator, on every estimator of the library."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn.exceptions
from sklearn.base import clone
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from trainpilot.errors import NotFittedError
from trainpilot.predictors.analytic import AdditiveModel
from trainpilot.predictors.boosted import BoostedResidual
from trainpilot.predictors.model import TargetModel
from trainpilot.predictors.targets import PEAK_MEMORY, STEP_TIME

_WORKLESS = "the check makes a row of zeros: a step without any work has no time, and no logarithm of it"
# What does not apply, and why. Each must fail, or it is no exception any more.
EXCEPTIONS = {
    "AdditiveModel": {"check_estimators_dtypes": _WORKLESS, "check_fit2d_1feature": _WORKLESS},
    "BoostedResidual": {},
}


@estimator_checks.parametrize_with_checks(
    [BoostedResidual(trees=30, n_jobs=1), AdditiveModel()],
    expected_failed_checks=lambda estimator: EXCEPTIONS[type(estimator).__name__],
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_the_scikit_learn_check_of_column_names_goes_as_far_as_columns_in_another_order():
    # It asks that they be refused. Here they are taken by name, which is right in whatever order they come.
    check = estimator_checks.check_dataframe_column_names_consistency
    with pytest.raises(AssertionError, match="predict did not raise"):
        check("BoostedResidual", BoostedResidual(trees=30, n_jobs=1))


# Its steps are a ``WorkTable``, not a matrix, so every check that fits it on one does not apply. Nor does the check of
# default values: the default target is a frozen dataclass, which cannot be changed but is none of the types it lists.
@pytest.mark.parametrize("target", [STEP_TIME, PEAK_MEMORY])
@pytest.mark.parametrize(
    "check",
    [
        "check_estimator_cloneable",
        "check_estimator_repr",
        "check_estimator_tags_renamed",
        "check_get_params_invariance",
        "check_no_attributes_set_in_init",
        "check_set_params",
        "check_valid_tag_types",
    ],
)
def test_scikit_learn_checks_of_a_target_that_need_no_matrix(target, check):
    getattr(estimator_checks, check)("TargetModel", TargetModel(target, n_jobs=1))


def test_a_target_returns_itself_keeps_its_parameters_and_is_cloned_unfitted(labels):
    model = TargetModel(PEAK_MEMORY, level=0.8, n_jobs=1)
    before = model.get_params()
    assert model.fit(labels.table, labels.values["peak_memory_bytes"], labels.figures) is model
    assert model.get_params() == before
    check_is_fitted(model)
    copy = clone(model)
    assert copy.get_params() == before
    with pytest.raises(NotFittedError):
        copy.predict(labels.table)


@pytest.mark.parametrize("error", [NotFittedError, sklearn.exceptions.NotFittedError, ValueError, AttributeError])
def test_asking_before_the_fit_raises_the_librarys_error_and_scikit_learns(labels, error):
    for ask in (
        lambda: BoostedResidual().predict(pd.DataFrame({"a": [1.0]})),
        lambda: AdditiveModel().predict(np.ones((1, 2))),
        lambda: TargetModel().predict(labels.table),
    ):
        with pytest.raises(error, match="call fit first"):
            ask()
