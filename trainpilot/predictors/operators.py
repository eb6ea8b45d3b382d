"""The operator-level model: the time of each group of alike calls, learned from steps timed operator by operator.

One step tells one number, and a hundred prices cannot be told from it; timed operator by operator it tells as many as
it has kinds of calls. An additive model for each kind of operator, and a boosted correction for all of them, give the
parts of a step, which the step-level model then adds up and corrects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from trainpilot.errors import PredictorError
from trainpilot.predictors.amounts import AMOUNT_INDEX, AMOUNTS
from trainpilot.predictors.analytic import AdditiveModel
from trainpilot.predictors.boosted import BoostedResidual
from trainpilot.predictors.folds import family_folds
from trainpilot.predictors.groups import KIND_INDEX, KINDS, OPERATOR_FEATURES, RISING_GROUP_FEATURES, with_context
from trainpilot.predictors.parallel import side_by_side
from trainpilot.predictors.prices import SPREADS, fine_unit_costs_s
from trainpilot.predictors.table import distinct
from trainpilot.predictors.targets import context_costs
from trainpilot.predictors.terms import fine_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.folds import Fold
    from trainpilot.predictors.operator_labels import OperatorLabels
    from trainpilot.predictors.table import Context, WorkTable
    from trainpilot.predictors.targets import Figures

# With fewer timed groups than this the prices of the step-level model are the better ones.
LEAST_LABELS = 2_000
_FAMILY_GROUPS = 5
# More labels of one kind tell its few prices no better.
_MOST_LABELS_OF_KIND = 3_000
_MOST_LABELS = 60_000
_LEAST_LABELS_OF_KIND = 20
# Single operators of one step spread far more around a sum of prices than whole steps do.
_NOISE = 0.3
_SETTING_SPREAD = 0.6
TREES: Mapping[str, Any] = {
    "trees": 100,
    "depth": 6,
    "learning_rate": 0.1,
    "min_child_weight": 5.0,
    "row_share": 0.7,
    "limit": 1.5,
}
_STEP = AMOUNT_INDEX["step"]


@dataclass(frozen=True, eq=False)
class KindPrices:
    """Prices of one kind of operator.

    Attributes:
        columns: Positions in ``AMOUNTS`` of what was seen of it.
        additive: Their corrections.
    """

    columns: NDArray[np.intp]
    additive: AdditiveModel


@dataclass(frozen=True, eq=False)
class OperatorModel:
    """Times of the operations of a step.

    Attributes:
        kinds: Prices by name of the kind of operator; a kind that was hardly seen has none, and keeps those of the
            calibration.
        boosted: The correction for single groups.
    """

    kinds: Mapping[str, KindPrices]
    boosted: BoostedResidual

    @classmethod
    def fit(cls, labels: OperatorLabels, figures: Figures) -> OperatorModel:
        """Fit on timed groups.

        Args:
            labels: The groups.
            figures: Calibration figures by context.
        """
        priced = _priced(labels.amounts, labels.context, figures)
        kinds: dict[str, KindPrices] = {}
        base = np.asarray(priced.sum(axis=1)).ravel()
        for position, name in enumerate(KINDS):
            rows = np.flatnonzero(labels.kind == position)
            chosen = _evenly(rows, _MOST_LABELS_OF_KIND)
            if len(chosen) < _LEAST_LABELS_OF_KIND:
                continue
            parts = priced[rows].toarray()
            few = priced[chosen].toarray()
            columns = np.flatnonzero((few > 0).any(axis=0))
            additive = AdditiveModel(
                term_spread=[SPREADS[column] for column in columns], context_spread=_SETTING_SPREAD, noise=_NOISE
            ).fit(few[:, columns], labels.time_s[chosen], labels.context[chosen])
            kinds[name] = KindPrices(columns, additive)
            parts[:, columns] = additive.parts(parts[:, columns], labels.context[rows])
            base[rows] = parts.sum(axis=1)
        chosen = _evenly(np.flatnonzero(base > 0), _MOST_LABELS)
        residual = np.log(labels.time_s[chosen] / base[chosen])
        boosted = BoostedResidual(rising=RISING_GROUP_FEATURES, **TREES)
        boosted.fit_named(with_context(labels.features[chosen], labels.context[chosen]), OPERATOR_FEATURES, residual)
        return cls(kinds, boosted)

    def parts(self, table: WorkTable, figures: Figures) -> NDArray[np.float64]:
        """Parts of each step by fine amount, in s, shape (n, len(AMOUNTS)).

        Args:
            table: n steps.
            figures: Calibration figures by context; a missing one gets reference figures.
        """
        work, arrays = table.operations, table.operations.arrays
        contexts, where = distinct(work.context)
        costs, factors = self._prices(contexts, figures)
        correction = work.factors(self.boosted)
        step = work.step[arrays.group]
        factor = factors[where[step], arrays.kind[arrays.group], arrays.column] * correction[arrays.group]
        value = arrays.amount * costs[where[step], arrays.column] * factor
        size = len(work.context) * len(AMOUNTS)
        flat = np.bincount(step * len(AMOUNTS) + arrays.column, value, minlength=size)
        once: NDArray[np.float64] = flat.astype(float).reshape(-1, len(AMOUNTS))
        parts: NDArray[np.float64] = once[work.member]
        parts[:, _STEP] = costs[where[work.member], _STEP] * fine_columns(table.work)[:, _STEP]
        return parts

    def _prices(self, contexts: Sequence[Context], figures: Figures) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Calibration prices, shape (contexts, amounts), and corrections, shape (contexts, kinds, amounts)."""
        costs = np.array(context_costs(fine_unit_costs_s, contexts, figures))
        factors = np.ones((len(contexts), len(KINDS), len(AMOUNTS)))
        for name, prices in self.kinds.items():
            for place, context in enumerate(contexts):
                factors[place, KIND_INDEX[name], prices.columns] = prices.additive.factors(context)
        return costs, factors

    def to_card(self) -> dict[str, Any]:
        """The prices, as JSON."""
        return {
            name: prices.additive.to_card([AMOUNTS[column] for column in prices.columns])
            for name, prices in self.kinds.items()
        }

    @classmethod
    def from_card(cls, card: Mapping[str, Any], boosted: BoostedResidual) -> OperatorModel:
        """Restore what ``to_card`` wrote.

        Raises:
            PredictorError: A kind or an amount is none of this version.
        """
        kinds: dict[str, KindPrices] = {}
        for name, content in card.items():
            unknown = [term for term in content["terms"] if term not in AMOUNT_INDEX]
            if name not in KIND_INDEX or unknown:
                raise PredictorError(f"operator {name!r} or its amounts {unknown[:1]} are not those of this version")
            columns = np.array([AMOUNT_INDEX[term] for term in content["terms"]], dtype=np.intp)
            kinds[name] = KindPrices(columns, AdditiveModel.from_card(content, content["terms"]))
        return cls(kinds, boosted)


def fold_models(
    table: WorkTable, folds: Sequence[Fold], figures: Figures, labels: OperatorLabels, n_jobs: int | None = None
) -> list[OperatorModel] | None:
    """The model of all labels and, for each fold, one that saw nothing of what is held out.

    Folds of single families share the models of a few groups of families.

    Args:
        table: The steps that the folds divide.
        folds: How they are held out.
        figures: Calibration figures by context.
        labels: Timed groups of these steps.
        n_jobs: Models that are fitted at a time; default: the usable cores.

    Returns:
        One model more than there are folds; None where there are too few labels.
    """
    if len(labels) < LEAST_LABELS:
        return None
    grouped = family_folds(table, _FAMILY_GROUPS)
    trains = [np.arange(len(table))]
    for fold in folds:
        around = [group.train for group in grouped if fold.kind == "family" and set(fold.held) <= set(group.held)]
        trains.append(around[0] if around else fold.train)
    once = {id(train): train for train in trains}
    some = [labels.of(set(table.workload_hash[train])) for train in once.values()]
    models = side_by_side(lambda each: OperatorModel.fit(each, figures), some, n_jobs=n_jobs)
    fitted = dict(zip(once, models, strict=True))
    return [fitted[id(train)] for train in trains]


def _priced(amounts: csr_array, contexts: NDArray[np.object_], figures: Figures) -> csr_array:
    known, member = distinct(contexts)
    costs = np.array(context_costs(fine_unit_costs_s, known, figures))
    priced = amounts.copy()
    rows = np.repeat(np.arange(amounts.shape[0]), np.diff(amounts.indptr))
    priced.data = amounts.data * costs[member[rows], amounts.indices]
    return priced


def _evenly(rows: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """At most so many of the rows, spread evenly over them."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(np.intp)]
