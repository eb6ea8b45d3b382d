"""Label noise: how far the same configuration, measured again, differs. It is the floor under every accuracy figure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainpilot.benchmarking import Measurement
from trainpilot.benchmarking.timing import quantile
from trainpilot.store.label_rule import (
    LABEL,
    OVER_ROUNDS,
    LabelRule,
    Round,
    choose_rule,
    drift_rule,
    errors_of,
    remeasured,
)
from trainpilot.store.store import TimingStore

_SINGLE = (LABEL, "min", "p10", "p25", "median")
LEARNED = "label as learned"
_LEARNED_OF_TWO = f"{LEARNED}, 2 rounds"
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
            reduced, e.g. ``median, median of 2 rounds``. ``drift corrected`` divides the control workload out as far
            as the repetitions tell. ``label as learned`` is what predictors learn: the rule that re-measures best,
            chosen for each configuration on the other ones.
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
        rules: How rounds become the label, in words, by number of threads (and machine, where there are several).
    """

    entries: tuple[NoiseEntry, ...]
    configurations: int
    contended: float
    excluded: int
    rules: dict[str, str]

    @property
    def label_noise(self) -> float | None:
        """Mean re-measurement error of the label of one round as predictors learn it, or None without pairs."""
        return next((entry.mean for entry in self.entries if (entry.statistic, entry.group) == (LEARNED, "all")), None)

    def best(self, group: str = "all", rounds: int = 1) -> NoiseEntry | None:
        """The statistic with the smallest mean error."""
        entries = [
            e for e in self.entries if e.group == group and e.rounds == rounds and not e.statistic.startswith(LABEL)
        ]
        return min(entries, key=lambda entry: entry.mean, default=None)


def noise_report(
    source: TimingStore | Iterable[Measurement], *, contended: bool = False, sweep: str | None = None
) -> NoiseReport:
    """Compare the rounds of each configuration on one machine with each other.

    One-round statistics compare neighbouring rounds (first with second, third with fourth); of four rounds or more, the
    first four give two labels of two rounds each, in all three ways to pair them.

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
    rules = {}
    for place, members in _by_place(repeated).items():
        rounds = [[_round(row) for row in found] for found in members]
        rules[place] = choose_rule(rounds).describe()
        named = [
            *_errors(rounds),
            *(((LEARNED, 1), remeasured(rounds, 1)), ((_LEARNED_OF_TWO, 2), remeasured(rounds, 2))),
        ]
        for (statistic, count), by_configuration in named:
            for found, values in zip(members, by_configuration, strict=True):
                for name in _groups_of(found):
                    errors[statistic, count, name].extend(values)
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
            if values
        ),
        configurations=len(repeated),
        contended=marked / len(rows) if rows else 0.0,
        excluded=len(rows) - len(kept),
        rules=rules,
    )


def _groups_of(found: Sequence[Measurement]) -> list[str]:
    typical = statistics.median(row.step_time_s for row in found if row.step_time_s is not None)
    duration = next(name for low, high, name in _DURATIONS if low <= typical < high)
    return ["all", _threads(found), duration]


def _by_place(repeated: Sequence[Sequence[Measurement]]) -> dict[str, list[Sequence[Measurement]]]:
    """Configurations by machine and number of threads, whose labels are made alike."""
    machines = {found[0].machine_id for found in repeated}
    places: dict[str, list[Sequence[Measurement]]] = defaultdict(list)
    for found in repeated:
        threads = _threads(found)
        places[threads if len(machines) == 1 else f"{threads}, machine {found[0].machine_id}"].append(found)
    return dict(sorted(places.items()))


def _threads(found: Sequence[Measurement]) -> str:
    threads = found[0].threads
    return f"{threads} thread{'s' if threads != 1 else ''}"


def _round(row: Measurement) -> Round:
    assert row.step_time_s is not None
    return Round({**row.step_quantiles_s, LABEL: row.step_time_s}, row.control_time_s or 0.0)


def _errors(groups: Sequence[Sequence[Round]]) -> Iterator[tuple[tuple[str, int], list[list[float]]]]:
    """Re-measurement errors by configuration, for each statistic and number of rounds."""
    for name in _SINGLE:
        if any(name not in round_.times for rounds in groups for round_ in rounds):
            continue
        plain = LabelRule(name, exponent=0.0)
        yield (name, 1), [list(errors_of(plain, rounds, 1)) for rounds in groups]
        for over in OVER_ROUNDS:
            joined = LabelRule(name, over, exponent=0.0)
            yield (f"{name}, {over} of 2 rounds", 2), [list(errors_of(joined, rounds, 2)) for rounds in groups]
        if all(round_.control_s for rounds in groups for round_ in rounds):
            steady = drift_rule(groups, name)
            yield (f"{name}{_CORRECTED}", 1), [list(errors_of(steady, rounds, 1)) for rounds in groups]
            for over in OVER_ROUNDS:
                joined = drift_rule(groups, name, over)
                yield (
                    (f"{name}{_CORRECTED}, {over} of 2 rounds", 2),
                    [list(errors_of(joined, rounds, 2)) for rounds in groups],
                )
