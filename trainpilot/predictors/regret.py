"""What a choice of execution settings costs: the time of the chosen ones against the best that was measured."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from trainpilot.predictors.targets import STEP_TIME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.labels import Labels
    from trainpilot.predictors.table import Context, WorkTable

_LEAST_STEPS = 10


def settings_regret(
    labels: Labels, predicted: NDArray[np.float64], *, dtypes: tuple[str, ...] | None = None
) -> dict[str, Any] | None:
    """Regret of choosing threads, dtype and memory format by prediction.

    The same step at different settings was measured under the same conditions, so the settings with the least
    measured time are the oracle's; the default are all threads, float32 and contiguous memory.

    Args:
        labels: Cleaned labels of n steps.
        predicted: Predicted step times by a predictor that had not seen them, shape (n,); NaN where there is none.
        dtypes: Compute types that the user allows; default: all.

    Returns:
        ``steps`` (workloads that were measured at two settings or more), ``mean`` and ``p90`` of chosen / best - 1,
        ``default`` (the same mean for always the default), ``best_chosen`` (share of steps where the oracle's settings
        were chosen); None with fewer than ten such steps.
    """
    table, times = labels.table, labels.values[STEP_TIME.name]
    groups = _alternatives(table, dtypes)
    chosen, default, best = [], [], 0
    for rows in groups:
        if np.isnan(predicted[rows]).any():  # single operators are never judged
            continue
        least = times[rows].min()
        choice = rows[int(np.argmin(predicted[rows]))]
        usual = max(rows, key=lambda row: _likeness_to_default(table.context[int(row)]))
        chosen.append(times[choice] / least - 1)
        default.append(times[usual] / least - 1)
        best += int(times[choice] == least)
    if len(chosen) < _LEAST_STEPS:
        return None
    return {
        "steps": len(chosen),
        "mean": float(np.mean(chosen)),
        "p90": float(np.quantile(chosen, 0.9)),
        "default": float(np.mean(default)),
        "best_chosen": best / len(chosen),
    }


def _alternatives(table: WorkTable, dtypes: tuple[str, ...] | None) -> list[NDArray[np.intp]]:
    """Rows of the same step on the same machine at different settings."""
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in range(len(table)):
        context = table.context[row]
        if dtypes is None or context.dtype in dtypes:
            step = (table.model_hash[row], table.batch_size[row], table.optimizer[row], context.machine_id)
            found[step].append(row)
    return [np.array(rows) for rows in found.values() if len(rows) > 1]


def _likeness_to_default(context: Context) -> tuple[bool, bool, int]:
    return (context.dtype == "float32", context.memory_format == "contiguous", context.threads)
