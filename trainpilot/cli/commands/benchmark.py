"""``trainpilot benchmark``: measure configurations and keep them in the timing dataset."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainpilot.cli.console import ProgressLine, note, print_json, print_text
from trainpilot.cli.main import EXIT_INTERRUPTED
from trainpilot.cli.options import JsonFlag, parse_duration
from trainpilot.errors import UsageError
from trainpilot.report.format import duration
from trainpilot.signals import SignalRequest

if TYPE_CHECKING:
    from trainpilot.benchmarking import SweepProgress, SweepSummary

_DEFAULT_SWEEP = "standard"
_EXIT_TERMINATED = 128 + signal.SIGTERM


def benchmark(
    sweep: Annotated[
        str | None, typer.Option("--sweep", help="Name of a sweep that comes with the program, or a TOML file.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short for --sweep quick.")] = False,
    budget: Annotated[str | None, typer.Option("--budget", help="Time limit, e.g. 90s, 30m or 2h.")] = None,
    backend: Annotated[list[str] | None, typer.Option("--backend", help="Backend to measure; repeatable.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--again", help="Leave out what is measured already, or measure it again.")
    ] = True,
    shard: Annotated[str, typer.Option("--shard", help="Part i of n, as i/n, to share a sweep.")] = "1/1",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be measured.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Run a sweep in isolated workers; every row is kept the moment it is known, and a killed sweep goes on later.

    Ctrl-C and SIGTERM end it in order: the worker is ended, what was measured stays and is summed up; exit codes are
    130 and 143.
    """
    from trainpilot.benchmarking import load_sweep, parse_shard

    if quick and sweep is not None:
        raise UsageError("give --quick or --sweep, not both")
    chosen = load_sweep("quick" if quick else _DEFAULT_SWEEP if sweep is None else sweep)
    budget_s = None if budget is None else parse_duration(budget)
    part = parse_shard(shard)
    from trainpilot.store import benchmark as collect

    if not dry_run:
        described = f": {chosen.description}" if chosen.description else ""
        note(f"{chosen.sweep_id}{described} (keep the machine quiet meanwhile)")
    termination = Termination()
    try:
        with termination:
            summary = collect(
                chosen,
                backends=backend,
                budget_s=budget_s,
                resume=resume,
                shard=part,
                dry_run=dry_run,
                progress=SweepProgressLine(),
            )
    except KeyboardInterrupt:  # before the first row, so that there is nothing to sum up
        if not termination.requested:
            raise
        note("terminated")
        return _EXIT_TERMINATED
    if as_json:
        print_json(_document(summary))
    elif dry_run:
        for title in summary.planned:
            print_text(title)
        note(f"{len(summary.planned)} rows would be measured, {summary.already} are there already")
    else:
        print_text(str(summary))
        for title, reason in summary.skipped.items():
            note(f"skipped: {title}: {reason}")
    if summary.stopped != "interrupted":
        return 0
    return _EXIT_TERMINATED if termination.requested else EXIT_INTERRUPTED


class Termination(SignalRequest):
    """While it is open, SIGTERM interrupts like Ctrl-C; more of them change nothing."""

    def __init__(self) -> None:
        super().__init__(signal.SIGTERM)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self.requested:
            self.requested = True
            raise KeyboardInterrupt


class SweepProgressLine:
    """Shows the progress of a sweep on stderr."""

    def __init__(self) -> None:
        self._line = ProgressLine()

    def __call__(self, progress: SweepProgress) -> None:
        """Show one more row."""
        remaining = "" if progress.remaining_s is None else f", about {duration(progress.remaining_s)} left"
        self._line.show(
            f"{progress.done}/{progress.total}{remaining}: {progress.title}: {progress.status}",
            final=progress.done == progress.total,
        )


def _document(summary: SweepSummary) -> dict[str, Any]:
    return {
        "schema": 1,
        "sweep_id": summary.sweep_id,
        "total": summary.total,
        "already": summary.already,
        "measured": summary.measured,
        "counts": dict(summary.counts),
        "contended": summary.contended,
        "skipped": dict(summary.skipped),
        "planned": list(summary.planned),
        "remaining": summary.remaining,
        "elapsed_s": summary.elapsed_s,
        "stopped": summary.stopped,
    }
