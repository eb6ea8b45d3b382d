import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.benchmarking import fake_executor as fake
from tests.benchmarking.helpers import FAKE, configuration
from trainpilot.benchmarking.worker_process import Worker, WorkerLostError

TIMEOUT_S = 30.0


def task(batch_size: int) -> dict:
    return {"configuration": configuration(batch_size).to_dict()}


@pytest.fixture
def worker():
    with Worker(FAKE) as started:
        yield started


def test_a_healthy_worker_is_used_again(worker):
    first = worker.measure(task(4), TIMEOUT_S)
    second = worker.measure(task(5), TIMEOUT_S)
    assert first["status"] == second["status"] == "ok"
    assert first["labels"]["data_time_s"] == second["labels"]["data_time_s"] == worker.pid
    assert worker.control(TIMEOUT_S) == 0.0005


def test_megabytes_of_prints_do_not_disturb_the_answers(worker):
    assert worker.measure(task(fake.PRINTS), TIMEOUT_S)["status"] == "ok"
    assert worker.measure(task(4), TIMEOUT_S)["status"] == "ok"


def test_garbage_in_the_pipe_is_no_answer(worker):
    worker.measure(task(4), TIMEOUT_S)  # the first request: answers to it are stale from now on
    for _ in range(2):
        assert worker.measure(task(fake.WRITES_EVERYWHERE), TIMEOUT_S)["status"] == "ok"
    assert worker.measure(task(4), TIMEOUT_S)["labels"]["data_time_s"] == worker.pid


def test_what_a_worker_started_ends_with_it_and_hides_no_end(worker):
    group = os.getpgid(worker.pid)
    assert group == worker.pid
    begin = time.monotonic()
    with pytest.raises(WorkerLostError, match="ended with exit code 3"):
        worker.measure(task(fake.LEAVES_A_CHILD), TIMEOUT_S)
    assert time.monotonic() - begin < TIMEOUT_S / 2  # although its child holds the pipe open
    assert not worker.alive

    def left() -> list[int]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found

    end = time.monotonic() + 10
    while left():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_hang_is_ended_at_the_time_limit(worker):
    worker.measure(task(4), TIMEOUT_S)
    begin = time.monotonic()
    with pytest.raises(WorkerLostError) as lost:
        worker.measure(task(fake.HANGS), 0.5)
    assert lost.value.status == "timeout"
    assert "no answer within" in lost.value.reason
    assert time.monotonic() - begin < 10
    assert not psutil.pid_exists(worker.pid)


@pytest.mark.parametrize(
    ("batch_size", "status", "reason"),
    [
        (fake.ABORTS, "killed", "the worker was ended by SIGABRT: Fatal: about to abort"),
        (fake.EXITS, "failed", "the worker ended with exit code 3"),
        (fake.IS_KILLED, "killed", "the worker was ended by SIGKILL (the system does that when memory runs out)"),
    ],
)
def test_the_end_of_a_worker_says_why(worker, batch_size, status, reason):
    with pytest.raises(WorkerLostError) as lost:
        worker.measure(task(batch_size), TIMEOUT_S)
    assert (lost.value.status, lost.value.reason) == (status, reason)


def test_asking_a_worker_that_is_gone_says_so(worker):
    worker.measure(task(4), TIMEOUT_S)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError) as lost:
        worker.measure(task(4), TIMEOUT_S)
    assert lost.value.status == "killed"


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA limits memory on Linux only")
def test_the_kernel_limits_the_memory_of_a_worker():
    with Worker(FAKE, memory_bytes=512 << 20) as limited, pytest.raises(WorkerLostError) as lost:
        limited.measure(task(fake.ALLOCATES), TIMEOUT_S)
    assert lost.value.status == "failed"  # this executor lets the MemoryError through; the real one answers "oom"
    assert "MemoryError" in lost.value.reason


def test_where_the_kernel_does_not_the_harness_watches_the_memory():
    with Worker(FAKE, memory_bytes=512 << 20, watch_memory=True) as watched, pytest.raises(WorkerLostError) as lost:
        watched.measure(task(fake.ALLOCATES), TIMEOUT_S)
    assert lost.value.status == "oom"
    assert "the limit is 512 MiB" in lost.value.reason


def test_a_worker_ends_when_the_harness_is_killed(tmp_path):
    code = textwrap.dedent(
        f"""
        import sys
        from trainpilot.benchmarking.worker_process import Worker
        worker = Worker({FAKE!r})
        worker.control(30.0)
        print(worker.pid, flush=True)
        worker.measure({task(fake.HANGS)!r}, 3600.0)
        """
    )
    root = Path(__file__).parents[2]
    harness = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root)
    assert harness.stdout is not None
    pid = int(harness.stdout.readline())
    assert psutil.pid_exists(pid)
    harness.kill()
    harness.wait()
    harness.stdout.close()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker outlived the harness"
        time.sleep(0.05)


def test_closing_ends_the_process_and_may_be_repeated():
    worker = Worker(FAKE)
    worker.close()
    worker.close()
    assert not psutil.pid_exists(worker.pid)
