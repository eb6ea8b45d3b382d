"""``trainpilot fit``: make predictors from the timing dataset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainpilot.cli.console import print_json, print_text
from trainpilot.cli.options import JsonFlag
from trainpilot.errors import UsageError

if TYPE_CHECKING:
    from trainpilot.predictors import BackendFit


def fit(
    backend: Annotated[str | None, typer.Option("--backend", help="Only this backend; default: all with rows.")] = None,
    store: Annotated[str | None, typer.Option("--store", help="SQLAlchemy URL of another dataset.")] = None,
    min_rows: Annotated[int, typer.Option("--min-rows", help="Least number of usable rows.")] = 8,
    include_simulated: Annotated[
        bool, typer.Option("--include-simulated", help="Also fit the rows of the simulated backend.")
    ] = False,
    dataset: Annotated[
        Path | None, typer.Option("--dataset", help="Fit a predictor from this dataset on disk alone; needs --out.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for that predictor; it must not exist.")] = None,
    promote: Annotated[bool, typer.Option("--promote/--no-promote", help="Use the result if it is not worse.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Fit one predictor per backend; it replaces the one in use only if it is not worse on what neither has seen."""
    from trainpilot.backends import get_backend

    if backend is not None:
        get_backend(backend)
    if dataset is not None or out is not None:
        _fit_dataset(dataset, out, backend or "cpu", as_json=as_json)
        return
    from trainpilot.predictors import fit as fit_predictors

    report = fit_predictors(
        store, backend=backend, min_rows=min_rows, include_simulated=include_simulated, promote=promote
    )
    if as_json:
        print_json(report.to_dict())
        return
    for item in report.fits:
        print_fit(item)
    for name, reason in report.skipped.items():
        print_text(f"{name}: left out: {reason}")


def _fit_dataset(dataset: Path | None, out: Path | None, backend: str, *, as_json: bool) -> None:
    if dataset is None or out is None:
        raise UsageError("--dataset and --out belong together: where the rows are, and where the predictor goes")
    from trainpilot.predictors import fit_reference, save_predictor
    from trainpilot.store import dataset_frame, dataset_operators

    if out.exists():
        raise UsageError(f"{out} exists already: name a folder that does not")
    predictor = fit_reference(dataset_frame(dataset), backend, timings=dataset_operators(dataset))
    save_predictor(predictor, out)
    provenance = predictor.provenance
    if as_json:
        print_json(
            {
                "schema": 1,
                "backend": backend,
                "folder": str(out),
                "rows": provenance.rows,
                "workloads": provenance.workloads,
                "parts": predictor.parts_in_use,
                "metrics": predictor.step.metrics_,
            }
        )
        return
    print_text(f"{backend}: {provenance.rows} rows of {provenance.workloads} workloads; {predictor.parts_in_use}")
    print_metrics(predictor.step.metrics_)
    print_text(f"  {out}")


def print_metrics(metrics: Mapping[str, Mapping[str, Any]]) -> None:
    """Print held-out errors by kind of fold."""
    for kind, found in metrics.items():
        shown = ", ".join(
            f"{name} {found[key]:.1%}"
            for key, name in (("mape", "mean error"), ("median_ape", "median"), ("coverage", "interval coverage"))
            if found.get(key) is not None
        )
        print_text(f"  unseen {kind}: {shown}")


def print_fit(item: BackendFit) -> None:
    """Print what was fitted for one backend, with its held-out error."""
    provenance = item.predictor.provenance
    print_text(
        f"{item.backend}: {provenance.rows} rows of {provenance.workloads} workloads, {len(provenance.families)} "
        f"families; parts in use: {item.predictor.parts_in_use}"
    )
    for reason, number in provenance.dropped.items():
        print_text(f"  {number} rows dropped: {reason}")
    print_text(f"  validated: {item.validation}")
    print_metrics(item.metrics)
    print_text(f"  {item.decision}" + ("" if item.version is None else f" (version {item.version})"))
    for warning in item.warnings:
        print_text(f"  warning: {warning}")
