"""The command line: thin commands, each over one call of the library."""

from trainpilot.cli.main import main

__all__ = ["main"]
