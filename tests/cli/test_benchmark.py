"""``trainpilot benchmark`` as a process that others end."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.benchmarking.helpers import sweep_of
from trainpilot.cli.commands.benchmark import Termination
from trainpilot.store import open_store

ROOT = Path(__file__).parents[2]


def program(sweep: Path, store: str, calibrate: str = "None") -> subprocess.Popen[str]:
    """The program itself, with an executor that needs no torch."""
    code = textwrap.dedent(
        f"""
        import functools, sys, time
        import trainpilot.store, trainpilot.store.collect
        from tests.benchmarking.helpers import FAKE, site
        trainpilot.store.collect._calibrate = lambda *_: {calibrate}
        trainpilot.store.benchmark = functools.partial(trainpilot.store.benchmark, executor=FAKE, site=site())
        from trainpilot.cli import main
        sys.exit(main(["benchmark", "--sweep", {str(sweep)!r}, "--json"]))
        """
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"TRAINPILOT_STORE": store},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_sweep_that_is_ended_keeps_its_rows_sums_up_and_ends_its_workers(tmp_path, number, code):
    sweep_of(tmp_path, range(1, 3000), name="long")
    file = tmp_path / "timings.sqlite"
    process = program(tmp_path / "long.toml", f"sqlite:///{file}")

    def rows() -> int:
        if not file.exists():
            return 0
        with open_store(f"sqlite:///{file}") as store:
            return store.count()

    wait_for(lambda: rows() >= 5)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    process.send_signal(number)
    if number == signal.SIGTERM:  # some supervisors send more than one
        process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    summary = json.loads(out)
    assert summary["stopped"] == "interrupted"
    # The signal may come between the writing of a row and the counting of it.
    assert summary["measured"] in (rows() - 1, rows())
    assert summary["remaining"] == 2999 - summary["measured"]
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive


def test_termination_before_the_first_row_has_nothing_to_sum_up(tmp_path):
    sweep_of(tmp_path, [1], name="probing")
    ready = tmp_path / "ready"
    process = program(
        tmp_path / "probing.toml",
        f"sqlite:///{tmp_path / 'timings.sqlite'}",
        calibrate=f"(open({str(ready)!r}, 'w').close(), time.sleep(60))",
    )
    wait_for(ready.exists)
    process.terminate()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert out == ""
    assert err.splitlines()[-1] == "terminated"


def test_the_handler_is_there_only_meanwhile_and_only_where_signals_arrive():
    before = signal.getsignal(signal.SIGTERM)
    with Termination() as termination:
        assert signal.getsignal(signal.SIGTERM) != before
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert termination.requested
    assert signal.getsignal(signal.SIGTERM) == before

    found = []

    def elsewhere() -> None:
        with Termination():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [before]

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Termination():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
