"""``trainpilot evaluate``: the errors of the predictor and of its alternatives, on models they have not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainpilot.cli.console import note, print_json, print_table, print_text
from trainpilot.cli.options import JsonFlag


def evaluate(
    dataset: Annotated[
        Path | None, typer.Option("--dataset", help="Parquet file or folder of a dataset; default: the store.")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", help="Backend whose rows are used.")] = "cpu",
    plots: Annotated[Path | None, typer.Option("--plots", help="Folder for the figures as PNG files.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the whole protocol with all baselines: every split keeps each model on one side."""
    from trainpilot.backends import get_backend

    get_backend(backend)
    if plots is not None:
        from trainpilot.report.plots import require_matplotlib

        require_matplotlib()
    from trainpilot.store import dataset_frame, dataset_operators, open_store

    if dataset is None:
        with open_store() as store:
            frame, timings = store.frame(status="ok"), store.operators_by_row()
    else:
        frame, timings = dataset_frame(dataset), dataset_operators(dataset)
    from trainpilot.predictors import evaluate as run

    note("evaluating: each method is fitted once per group of each split")
    result = run(frame, backend=backend, timings=timings)
    if plots is not None:
        from trainpilot.report.plots import plot_evaluation

        for file in plot_evaluation(result, plots):
            note(f"wrote {file}")
    if as_json:
        print_json(result)
    else:
        _print_evaluation(result)


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
    for dtypes, regret in result.get("settings_regret", {}).items():
        if regret is not None:
            print_text(
                f"choosing CPU settings ({dtypes}) on unseen families: {_percent(regret['mean'])} over the best on "
                f"average, always the default {_percent(regret['default'])} ({regret['steps']} steps)"
            )
    curve = result.get("learning_curve", [])
    if curve:
        print_table(
            [">configurations", ">minutes of profiling", ">mean error", ">median"],
            [
                [
                    str(point["configurations"]),
                    "-" if point["minutes"] is None else f"{point['minutes']:.1f}",
                    _percent(point["mape"]),
                    _percent(point["median_ape"]),
                ]
                for point in curve
            ],
            title="learning curve (random_by_model)",
        )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _noise(noise: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:.1%}" if isinstance(value, float) else f"{key} {value}" for key, value in noise.items()
    )
