"""The training program: ``python train_orchestrated.py`` and ``trainpilot train`` run this."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from trainpilot import zoo
from trainpilot.backends import ExecutionSettings, get_backend
from trainpilot.errors import TrainPilotError, UsageError
from trainpilot.predictors import Estimate
from trainpilot.selection import check_threads
from trainpilot.train_orchestrated.record import MEMORY, STORE
from trainpilot.train_orchestrated.result import Progress, TrainingResult
from trainpilot.train_orchestrated.seed import check_seed
from trainpilot.train_orchestrated.training import AUTO, train
from trainpilot.workload import Workload
from trainpilot.workload.pairs import parse_settings
from trainpilot.workload.reference import is_code_reference, require_code_file
from trainpilot.zoo.data import load_dataset, settings_for_data

EXIT_INTERRUPTED = 130
DEFAULT_EPOCHS = 5
_PROGRESS_INTERVAL_S = 2.0
_PLACES = {STORE: "the timing dataset", MEMORY: "memory only, gone when the program ends"}


@dataclass(frozen=True)
class TrainOptions:
    """What the program trains.

    Attributes:
        model: Zoo name, ``path/file.py:build`` or ``package.module:build``.
        dataset: Folder or file of training data (see ``load_dataset``).
        settings: Settings of the model; the sizes of the data are added.
        backend: A backend, or ``auto``.
        epochs: Passes over the data.
        batch_size: Samples per step.
        optimizer: Name of the optimizer.
        learning_rate: Overrides its usual rate.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        threads: CPU threads; default: all usable ones.
        seed: Seed of the run.
        checkpoint: File for the weights.
    """

    model: str
    dataset: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    backend: str = AUTO
    epochs: int = DEFAULT_EPOCHS
    batch_size: int = 32
    optimizer: str = "adamw"
    learning_rate: float | None = None
    dtype: str = "float32"
    threads: int | None = None
    seed: int = 0
    checkpoint: Path | None = None


def run_training(options: TrainOptions, *, progress: Callable[[Progress], None] | None = None) -> TrainingResult:
    """Read the data, fit the model to it, and train. What is wrong with names or data is found before torch is loaded.

    Raises:
        TrainPilotError: As ``train`` and ``load_dataset`` do.
    """
    execution = ExecutionSettings(threads=options.threads, dtype=options.dtype)
    check_threads(execution)
    check_seed(options.seed)
    if options.backend != AUTO:
        get_backend(options.backend)
    is_zoo = not is_code_reference(options.model)
    if not is_zoo:
        require_code_file(options.model)
    if is_zoo:
        # Its contradictions are the user's, not the data's, so they are told first.
        zoo.get(options.model).resolve_settings(options.settings)
    data = load_dataset(options.dataset)
    workload = Workload(
        options.model,
        settings=settings_for_data(options.model, options.settings, data) if is_zoo else options.settings,
        optimizer=options.optimizer,
        batch_size=options.batch_size,
        dataset_size=len(data.y_train),
        epochs=options.epochs,
        validation_size=len(data.y_val),
        dtype=options.dtype,
        learning_rate=options.learning_rate,
    )
    return train(
        workload,
        data,
        options.backend,
        settings=execution,
        seed=options.seed,
        checkpoint=options.checkpoint,
        progress=progress,
    )


def format_result(result: TrainingResult) -> str:
    """Tell the run in lines for a person: backend and why, time beside what was predicted, loss, accuracy, record."""
    done = f"{result.steps} of {result.planned_steps}" if result.status == "interrupted" else str(result.steps)
    steps = f"{done} step{'' if result.planned_steps == 1 else 's'}"
    each = "" if result.step_time_s is None else f" of {_duration(result.step_time_s)}"
    lines = [
        ("backend", result.backend),
        *_choice(result),
        ("time", f"{_duration(result.execution_time_s)} ({steps}{each})"),
        ("training", f"{_duration(result.training_time_s)}, predicted {_predicted(result)}"),
        ("setup", f"{_duration(result.warm_up_time_s)} with the first step's surplus, predicted {_setup(result)}"),
        ("loss", f"{_number(result.initial_loss)} at the first step, {_number(result.loss)} in the last epoch"),
        ("accuracy", _accuracy(result)),
        ("recorded", f"row {result.row_id} in {_PLACES.get(result.recorded_in, result.recorded_in)}"),
    ]
    if result.checkpoint is not None:
        lines.append(("weights", str(result.checkpoint)))
    lines += [("note", warning) for warning in result.warnings]
    if result.status == "interrupted":
        lines.insert(0, ("interrupted", "the figures are those of the steps that were done"))
    return "\n".join(f"{name:<12}{text}" for name, text in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Train from the command line.

    Args:
        argv: Arguments; default: those of the process.

    Returns:
        0 done, 1 failure, 2 usage, 130 interrupted (what was done is recorded).
    """
    try:
        arguments = _parser().parse_args(argv)
        options = TrainOptions(
            model=arguments.model,
            dataset=arguments.dataset,
            settings=parse_settings(arguments.set),
            backend=arguments.backend,
            epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            optimizer=arguments.optimizer,
            learning_rate=arguments.learning_rate,
            dtype=arguments.dtype,
            threads=arguments.threads,
            seed=arguments.seed,
            checkpoint=arguments.checkpoint,
        )
        result = run_training(options, progress=ProgressPrinter())
    except TrainPilotError as error:
        sys.stderr.write(f"train_orchestrated: {' '.join(str(error).split())}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("train_orchestrated: interrupted\n")
        return EXIT_INTERRUPTED
    document = {"schema": 1, **result.to_dict()}
    sys.stdout.write((json.dumps(document, allow_nan=False) if arguments.json else format_result(result)) + "\n")
    return EXIT_INTERRUPTED if result.status == "interrupted" else 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="train_orchestrated.py", description="Choose a backend, train there, and record the run.")
    add = parser.add_argument
    add("--model", required=True, help="zoo name, path/file.py:build or package.module:build")
    add("--dataset", required=True, type=Path, help="folder with X_train.npy and y_train.npy, .npz, .csv or .parquet")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the model; repeatable")
    add("--backend", default=AUTO, help="a backend, or auto for the best usable one (default)")
    add("--epochs", type=int, default=DEFAULT_EPOCHS, help=f"passes over the data (default {DEFAULT_EPOCHS})")
    add("--batch-size", type=int, default=32, help="samples per step (default 32)")
    add("--optimizer", default="adamw", help="sgd, momentum, adam, adamw (default), ...")
    add("--learning-rate", type=float, help="overrides the optimizer's usual rate")
    add("--dtype", default="float32", help="float32 (default), bfloat16 or float16")
    add("--threads", type=int, help="CPU threads (default: all usable ones)")
    add("--seed", type=int, default=0, help="decides the order of the samples and which are held out (default 0)")
    add("--checkpoint", type=Path, help="file for the weights")
    add("--json", action="store_true", help="print one JSON document instead of text")
    return parser


class ProgressPrinter:
    """A line on stderr every few seconds."""

    def __init__(self) -> None:
        self._last = -math.inf

    def __call__(self, progress: Progress) -> None:
        """Print where the run is, unless the last line was just printed."""
        now = time.perf_counter()
        if now - self._last < _PROGRESS_INTERVAL_S:
            return
        self._last = now
        sys.stderr.write(
            f"epoch {progress.epoch}/{progress.epochs}, step {progress.step}/{progress.steps}, "
            f"loss {_number(progress.loss)}, {_duration(progress.remaining_s)} left\n"
        )
        sys.stderr.flush()


def _choice(result: TrainingResult) -> list[tuple[str, str]]:
    """Why the backend was chosen, and why not another; nothing where it was given."""
    if result.selection is None:
        return []
    reasons = [("because", reason) for reason in result.selection.reasons]
    return reasons + [("", f"not {name}: {why}") for name, why in result.selection.excluded.items()]


def _predicted(result: TrainingResult) -> str:
    """The steps and validation of the plan, without the setup, which is told apart (see ``warm_up_time_s``)."""
    found = result.predicted_training_time
    if found is None:
        return f"unknown: {'; '.join(result.prediction.notes) or 'no data'}"
    text = f"{_estimated(found)}, {result.prediction.source}"
    if result.status == "interrupted" or found.value == 0:
        return text
    return f"{text}; actual / predicted = {result.training_time_s / found.value:.2f}"


def _setup(result: TrainingResult) -> str:
    setup = result.prediction.setup_time_s
    return "unknown" if setup is None else f"{_estimated(setup)} where libraries are loaded already"


def _estimated(found: Estimate) -> str:
    bounds = "" if found.low is None or found.high is None else f" ({_duration(found.low)} to {_duration(found.high)})"
    return f"{_duration(found.value)}{bounds}"


def _accuracy(result: TrainingResult) -> str:
    if result.accuracy is not None:
        return f"{result.accuracy:.1%} of the held-out samples"
    if result.validation_size == 0:
        return "unknown: there are too few samples to hold any out"
    return "unknown"


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
