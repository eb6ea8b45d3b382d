"""``trainpilot predictor``: the fitted predictors and which one is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainpilot.cli.console import print_json, print_table, print_text
from trainpilot.cli.options import JsonFlag
from trainpilot.errors import NoDataError

predictor = typer.Typer(no_args_is_help=True, help="List, show, roll back, export and import fitted predictors.")

_Backend = Annotated[str, typer.Option("--backend", help="Backend.")]


@predictor.command("list")
def list_predictors(as_json: JsonFlag = False) -> None:
    """List the stored predictors of every backend."""
    from trainpilot.backends import backend_names
    from trainpilot.predictors import active_version, list_versions

    found = [
        {"backend": name, "version": version, "active": version == active_version(name), **_facts(name, version)}
        for name in backend_names()
        for version in list_versions(name)
    ]
    if as_json:
        print_json({"schema": 1, "predictors": found})
    elif not found:
        print_text("no predictor is fitted yet: run trainpilot benchmark --quick and trainpilot fit")
    else:
        print_table(
            ["backend", ">version", "in use", ">rows", ">families"],
            [
                [
                    item["backend"],
                    str(item["version"]),
                    "yes" if item["active"] else "",
                    str(item["rows"]),
                    str(len(item["families"])),
                ]
                for item in found
            ],
        )


@predictor.command()
def show(
    backend: _Backend = "cpu",
    version: Annotated[int | None, typer.Option("--version", help="Version; default: the one in use.")] = None,
) -> None:
    """Print the card of a predictor as JSON: data, metrics, versions, calibration."""
    from trainpilot.predictors import read_card, version_folder

    print_json(read_card(version_folder(backend, _stored(backend, version))))


@predictor.command()
def rollback(backend: _Backend = "cpu", as_json: JsonFlag = False) -> None:
    """Put the predictor that was in use before back to use."""
    from trainpilot.backends import get_backend
    from trainpilot.predictors import rollback as roll_back

    get_backend(backend)
    version = roll_back(backend)
    if as_json:
        print_json({"schema": 1, "backend": backend, "version": version})
    else:
        print_text(f"{backend}: version {version} is in use again")


@predictor.command("export")
def export_predictor(
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    backend: _Backend = "cpu",
    version: Annotated[int | None, typer.Option("--version", help="Version; default: the one in use.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy a predictor into a folder, to give it to somebody else."""
    from trainpilot.predictors import load_predictor, save_predictor, version_folder

    number = _stored(backend, version)
    save_predictor(load_predictor(version_folder(backend, number)), folder)
    if as_json:
        print_json({"schema": 1, "backend": backend, "version": number, "folder": str(folder)})
    else:
        print_text(f"{backend}: version {number} is in {folder}")


@predictor.command("import")
def import_predictor(
    folder: Annotated[Path, typer.Argument(help="Folder that predictor export wrote.")],
    use: Annotated[bool, typer.Option("--use/--no-use", help="Put it to use.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Take in a predictor from a folder after checking it; nothing in it is executed."""
    from trainpilot.backends import get_backend
    from trainpilot.predictors import activate, load_predictor, store_version

    found = load_predictor(folder)
    get_backend(found.backend)
    version = store_version(found)
    if use:
        activate(found.backend, version)
    if as_json:
        print_json({"schema": 1, "backend": found.backend, "version": version, "active": use})
    else:
        print_text(f"{found.backend}: version {version}{' is in use' if use else ' is stored'}")


def _stored(backend: str, version: int | None) -> int:
    """The version that was asked for, or the one in use.

    Raises:
        NoDataError: There is no such predictor.
    """
    from trainpilot.backends import get_backend
    from trainpilot.predictors import active_version, list_versions

    get_backend(backend)
    number = active_version(backend) if version is None else version
    if number is None or number not in list_versions(backend):
        stored = ", ".join(map(str, list_versions(backend))) or "none"
        raise NoDataError(
            f"backend {backend} has no predictor {'in use' if number is None else number}: stored: {stored}"
        )
    return number


def _facts(backend: str, version: int) -> dict[str, Any]:
    from trainpilot.predictors import read_card, version_folder

    data = read_card(version_folder(backend, version))["data"]
    return {"rows": data["rows"], "families": data["families"]}
