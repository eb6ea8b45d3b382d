"""``trainpilot train``: the same program as ``python train_orchestrated.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainpilot.cli.console import print_json, print_text
from trainpilot.cli.main import EXIT_INTERRUPTED
from trainpilot.cli.options import JsonFlag
from trainpilot.errors import UsageError


def train(
    model: Annotated[str | None, typer.Option("--model", help="Zoo name, path/file.py:build, package:build.")] = None,
    dataset: Annotated[
        Path | None, typer.Option("--dataset", help="Folder with X_train.npy and y_train.npy, .npz, .csv or .parquet.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the model; repeatable.")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", help="A backend, or auto for the best usable one.")] = "auto",
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the data.")] = 5,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Samples per step.")] = 32,
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd, momentum, adam, adamw, ...")] = "adamw",
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Overrides the usual rate.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16 (autocast).")] = "float32",
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads; default: all usable ones.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Decides the order of the samples.")] = 0,
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", help="File for the weights.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Predict, choose a backend, train there, and record the run: predicted beside actual time."""
    if model is None or dataset is None:
        raise UsageError("train needs --model and --dataset, e.g. --model small_cnn --dataset ./test_data_setup")
    from trainpilot.train_orchestrated.command import ProgressPrinter, TrainOptions, format_result, run_training
    from trainpilot.workload.pairs import parse_settings

    options = TrainOptions(
        model=model,
        dataset=dataset,
        settings=parse_settings(setting or []),
        backend=backend,
        epochs=epochs,
        batch_size=batch_size,
        optimizer=optimizer,
        learning_rate=learning_rate,
        dtype=dtype,
        threads=threads,
        seed=seed,
        checkpoint=checkpoint,
    )
    result = run_training(options, progress=ProgressPrinter())
    if as_json:
        print_json({"schema": 1, **result.to_dict()})
    else:
        print_text(format_result(result))
    return EXIT_INTERRUPTED if result.status == "interrupted" else 0
