"""What a user could use instead: simple methods on the same rows, for comparison only.

Each takes training steps with labels and gives predictions for other steps. None of them is used to predict.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from trainpilot.predictors.analytic import AdditiveModel
from trainpilot.predictors.table import FACTS
from trainpilot.predictors.targets import STEP_TIME, Figures, fine_step_s, price_step_s
from trainpilot.predictors.terms import PHASES, WORK_INDEX, term_amounts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.table import WorkTable

Method = Callable[["WorkTable", "NDArray[np.float64]", "WorkTable", Figures], "NDArray[np.float64]"]

_SEED = 0


def rules(train: WorkTable, y: NDArray[np.float64], test: WorkTable, figures: Figures) -> NDArray[np.float64]:  # noqa: ARG001
    """Median time by the kinds that the rule cascade knows: recurrent, convolutional, other."""
    kinds, asked = _kind(train), _kind(test)
    overall = float(np.median(y))
    medians = {kind: float(np.median(y[kinds == kind])) for kind in set(kinds)}
    return np.array([medians.get(kind, overall) for kind in asked])


def flops_times_constant(
    train: WorkTable,
    y: NDArray[np.float64],
    test: WorkTable,
    figures: Figures,  # noqa: ARG001
) -> NDArray[np.float64]:
    """One rate for all FLOPs: the median of time / FLOPs. A step without FLOPs gets the least time seen."""
    flops, asked = _flops(train), _flops(test)
    counted = flops > 0
    if not counted.any():
        return np.full(len(test), float(np.median(y)))
    return np.maximum(asked * float(np.median(y[counted] / flops[counted])), float(y.min()))


def additive(train: WorkTable, y: NDArray[np.float64], test: WorkTable, figures: Figures) -> NDArray[np.float64]:
    """The additive model alone, with one price for each class of operators."""
    model = AdditiveModel().fit(price_step_s(train, figures), y, train.context)
    return model.predict(price_step_s(test, figures), test.context)


def fine_additive(train: WorkTable, y: NDArray[np.float64], test: WorkTable, figures: Figures) -> NDArray[np.float64]:
    """The additive part of the predictor alone: several amounts for each kind of operator."""
    model = STEP_TIME.additive().fit(fine_step_s(train, figures), y, train.context)
    return model.predict(fine_step_s(test, figures), test.context)


def linear_regression(
    train: WorkTable,
    y: NDArray[np.float64],
    test: WorkTable,
    figures: Figures,  # noqa: ARG001
) -> NDArray[np.float64]:
    """Ridge regression of log-time on logarithms of all amounts."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), Ridge(alpha=1.0)).fit(_log_amounts(train), np.log(y))
    return _times(model.predict(_log_amounts(test)))


def neural_network(
    train: WorkTable,
    y: NDArray[np.float64],
    test: WorkTable,
    figures: Figures,  # noqa: ARG001
) -> NDArray[np.float64]:
    """A network of four layers on the same inputs, as in PowerTrain (arXiv 2407.13944): 256, 128, 64 and 1 units."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # L-BFGS: it needs no tuning of rates and epochs on a few hundred rows. Stopping at the limit is regularisation.
    network = MLPRegressor(
        hidden_layer_sizes=(256, 128, 64), solver="lbfgs", alpha=1.0, max_iter=200, random_state=_SEED
    )
    model = make_pipeline(StandardScaler(), TransformedTargetRegressor(network, transformer=StandardScaler()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(_log_amounts(train), np.log(y))
    return _times(model.predict(_log_amounts(test)))


def plain_xgboost(
    train: WorkTable,
    y: NDArray[np.float64],
    test: WorkTable,
    figures: Figures,  # noqa: ARG001
) -> NDArray[np.float64]:
    """Boosted trees on log-time, on parameters, layers, batch size and all amounts, without an additive base."""
    import xgboost

    from trainpilot.hardware import usable_cores

    model = xgboost.XGBRegressor(
        n_estimators=300, max_depth=4, learning_rate=0.1, n_jobs=usable_cores(), random_state=_SEED
    )
    model.fit(_log_amounts(train), np.log(y))
    return _times(model.predict(_log_amounts(test)).astype(float))


METHODS: Mapping[str, Method] = {
    "rules": rules,
    "flops_times_constant": flops_times_constant,
    "additive": additive,
    "fine_additive": fine_additive,
    "linear_regression": linear_regression,
    "neural_network": neural_network,
    "plain_xgboost": plain_xgboost,
}


def _flops(table: WorkTable) -> NDArray[np.float64]:
    total: NDArray[np.float64] = table.work[:, [WORK_INDEX[f"flops@{phase}"] for phase in PHASES]].sum(axis=1)
    return total


def _kind(table: WorkTable) -> NDArray[np.object_]:
    recurrent = table.work[:, WORK_INDEX["calls.rnn"]] > 0
    convolutional = (table.work[:, [WORK_INDEX["calls.conv"], WORK_INDEX["calls.depthwise_conv"]]] > 0).any(axis=1)
    kinds: NDArray[np.object_] = np.where(recurrent, "recurrent", np.where(convolutional, "convolutional", "other"))
    return kinds


def _log_amounts(table: WorkTable) -> NDArray[np.float64]:
    threads = np.array([float(context.threads) for context in table.context])
    columns = [term_amounts(table.work), table.facts[:, [FACTS.index("params"), FACTS.index("layers")]]]
    logs: NDArray[np.float64] = np.log1p(np.column_stack([*columns, table.batch_size, threads]))
    return logs


def _times(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    # A linear or neural model may answer anything outside its data; a time stays a number.
    times: NDArray[np.float64] = np.exp(np.clip(logs, -30.0, 30.0))
    return times
