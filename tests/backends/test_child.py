from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trainpilot.backends.child import run_in_child

DOUBLES = "tests.backends.doubles"
LIMIT_S = 60.0  # never reached: the machine may be busy


def test_the_value_comes_back_and_what_is_printed_does_not(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run_in_child(f"{DOUBLES}:works", "cuda", timeout_s=LIMIT_S)
    assert outcome.status == "ok"
    assert outcome.value["memory_total_bytes"] == 1 << 30
    assert capfd.readouterr() == ("", "")


def test_d09_an_exception_is_a_reason_of_one_line() -> None:
    outcome = run_in_child(f"{DOUBLES}:no_kernel_image", timeout_s=LIMIT_S)
    assert outcome.status == "raised"
    assert outcome.reason == "no kernel image is available for execution on the device"


def test_an_abort_costs_the_child_only() -> None:
    outcome = run_in_child(f"{DOUBLES}:aborts", timeout_s=LIMIT_S)
    assert outcome.status == "died"
    assert outcome.reason == "the probe process was ended by SIGABRT: driver: fatal assertion"


def test_an_exit_without_an_answer() -> None:
    outcome = run_in_child(f"{DOUBLES}:exits", timeout_s=LIMIT_S)
    assert outcome.status == "died"
    assert outcome.reason == "the probe process ended with exit code 3"


def test_a_function_that_does_not_exist() -> None:
    assert run_in_child(f"{DOUBLES}:missing", timeout_s=LIMIT_S).status == "raised"


def test_d09_a_hang_ends_at_the_limit() -> None:
    begin = time.monotonic()
    outcome = run_in_child(f"{DOUBLES}:hangs", timeout_s=1.0)
    assert outcome.status == "timeout"
    assert "no answer within 1 s" in outcome.reason
    assert time.monotonic() - begin < 30.0  # of the 3600 s that it would take


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_what_the_child_started_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    limit = 2.0
    while not path.exists() or not path.read_text():
        assert limit < 100.0
        run_in_child(f"{DOUBLES}:hangs_with_a_child_of_its_own", str(path), timeout_s=limit)
        limit *= 2  # a busy machine may need longer to start Python at all
    assert _gone(int(path.read_text()))


def _gone(pid: int) -> bool:
    for _ in range(200):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False
