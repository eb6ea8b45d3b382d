"""``trainpilot evaluate``: the errors of the predictor and of its alternatives, on models they have not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainpilot.cli.console import note, print_json, print_table, print_text
from trainpilot.cli.options import JsonFlag
from trainpilot.errors import DataError


def evaluate(
    dataset: Annotated[
        Path | None, typer.Option("--dataset", help="Parquet file or folder of a dataset; default: the store.")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", help="Backend whose rows are used.")] = "cpu",
    as_json: JsonFlag = False,
) -> None:
    """Run the whole protocol with all baselines: every split keeps each model on one side."""
    from trainpilot.backends import get_backend

    get_backend(backend)
    if dataset is not None and not dataset.exists():
        raise DataError(f"there is no dataset {dataset}: give a Parquet file or a folder of them")
    from trainpilot.predictors import evaluate as run
    from trainpilot.store import merge, open_store

    if dataset is None:
        with open_store() as store:
            frame = store.frame(status="ok")
    else:
        # Read through a store, so that a file is checked by the same code as every other row.
        with open_store("sqlite://") as store:
            merge(_files(dataset), store)
            frame = store.frame(status="ok")
    note("evaluating: each method is fitted once per group of each split")
    result = run(frame, backend=backend)
    if as_json:
        print_json(result)
    else:
        _print_evaluation(result)


def _files(dataset: Path) -> list[Path]:
    if not dataset.is_dir():
        return [dataset]
    found = sorted(file for file in dataset.glob("*.parquet") if not file.name.endswith(".operators.parquet"))
    if not found:
        raise DataError(f"{dataset} holds no Parquet file")
    return found


def _print_evaluation(result: dict[str, Any]) -> None:
    print_text(f"backend {result['backend']}: {result['rows']} rows of {result['configurations']} configurations")
    for reason, number in result["dropped"].items():
        print_text(f"{number} rows dropped: {reason}")
    print_text(f"label noise (the floor under every error): {_noise(result['label_noise'])}")
    for split, found in result["splits"].items():
        if "skipped" in found:
            print_text(f"{split}: {found['skipped']}")
            continue
        print_table(
            ["method", ">n", ">mean error", ">median", ">90th percentile", ">coverage", ">interval width"],
            [
                [
                    method,
                    str(metrics["n"]),
                    *(_percent(metrics.get(key)) for key in ("mape", "median_ape", "p90_ape", "coverage")),
                    _percent(metrics.get("median_relative_width")),
                ]
                for method, metrics in found["methods"].items()
            ],
            title=f"{split} ({found['groups']} groups)",
        )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _noise(noise: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:.1%}" if isinstance(value, float) else f"{key} {value}" for key, value in noise.items()
    )
