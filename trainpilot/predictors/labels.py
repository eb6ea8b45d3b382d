"""From raw rows of the timing dataset to labels that can be learned."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainpilot.errors import PredictorError
from trainpilot.predictors.operator_labels import OperatorLabels, Timings, operator_labels
from trainpilot.predictors.table import WorkTable, check_features, context_of_row, records, table_of_rows
from trainpilot.predictors.terms import measure_work
from trainpilot.store.label_rule import LABEL, LabelRule, Round, choose_rule

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

# No step of a training run takes a day: such a label is a fault of the clock or the unit.
LONGEST_STEP_S = 86_400.0
LEAST_QUIET_CONFIGURATIONS = 8
_WORK = "work"  # entry of a row that has been checked: its amounts, which take most of the time of cleaning


@dataclass(frozen=True)
class Labels:
    """Labelled steps, one per configuration (workload, machine, execution settings).

    Attributes:
        table: The steps, n of them.
        values: ``{target: labels}``, each of shape (n,), NaN where a configuration has no such label. Step times are
            joined over the repetitions of a configuration by the rule of their machine and number of threads, which
            is the one that re-measures best; of the others the median is taken.
        figures: Calibration figures by context: medians over the rows.
        rows: Rows that were used.
        dropped: Rows that were not used, by reason.
        contended: Rows among those used that were measured while something else used the machine.
        noise: Mean relative difference between two repetitions (``mean``), how many configurations have
            repetitions (``configurations``), and how repetitions become a label, in words, by
            ``<machine id>/<threads>`` (``rules``); ``mean`` is None if none has.
        data_hash: Hash of the rows used and their labels.
        controls: Usual time of the control workload in s by ``<machine id>/<threads>``: the conditions that the labels
            are those of.
        operators: Times of single operators inside these steps; None where none were timed.
    """

    table: WorkTable
    values: dict[str, NDArray[np.float64]]
    figures: dict[Any, dict[str, float]]
    rows: int
    dropped: dict[str, int]
    contended: int
    noise: dict[str, Any]
    data_hash: str
    controls: dict[str, float]
    operators: OperatorLabels | None = None


def clean(frame: pd.DataFrame, timings: Timings | None = None) -> Labels:
    """Drop bad rows, with a count by reason, and join the repetitions of a configuration.

    Args:
        frame: Rows of the timing dataset; columns as the fields of ``Measurement``.
        timings: Operator timings by id of the row.

    Returns:
        The labels; empty tables if no row is left.
    """
    dropped: Counter[str] = Counter()
    kept: list[dict[str, Any]] = []
    for row in records(frame):
        try:
            row[_WORK] = _checked_work(row)
        except _UnusableRowError as fault:
            dropped[str(fault)] += 1
        else:
            kept.append(row)
    raw = {row["row_id"]: row["step_time_s"] for row in kept}
    rules = _rules(kept)
    kept = [{**row, "step_time_s": rules[_place(row)].of_round(_round(row))} for row in kept]
    quiet = [row for row in kept if not row.get("contended")]
    # Under contention threads wait for each other and a step takes up to hundreds of times as long, so such labels
    # are left out, unless there is hardly anything else.
    if len(_by_configuration(quiet)) >= LEAST_QUIET_CONFIGURATIONS and len(quiet) < len(kept):
        dropped["something else used the machine"] += len(kept) - len(quiet)
        kept = quiet
    groups = _by_configuration(kept)
    for key, rows in groups.items():
        # Where a control ran between the windows, their spread is not that of the label.
        steady = [row for row in rows if not row.get("contended") and (not row.get("noisy") or _control_time(row) > 0)]
        if steady and len(steady) < len(rows):
            dropped["disturbed, and another repetition is not"] += len(rows) - len(steady)
            groups[key] = steady
    used = [row for rows in groups.values() for row in rows]
    firsts = [rows[0] for rows in groups.values()]
    values = {
        name: np.array([_median(_label(name, row) for row in rows) for rows in groups.values()])
        for name in ("setup_time_s", "peak_memory_bytes", "energy_j")
    }
    values["step_time_s"] = np.array(
        [rules[_place(rows[0])].join([row["step_time_s"] for row in rows]) for rows in groups.values()]
    )
    factors = {
        row["row_id"]: label / raw[row["row_id"]]
        for label, rows in zip(values["step_time_s"], groups.values(), strict=True)
        for row in rows
    }
    return Labels(
        table=table_of_rows(firsts, [row[_WORK] for row in firsts]),
        values=values,
        figures=_figures(used),
        rows=len(used),
        dropped=dict(dropped),
        contended=sum(bool(row.get("contended")) for row in used),
        noise={**_noise(list(groups.values())), "rules": {place: rule.describe() for place, rule in rules.items()}},
        data_hash=_hash(used),
        controls={place: rule.usual_control_s for place, rule in rules.items() if rule.usual_control_s},
        operators=operator_labels(used, timings or {}, factors),
    )


def _rules(rows: list[dict[str, Any]]) -> dict[str, LabelRule]:
    """How repetitions become labels, by place; told by the rows that were measured with nothing else running."""
    places: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        places.setdefault(_place(row), []).append(row)
    return {
        place: choose_rule(
            [
                [_round(row) for row in repeated]
                for repeated in _by_configuration([row for row in found if not row.get("contended")] or found).values()
            ]
        )
        for place, found in sorted(places.items())
    }


def _round(row: dict[str, Any]) -> Round:
    return Round({**(row.get("step_quantiles_s") or {}), LABEL: row["step_time_s"]}, _control_time(row))


def _control_time(row: dict[str, Any]) -> float:
    """Time of the control workload during a row in s, or 0 where it has none."""
    value = row.get("control_time_s")
    return float(value) if value is not None and math.isfinite(value) and value > 0 else 0.0


def _place(row: dict[str, Any]) -> str:
    return f"{row['machine_id']}/{row['threads']}"


def _by_configuration(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["workload_hash"], context_of_row(row)), []).append(row)
    return groups


class _UnusableRowError(Exception):
    """Why a row is no label."""


def _checked_work(row: dict[str, Any]) -> NDArray[np.float64]:
    """Amounts of a row that is a label.

    Raises:
        _UnusableRowError: It is none.
    """
    label = row["step_time_s"]
    if label is None or math.isnan(label):
        raise _UnusableRowError("step time is missing or NaN")
    if math.isinf(label):
        raise _UnusableRowError("step time is infinite")
    if label <= 0:
        raise _UnusableRowError("step time is not above 0")
    if label > LONGEST_STEP_S:
        raise _UnusableRowError("step time is longer than a day")
    try:
        check_features(row["features"])
        work = measure_work(row["op_groups"])
    except PredictorError as error:
        # Without the value, so that rows with one fault are counted together.
        raise _UnusableRowError(str(error).split(":")[0]) from None
    if not work.any():
        raise _UnusableRowError("no operations were traced")
    return work


def _label(name: str, row: dict[str, Any]) -> float:
    value = row.get(name)
    if value is None or not math.isfinite(value):
        return math.nan
    if name == "setup_time_s":
        first = row.get("first_step_s")
        extra = 0.0 if first is None or not math.isfinite(first) else max(0.0, first - row["step_time_s"])
        value = value + extra
    return float(value) if value > 0 else math.nan


def _median(values: Any) -> float:
    found = [value for value in values if not math.isnan(value)]
    return float(np.median(found)) if found else math.nan


def _figures(rows: list[dict[str, Any]]) -> dict[Any, dict[str, float]]:
    found: dict[Any, dict[str, list[float]]] = {}
    for row in rows:
        for name, value in (row.get("calibration") or {}).items():
            if value is not None and math.isfinite(value) and value > 0:
                found.setdefault(context_of_row(row), {}).setdefault(name, []).append(float(value))
    return {
        context: {name: float(np.median(values)) for name, values in sorted(figures.items())}
        for context, figures in found.items()
    }


def _noise(groups: list[list[dict[str, Any]]]) -> dict[str, Any]:
    differences = []
    for rows in groups:
        times = [row["step_time_s"] for row in rows]
        pairs = [abs(math.log(a / b)) for i, a in enumerate(times) for b in times[i + 1 :]]
        if pairs:
            differences.append(math.expm1(float(np.mean(pairs))))
    return {"mean": float(np.mean(differences)) if differences else None, "configurations": len(differences)}


def _hash(rows: list[dict[str, Any]]) -> str:
    content = sorted([str(row["row_id"]), float(row["step_time_s"])] for row in rows)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
