"""Where output goes: data on stdout, progress and notes on stderr, colour only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

_results: TextIO | None = None  # stdout of the process while user code must not write there


@contextmanager
def results_only() -> Iterator[None]:
    """Send everything but results to stderr: what a user's model prints must not get between them."""
    global _results
    before, _results = _results, sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results = before


def _stdout() -> TextIO:
    return sys.stdout if _results is None else _results


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document on stdout; NaN is no JSON, so an unknown must be None before it comes here."""
    _stdout().write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def print_text(text: str = "") -> None:
    """Print a line of results on stdout."""
    _stdout().write(text + "\n")


def note(text: str) -> None:
    """Print a line of progress or explanation on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table on stdout; columns whose name starts with ``>`` are right-aligned.

    Off a terminal the table is as wide as its content, so that nothing is cut in a pipe or a file.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    output = _stdout()
    console = Console(file=output, highlight=False, width=None if output.isatty() else 10_000)
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=any(column.strip(">") for column in columns),
    )
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    with console.capture() as captured:
        if title:  # a title of the table's own would be wrapped to the table's width
            console.print(title, style="bold")
        console.print(table)
    for line in captured.get().splitlines():
        if line.strip():
            print_text(line.rstrip())
    print_text()


class ProgressLine:
    """A line of progress on stderr: rewritten in place on a terminal, else a new line every few seconds."""

    def __init__(self, interval_s: float = 5.0) -> None:
        self._interval_s = interval_s
        self._terminal = sys.stderr.isatty()
        self._last = float("-inf")
        self._width = 0

    def show(self, text: str, *, final: bool = False) -> None:
        """Show ``text``; between two calls closer than the interval only a terminal is updated."""
        import time

        now = time.monotonic()
        if self._terminal:
            sys.stderr.write("\r" + text.ljust(self._width) + ("\n" if final else ""))
            self._width = len(text)
        elif final or now - self._last >= self._interval_s:
            sys.stderr.write(text + "\n")
            self._last = now
        sys.stderr.flush()
