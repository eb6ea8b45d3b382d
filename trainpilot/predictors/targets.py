"""What is predicted: each target is a sum of parts with a starting price, corrected by the same machinery."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainpilot.predictors.amounts import AMOUNTS
from trainpilot.predictors.prices import SPREADS, fine_unit_costs_s
from trainpilot.predictors.table import FACTS, Context
from trainpilot.predictors.terms import REFERENCE_FIGURES, STEP_TERMS, fine_columns, unit_costs_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.analytic import AdditiveModel
    from trainpilot.predictors.table import WorkTable

Figures = Mapping[Context, Mapping[str, float]]

# What bfloat16 or another number of threads changes may be a factor of several where kernels differ.
_SETTING_SPREAD = 0.6
# Prices that were learned operator by operator are much nearer, those of settings included.
_LEARNED_SPREAD = 0.2
_LEARNED_SETTING_SPREAD = 0.1


@dataclass(frozen=True)
class Target:
    """One label that is learned.

    Attributes:
        name: Name in the predictor's card.
        unit: SI unit.
        part_names: Names of the parts.
        parts: ``parts(table, figures)`` gives them at their starting prices, shape (n, parts).
        spreads: Standard deviation of the true price of each part around the starting one, in log units; one number
            if it is the same for all.
        noise: Standard deviation of the logarithm of a label around the sum of the parts.
        boosted: Whether a boosted correction is fitted.
        by_operator: Whether the operator-level model, where there is one, gives the parts.
    """

    name: str
    unit: str
    part_names: tuple[str, ...]
    parts: Callable[[WorkTable, Figures], NDArray[np.float64]]
    spreads: float | tuple[float, ...] = 0.5
    noise: float = 0.2
    boosted: bool = False
    by_operator: bool = False

    def additive(self, learned: bool = False) -> AdditiveModel:
        """The additive model of this target, not fitted.

        Args:
            learned: The parts come from the operator-level model instead of calibration figures.
        """
        # Only now: it needs scikit-learn, which a dataset that cannot be read must not wait for.
        from trainpilot.predictors.analytic import AdditiveModel

        if learned:
            return AdditiveModel(term_spread=_LEARNED_SPREAD, context_spread=_LEARNED_SETTING_SPREAD, noise=self.noise)
        return AdditiveModel(term_spread=self.spreads, context_spread=_SETTING_SPREAD, noise=self.noise)


def price_step_s(table: WorkTable, figures: Figures) -> NDArray[np.float64]:
    """Terms of each step at the calibration prices of its context, in s, shape (n, terms).

    A context without figures gets the reference figures: only the ratios of its prices are used once rows are known.
    """
    return _priced(table.terms, unit_costs_s, table, figures)


def _fact(table: WorkTable, name: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = table.facts[:, FACTS.index(name)]
    return values


def fine_step_s(table: WorkTable, figures: Figures) -> NDArray[np.float64]:
    """The same by fine amounts (``AMOUNTS``), shape (n, len(AMOUNTS))."""
    return _priced(fine_columns(table.work), fine_unit_costs_s, table, figures)


def _priced(
    amounts: NDArray[np.float64],
    unit_costs: Callable[[Mapping[str, float]], NDArray[np.float64]],
    table: WorkTable,
    figures: Figures,
) -> NDArray[np.float64]:
    priced: NDArray[np.float64] = amounts * table.by_context(context_costs(unit_costs, table.contexts[0], figures))
    return priced


def context_costs(
    unit_costs: Callable[[Mapping[str, float]], NDArray[np.float64]], contexts: Sequence[Context], figures: Figures
) -> list[NDArray[np.float64]]:
    """Prices of each context; those of the reference figures where it has none."""
    return [_costs(unit_costs, tuple((figures.get(context) or REFERENCE_FIGURES).items())) for context in contexts]


@functools.lru_cache(maxsize=256)
def _costs(
    unit_costs: Callable[[Mapping[str, float]], NDArray[np.float64]], figures: tuple[tuple[str, float], ...]
) -> NDArray[np.float64]:
    """Prices, remembered: most steps that are asked about have the figures of those before."""
    return unit_costs(dict(figures))


def _setup_parts(table: WorkTable, figures: Figures) -> NDArray[np.float64]:
    # 10 ms a model, 0.2 ms a layer, 1 GB/s for filling weights, and two more steps for the first one's allocations.
    return np.column_stack(
        [
            np.full(len(table), 1e-2),
            _fact(table, "layers") * 2e-4,
            _fact(table, "param_bytes") * 1e-9,
            price_step_s(table, figures).sum(axis=1) * 2.0,
        ]
    )


def _memory_parts(table: WorkTable, figures: Figures) -> NDArray[np.float64]:  # noqa: ARG001
    # The traced peak, and 8 MiB that libraries take however small the model is.
    return np.column_stack([np.full(len(table), 8.0 * 2**20), _fact(table, "peak_bytes")])


def _energy_parts(table: WorkTable, figures: Figures) -> NDArray[np.float64]:
    # 50 W, apart for arithmetic, traffic and overhead; the level is learned over orders of magnitude.
    priced = price_step_s(table, figures)
    kinds = [[term.quantity in kind for term in STEP_TERMS] for kind in (("flops",), ("bytes",), ("calls", "step"))]
    return np.column_stack([priced[:, mask].sum(axis=1) * 50.0 for mask in kinds])


STEP_TIME = Target("step_time_s", "s", AMOUNTS, fine_step_s, spreads=SPREADS, noise=0.1, boosted=True, by_operator=True)
SETUP_TIME = Target("setup_time_s", "s", ("model", "layers", "param_bytes", "first_step"), _setup_parts)
PEAK_MEMORY = Target("peak_memory_bytes", "bytes", ("libraries", "traced_peak"), _memory_parts)
ENERGY = Target("energy_j", "J", ("arithmetic", "traffic", "overhead"), _energy_parts)
TARGETS: tuple[Target, ...] = (STEP_TIME, SETUP_TIME, PEAK_MEMORY, ENERGY)
