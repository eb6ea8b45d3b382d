"""The commands, put together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import typer

from trainpilot import __version__
from trainpilot.cli.commands import (
    benchmark,
    devices,
    evaluate,
    fit,
    predict,
    predictor,
    profile,
    quickstart,
    sample,
    timings,
    train,
)
from trainpilot.cli.console import print_text, results_only

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="How long will a training run take on each backend of this machine, and where should it run?",
)


def _version(wanted: bool) -> None:
    if wanted:
        print_text(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Options of the whole program."""


def _apart(command: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what a user's model prints out of the command's results."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        with results_only():
            return command(*arguments, **options)

    return run


# In the order in which a newcomer meets them.
_COMMANDS: tuple[tuple[Callable[..., Any], str], ...] = (
    (quickstart.quickstart, "The whole loop once, explained: start here."),
    (devices.devices, "Backends of this machine: usable or why not."),
    (devices.calibrate, "Measure how fast a backend is (a few seconds)."),
    (profile.profile, "Count FLOPs, bytes and memory of one step."),
    (benchmark.benchmark, "Measure configurations for the dataset."),
    (fit.fit, "Fit predictors from the dataset."),
    (predict.predict, "What training will take, on each backend."),
    (predict.select, "Where to train, how sure, and why."),
    (train.train, "Choose, train, and record the run."),
    (evaluate.evaluate, "Errors of the predictor and its alternatives."),
    (sample.sample, "Write training data to try the program with."),
)
for _command, _summary in _COMMANDS:
    app.command(short_help=_summary)(_apart(_command))
app.add_typer(timings.data, name="data", short_help="The timing dataset.")
app.add_typer(predictor.predictor, name="predictor", short_help="The fitted predictors.")
