"""``trainpilot data``: the labelled timing dataset."""

from __future__ import annotations

import typer

from trainpilot.cli.console import print_json, print_text
from trainpilot.cli.options import JsonFlag

data = typer.Typer(
    no_args_is_help=True, help="The labelled timing dataset: list, import, export, verify, merge, noise."
)


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
