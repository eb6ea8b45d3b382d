"""Label noise: how far the same configuration, measured again, differs. It is the floor under every accuracy figure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainpilot.benchmarking import Measurement
from trainpilot.benchmarking.timing import QUANTILES, quantile
from trainpilot.store.store import TimingStore

_SINGLE = ("min", "p10", "p25", "median")
# How the labels of several rounds are reduced to one.
_OVER_ROUNDS: dict[str, Callable[[Sequence[float]], float]] = {"min": min, "median": statistics.median}
_CORRECTED = ", drift corrected"
_DURATIONS = (
    (0.0, 1e-3, "under 1 ms"),
    (1e-3, 1e-2, "1 to 10 ms"),
    (1e-2, 1e-1, "10 to 100 ms"),
    (1e-1, float("inf"), "over 100 ms"),
)


@dataclass(frozen=True)
class NoiseEntry:
    """Re-measurement error of one statistic in one group of configurations.

    Attributes:
        statistic: Statistic of the windows of one round, e.g. ``median``; with several rounds also how these are
            reduced, e.g. ``median, median of 2 rounds``. ``drift corrected`` divides by the control workload.
        rounds: Rounds that make one label.
        group: ``all``, ``1 thread``, ``2 threads``, ..., or a range of step times.
        pairs: Number of pairs that were compared.
        mean: Mean of |first / second - 1|.
        median: Median of the same.
        p90: 90th percentile of the same.
    """

    statistic: str
    rounds: int
    group: str
    pairs: int
    mean: float
    median: float
    p90: float


@dataclass(frozen=True)
class NoiseReport:
    """Label noise of a dataset.

    Attributes:
        entries: By statistic and group.
        configurations: Configurations with two rounds or more.
        contended: Share of the rows taken under contention.
        excluded: Rows that were left out because of it.
    """

    entries: tuple[NoiseEntry, ...]
    configurations: int
    contended: float
    excluded: int

    @property
    def label_noise(self) -> float | None:
        """Mean re-measurement error of the label of one round, or None without pairs.

        Where the rounds have control times, it is that of the label with the drift divided out, as predictors learn it.
        """
        found = {entry.statistic: entry.mean for entry in self.entries if entry.group == "all"}
        return found.get(f"label{_CORRECTED}", found.get("label"))

    def best(self, group: str = "all", rounds: int = 1) -> NoiseEntry | None:
        """The statistic with the smallest mean error."""
        entries = [
            e for e in self.entries if e.group == group and e.rounds == rounds and not e.statistic.startswith("label")
        ]
        return min(entries, key=lambda entry: entry.mean, default=None)


def noise_report(
    source: TimingStore | Iterable[Measurement], *, contended: bool = False, sweep: str | None = None
) -> NoiseReport:
    """Compare the rounds of each configuration on one machine with each other.

    One-round statistics compare neighbouring rounds (first with second, third with fourth); with four rounds or more,
    statistics of two rounds compare the even with the odd ones, so that both labels span the same time.

    Args:
        source: A store, or rows.
        contended: Take rows in that were taken under contention.
        sweep: Only rows of this sweep: its name or the whole ``sweep_id``.
    """
    rows = list(
        source.rows(status="ok", simulated=False, origin="benchmark") if isinstance(source, TimingStore) else source
    )
    rows = [row for row in rows if row.status == "ok" and row.step_time_s is not None]
    if sweep is not None:
        rows = [row for row in rows if sweep in (row.sweep_id, row.sweep_id.rpartition("-")[0])]
    marked = sum(row.contended for row in rows)
    kept = [row for row in rows if contended or not row.contended]
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for row in sorted(kept, key=lambda row: row.repetition):
        groups[row.config_key].append(row)
    repeated = [found for found in groups.values() if len(found) >= 2]
    errors: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for found in repeated:
        names = _groups_of(found)
        for (statistic, rounds), values in _errors(found).items():
            for name in names:
                errors[statistic, rounds, name].extend(values)
    return NoiseReport(
        entries=tuple(
            NoiseEntry(
                statistic=statistic,
                rounds=rounds,
                group=group,
                pairs=len(values),
                mean=statistics.fmean(values),
                median=statistics.median(values),
                p90=quantile(values, 0.9),
            )
            for (statistic, rounds, group), values in sorted(errors.items())
        ),
        configurations=len(repeated),
        contended=marked / len(rows) if rows else 0.0,
        excluded=len(rows) - len(kept),
    )


def _groups_of(found: Sequence[Measurement]) -> list[str]:
    threads = found[0].threads
    typical = statistics.median(row.step_time_s for row in found if row.step_time_s is not None)
    duration = next(name for low, high, name in _DURATIONS if low <= typical < high)
    return ["all", f"{threads} thread{'s' if threads != 1 else ''}", duration]


def _errors(found: Sequence[Measurement]) -> dict[tuple[str, int], list[float]]:
    """Re-measurement errors of one configuration by statistic and number of rounds."""
    errors: dict[tuple[str, int], list[float]] = {}
    series: dict[str, list[float]] = {"label": [_number(row.step_time_s) for row in found]}
    for name in _SINGLE:
        assert name in QUANTILES
        if all(name in row.step_quantiles_s for row in found):
            series[name] = [row.step_quantiles_s[name] for row in found]
    if all(row.control_time_s for row in found):
        controls = [_number(row.control_time_s) for row in found]
        series |= {f"{name}{_CORRECTED}": _corrected(values, controls) for name, values in series.items()}
    for name, values in series.items():
        errors[name, 1] = [_difference(first, second) for first, second in zip(values[::2], values[1::2], strict=False)]
        if len(values) >= 4:
            for over, reduce in _OVER_ROUNDS.items():
                even, odd = reduce(values[0:4:2]), reduce(values[1:4:2])
                errors[f"{name}, {over} of 2 rounds", 2] = [_difference(even, odd)]
    return errors


def _corrected(values: Sequence[float], controls: Sequence[float]) -> list[float]:
    return [value / control for value, control in zip(values, controls, strict=True)]


def _difference(first: float, second: float) -> float:
    return abs(first / second - 1)


def _number(value: Any) -> float:
    assert value is not None
    return float(value)
