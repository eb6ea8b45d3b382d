"""``trainpilot data``: the labelled timing dataset."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import typer

from trainpilot.cli.console import note, print_json, print_table, print_text
from trainpilot.cli.options import JsonFlag
from trainpilot.errors import NoDataError

data = typer.Typer(no_args_is_help=True, help="The labelled timing dataset.")

_Sources = Annotated[list[Path], typer.Argument(help="Parquet files or other SQLite datasets.")]


@data.command()
def path(as_json: JsonFlag = False) -> None:
    """Print where the data folder and the timing dataset are."""
    from trainpilot.settings import load_settings

    settings = load_settings()
    if as_json:
        print_json({"schema": 1, "data_dir": str(settings.data_dir), "store": settings.store_url})
    else:
        print_text(f"data folder: {settings.data_dir}")
        print_text(f"dataset:     {settings.store_url}")


@data.command("list")
def list_rows(as_json: JsonFlag = False) -> None:
    """List what the dataset holds, sweep by sweep."""
    from trainpilot.store import list_sweeps, open_store

    with open_store() as store:
        found = list_sweeps(store)
    if as_json:
        print_json({"schema": 1, "sweeps": [{**dataclasses.asdict(item), "rows": dict(item.rows)} for item in found]})
    elif not found:
        print_text("the dataset is empty: run trainpilot benchmark --quick")
    else:
        print_table(
            ["sweep", ">configurations", "rows by status", "first", "last"],
            [
                [
                    item.sweep_id,
                    str(item.configurations),
                    ", ".join(f"{number} {status}" for status, number in item.rows.items()),
                    _when(item.first_at),
                    _when(item.last_at),
                ]
                for item in found
            ],
        )


@data.command("export")
def export(
    target: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    sweep: Annotated[list[str] | None, typer.Option("--sweep", help="Only rows of this sweep id; repeatable.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the dataset to a Parquet file, operator timings beside it."""
    from trainpilot.store import export_parquet, open_store

    with open_store() as store:
        number = export_parquet(store, target, **({"sweep_id": sweep} if sweep else {}))
    if as_json:
        print_json({"schema": 1, "file": str(target), "rows": number})
    else:
        print_text(f"{number} rows written to {target}")


@data.command("import")
def import_rows(sources: _Sources, as_json: JsonFlag = False) -> None:
    """Add the rows of Parquet files and datasets, or of a file that kept a row when the dataset was not writable."""
    from trainpilot.store import import_spilled, merge, open_store

    added = known = 0
    with open_store() as store:
        for source in sources:
            if source.suffix == ".json":
                new = import_spilled(source, store)
                added, known = added + new, known + (not new)
            else:
                more, old = merge([source], store)
                added, known = added + more, known + old
    _print_added(added, known, as_json)


@data.command("merge")
def merge_datasets(sources: _Sources, as_json: JsonFlag = False) -> None:
    """Add the rows of other datasets; rows that are there already stay as they are."""
    from trainpilot.store import merge, open_store

    with open_store() as store:
        added, known = merge(sources, store)
    _print_added(added, known, as_json)


@data.command("verify")
def verify_dataset(
    source: Annotated[Path | None, typer.Argument(help="Parquet or SQLite file; default: the dataset in use.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Check every row; exit code 1 if something is wrong."""
    from trainpilot.store import open_store, verify

    if source is None:
        with open_store() as store:
            report = verify(store)
    else:
        report = verify(source)
    if as_json:
        print_json({"schema": 1, **dataclasses.asdict(report), "problems": list(report.problems)})
    else:
        rows = ", ".join(f"{number} {status}" for status, number in report.rows.items()) or "no rows"
        print_text(
            f"{report.name}: {rows}; {report.configurations} configurations, {report.families} families, "
            f"{report.operators} operator timings"
        )
        for problem in report.problems:
            note(problem)
        print_text("no problem found" if not report.problems else f"{len(report.problems)} problems")
    return 1 if report.problems else 0


@data.command("noise")
def print_noise(
    source: Annotated[
        Path | None, typer.Argument(help="Parquet file, folder of them, or SQLite file; default: the dataset in use.")
    ] = None,
    sweep: Annotated[str | None, typer.Option("--sweep", help="Only rows of this sweep id.")] = None,
    contended: Annotated[bool, typer.Option("--contended", help="Take in rows measured under contention.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the label noise: how far the same step, measured again, differs, by statistic and by duration."""
    from trainpilot.store import dataset_rows, noise_report, open_store

    if source is None:
        with open_store() as store:
            report = noise_report(store, contended=contended, sweep=sweep)
    else:
        rows = [row for row in dataset_rows(source) if row.origin == "benchmark" and not row.simulated]
        report = noise_report(rows, contended=contended, sweep=sweep)
    if not report.entries:
        raise NoDataError(
            "no configuration was measured twice, so its noise is unknown: run trainpilot benchmark --sweep noise"
        )
    if as_json:
        entries = [dataclasses.asdict(entry) for entry in report.entries]
        print_json(
            {
                "schema": 1,
                "label_noise": report.label_noise,
                "configurations": report.configurations,
                "contended": report.contended,
                "excluded": report.excluded,
                "rules": report.rules,
                "entries": entries,
            }
        )
        return
    print_table(
        ["statistic", ">rounds", "group", ">pairs", ">mean", ">median", ">90th percentile"],
        [
            [
                entry.statistic,
                str(entry.rounds),
                entry.group,
                str(entry.pairs),
                *(f"{value:.1%}" for value in (entry.mean, entry.median, entry.p90)),
            ]
            for entry in report.entries
        ],
        title="Re-measurement error |first / second - 1|",
    )
    print_text(
        f"{report.configurations} configurations with two rounds or more; {report.contended:.0%} of the rows taken "
        f"under contention, {report.excluded} left out"
    )
    for place, rule in report.rules.items():
        print_text(f"label on {place}: {rule}")


def _print_added(added: int, known: int, as_json: bool) -> None:
    if as_json:
        print_json({"schema": 1, "added": added, "known": known})
    else:
        print_text(f"{added} rows added, {known} were there already")


def _when(timestamp: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(timestamp))
