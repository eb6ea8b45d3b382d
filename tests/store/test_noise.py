import pytest

from tests.store.helpers import measurement
from trainpilot.store import noise_report, open_store


def rounds(key, medians, minima=None, **changes):
    minima = minima or medians
    return [
        measurement(
            config_key=key,
            repetition=number,
            step_time_s=median,
            step_quantiles_s={"min": low, "p10": low, "p25": low, "median": median},
            **changes,
        )
        for number, (median, low) in enumerate(zip(medians, minima, strict=True))
    ]


def entry(report, statistic, group="all", rounds=1):
    return next(e for e in report.entries if (e.statistic, e.group, e.rounds) == (statistic, group, rounds))


def test_noise_is_the_mean_relative_difference_of_the_rounds():
    rows = rounds("a", [0.011, 0.010], [0.0102, 0.0100]) + rounds("b", [0.9, 1.0], [0.8, 0.8], threads=2)
    report = noise_report(rows)
    # |11/10 - 1| = 10% and |0.9/1 - 1| = 10%; minima: 2% and 0%.
    assert report.label_noise == pytest.approx(0.10)
    assert entry(report, "median").mean == pytest.approx(0.10)
    assert entry(report, "min").mean == pytest.approx(0.01)
    assert entry(report, "min", "1 thread").mean == pytest.approx(0.02)
    assert entry(report, "min", "2 threads").mean == pytest.approx(0.0)
    assert entry(report, "median", "10 to 100 ms").pairs == 1
    assert entry(report, "median", "over 100 ms").pairs == 1
    assert report.configurations == 2
    assert report.best().mean == pytest.approx(0.01)


def test_four_rounds_also_give_labels_of_two():
    report = noise_report(rounds("a", [1.0, 2.0, 3.0, 4.0]))
    # The three ways to pair the rounds: 1, 2 against 3, 4; 1, 3 against 2, 4; 1, 4 against 2, 3.
    # Medians 1.5 and 3.5, 2 and 3, 2.5 and 2.5; minima 1 and 3, 1 and 2, 1 and 2.
    assert entry(report, "median, median of 2 rounds", rounds=2).mean == pytest.approx((4 / 7 + 1 / 3 + 0) / 3)
    assert entry(report, "median, min of 2 rounds", rounds=2).mean == pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)
    assert entry(report, "median").pairs == 2


def test_drift_of_the_machine_is_divided_out():
    rows = [
        measurement(
            config_key="a", repetition=0, control_time_s=0.001, step_quantiles_s={"median": 1.0}, step_time_s=1.0
        ),
        measurement(
            config_key="a", repetition=1, control_time_s=0.002, step_quantiles_s={"median": 2.0}, step_time_s=2.0
        ),
    ]
    report = noise_report(rows)
    assert entry(report, "median").mean == pytest.approx(0.5)
    assert entry(report, "median, drift corrected").mean == pytest.approx(0.0)


def test_contended_rows_are_left_out_and_counted():
    rows = rounds("a", [1.0, 1.0]) + rounds("b", [1.0, 5.0], contended=True)
    report = noise_report(rows)
    assert report.label_noise == pytest.approx(0.0)
    assert (report.contended, report.excluded) == (0.5, 2)
    assert noise_report(rows, contended=True).label_noise == pytest.approx(0.4)


def test_without_pairs_there_is_no_figure():
    report = noise_report([measurement()])
    assert report.label_noise is None
    assert report.entries == ()
    assert report.best() is None


def test_only_labels_of_one_sweep():
    rows = rounds("a", [1.0, 1.0], sweep_id="noise-1234") + rounds("b", [1.0, 2.0], sweep_id="quick-1")
    with open_store() as store:
        for row in [*rows, *rounds("c", [1.0, 9.0], sweep_id="noise-1234", simulated=True)]:
            store.append(row)
        assert noise_report(store, sweep="noise").label_noise == pytest.approx(0.0)
        assert noise_report(store, sweep="quick-1").label_noise == pytest.approx(0.5)
        assert noise_report(store).configurations == 2
