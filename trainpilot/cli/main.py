"""Entry point: turns errors into one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from trainpilot.errors import TrainPilotError

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: Command-line arguments; default: those of the process.

    Returns:
        0 done, 1 failure, 2 usage, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if debug:
        arguments.remove("--debug")
    from trainpilot.cli.app import app

    try:
        # Help and usage errors go where typer sends them; a command's own output is kept apart (see app).
        result = app(args=arguments, prog_name="trainpilot", standalone_mode=False)
        sys.stdout.flush()
    except TrainPilotError as error:
        return _fail(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED, debug)
    except SystemExit as error:  # typer never raises it here, so it is the user's code that did
        return _fail(f"a user's code ended the program with sys.exit({error.code!r})", EXIT_FAILURE, debug)
    except BrokenPipeError:
        # The reader of our output went away (`trainpilot ... | head`); keep the interpreter from complaining again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line, a traceback only with --debug
        usage_message = getattr(error, "format_message", None)  # the usage errors of typer
        if type(error).__name__ == "NoArgsIsHelpError" and usage_message is not None:
            print(usage_message(), file=sys.stderr)  # noqa: T201
            return getattr(error, "exit_code", 2)
        if usage_message is not None:
            return _fail(f"{usage_message()} (see trainpilot --help)", getattr(error, "exit_code", 2), debug)
        if type(error).__name__ == "Abort":  # typer's own name for Ctrl-C at a prompt or in a callback
            return _fail("interrupted", EXIT_INTERRUPTED, debug)
        return _fail(f"unexpected {type(error).__name__}: {error} (--debug shows where)", EXIT_FAILURE, debug)
    if result == EXIT_INTERRUPTED:  # also where typer turned Ctrl-C into an exit code
        return _fail("interrupted", EXIT_INTERRUPTED, debug=False)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"trainpilot: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - this is the program's voice
    return code
