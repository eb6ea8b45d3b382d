"""``trainpilot quickstart``: the whole loop once, with real measurements, explained as it goes."""

from __future__ import annotations

import dataclasses
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainpilot.cli.commands.benchmark import SweepProgressLine
from trainpilot.cli.commands.fit import print_fit
from trainpilot.cli.console import note, print_table, print_text
from trainpilot.cli.main import EXIT_INTERRUPTED
from trainpilot.cli.options import parse_duration
from trainpilot.errors import MeasurementError
from trainpilot.report.format import count, duration, with_interval

if TYPE_CHECKING:
    from trainpilot.benchmarking import Measurement, Sweep
    from trainpilot.store import TimingStore
    from trainpilot.workload import Workload

_HELD_OUT = 3
_TARGET_ACCURACY = 0.9
_EPOCHS = 15
_INDENT = "   "


def quickstart(
    budget: Annotated[str, typer.Option("--budget", help="Time for the quick sweep.")] = "90s",
) -> int:
    """Calibrate, measure, fit, predict models that were not measured, decide, train, and record: under 4 minutes."""
    budget_s = parse_duration(budget)
    begin = time.perf_counter()
    _heading(1, "Calibrate: how fast is this machine?")
    _calibrate()
    _heading(2, f"Measure: training steps of small models of every family, in isolated processes (up to {budget})")
    if not _measure(budget_s):
        return EXIT_INTERRUPTED
    _heading(3, "Fit: a predictor from those measurements")
    _fit()
    _heading(4, "Predict: three models that were never measured here, and then measure them to compare")
    _compare()
    with tempfile.TemporaryDirectory(prefix="trainpilot-quickstart-") as folder:
        from trainpilot.zoo.data import write_digits

        write_digits(Path(folder) / "digits")
        _heading(5, "Decide and train: small_cnn on 8x8 images of handwritten digits (real data)")
        row_id = _train(Path(folder) / "digits")
    _heading(6, "Record: the run is now a row of the timing dataset, and the next fit learns from it")
    _show_row(row_id)
    print_text()
    print_text(f"Done in {duration(time.perf_counter() - begin)}. Next, with a model of your own:")
    print_text("  trainpilot profile path/to/model.py:build --input 3x64x64 --classes 10")
    print_text(
        "  trainpilot predict path/to/model.py:build --input 3x64x64 --classes 10 --dataset-size 50000 --epochs 10"
    )
    print_text("  trainpilot benchmark --sweep standard   # half an hour of measuring makes predictions much better")
    return 0


def _heading(number: int, text: str) -> None:
    print_text()
    print_text(f"{number}. {text}")


def _calibrate() -> None:
    from trainpilot.backends import candidate_backends
    from trainpilot.settings import load_settings

    for backend in candidate_backends():
        usability = backend.probe(load_settings().probe_timeout_s)
        if not usability.usable:
            print_text(f"   {backend.name}: not usable: {usability.reason}")
            continue
        calibration = backend.calibration()
        assert calibration is not None  # only run=False gives None
        figures = calibration.figures
        print_text(
            f"   {backend.name}: {count(figures['matmul_flops_per_s'], 'FLOP/s')} in matrix products, "
            f"{count(figures['memory_bytes_per_s'], 'B/s')} of memory traffic, "
            f"{duration(figures['dispatch_s'])} per operator (measured, {calibration.threads} threads)"
        )


def _measure(budget_s: float) -> bool:
    from trainpilot.store import benchmark

    summary = benchmark("quick", budget_s=budget_s, progress=SweepProgressLine())
    print_text(f"   {summary}")
    return summary.stopped != "interrupted"


def _fit() -> None:
    from trainpilot.predictors import fit

    for item in fit(backend="cpu").fits:
        print_fit(item)


def _compare() -> None:
    from trainpilot.benchmarking import load_sweep
    from trainpilot.hardware import usable_cores
    from trainpilot.predictors import predict
    from trainpilot.store import benchmark, open_store

    with open_store() as store:
        chosen = _never_measured(store)
        predictions = [predict(workload, "cpu") for workload in chosen]
        sweep = _sweep_of(load_sweep("quick"), chosen)
        benchmark(sweep, store=store)
        cores = usable_cores()
        measured = [_fresh_row(store, sweep, workload, cores) for workload in chosen]
    print_table(
        ["model", "predicted time of a step", "source", ">measured", ">predicted / measured"],
        [
            [
                f"{workload.name} {' '.join(f'{k}={v}' for k, v in _shown(workload).items())}",
                with_interval(prediction.step_time_s),
                prediction.source,
                duration(row.step_time_s),
                _ratio(prediction.step_time_s.value if prediction.step_time_s else None, row.step_time_s),
            ]
            for workload, prediction, row in zip(chosen, predictions, measured, strict=True)
        ],
    )


def _candidates() -> Iterator[list[Workload]]:
    """Models outside the quick sweep, one list per kind; the sizes vary so that a later run finds new ones."""
    from trainpilot.workload import Workload

    for step in range(1000):
        yield [
            Workload("mlp", settings={"width": 384 + 16 * step, "layers": 3}, batch_size=48),
            Workload("small_cnn", settings={"width": 24 + 4 * step}, batch_size=64),
            Workload("gpt", settings={"width": 96 + 16 * step}, batch_size=8),
        ]


def _never_measured(store: TimingStore) -> list[Workload]:
    known = set(store.frame(status=None)["model_hash"])
    for workloads in _candidates():
        if not {workload.model_hash for workload in workloads} & known:
            return workloads
    raise MeasurementError("the dataset holds every model that the quickstart would predict")


def _shown(workload: Workload) -> dict[str, Any]:
    return {name: value for name, value in workload.settings.items() if name in ("width", "layers", "depth")}


def _sweep_of(quick: Sweep, workloads: list[Workload]) -> Sweep:
    from trainpilot.benchmarking.sweep_file import SpaceTable

    spaces = tuple(
        SpaceTable.model_validate(
            {
                "model": workload.name,
                "settings": dict(workload.settings),
                "batch_size": workload.plan.batch_size,
                "threads": "all",
            }
        )
        for workload in workloads
    )
    return dataclasses.replace(quick, name="quickstart", description="Models to predict", rounds=1, spaces=spaces)


def _fresh_row(store: TimingStore, sweep: Sweep, workload: Workload, threads: int) -> Measurement:
    rows = store.rows(workload_hash=workload.workload_hash, sweep_id=sweep.sweep_id, threads=threads)
    row = next(rows, None)
    if row is None or row.step_time_s is None:
        why = "no row was written" if row is None else f"{row.status}: {row.reason}"
        raise MeasurementError(f"{workload.name} could not be measured: {why}")
    return row


def _ratio(predicted: float | None, measured: float | None) -> str:
    return "unknown" if predicted is None or not measured else f"{predicted / measured:.2f}"


def _train(folder: Path) -> str:
    from trainpilot.train_orchestrated.command import ProgressPrinter, TrainOptions, format_result, run_training

    result = run_training(
        TrainOptions(model="small_cnn", dataset=folder, epochs=_EPOCHS, batch_size=64), progress=ProgressPrinter()
    )
    print_text(textwrap.indent(format_result(result), _INDENT))
    if result.accuracy is None or result.accuracy < _TARGET_ACCURACY:
        note(f"the accuracy is below {_TARGET_ACCURACY:.0%}: something is wrong with this installation")
    return result.row_id


def _show_row(row_id: str) -> None:
    from trainpilot.store import open_store

    with open_store() as store:
        row = next(iter(store.rows(row_id=row_id)))
    print_text(
        f"   {row.row_id}: {row.name} ({row.family}), batch {row.batch_size}, {row.backend}, {row.threads} threads: "
        f"{duration(row.step_time_s)} per step, first step {duration(row.first_step_s)}, "
        f"setup {duration(row.setup_time_s)}, status {row.status}"
    )
