import os

import psutil
import pytest

from tests.benchmarking import fake_executor as fake
from tests.benchmarking.helpers import FAKE, Rows, configuration, site, sweep_of
from trainpilot.benchmarking import run_sweep
from trainpilot.benchmarking.ahead import Tracers
from trainpilot.benchmarking.execute import TRACE_FIELDS, trace
from trainpilot.benchmarking.worker_process import Worker

TIMEOUT_S = 30.0


@pytest.fixture
def worker():
    with Worker(FAKE) as started:
        yield started


@pytest.fixture
def tracers():
    pool = Tracers(lambda: Worker(FAKE), cores=2)
    yield pool
    pool.close()


def test_configurations_are_traced_in_all_processes_and_answered_in_order(worker, tracers):
    assert tracers.at_once == 12
    found = tracers.trace([configuration(size) for size in (2001, 4, 2002, 2003, 5)], worker, TIMEOUT_S)
    assert [None if entry is None else entry["features"]["traced_by"] for entry in found] == [
        worker.pid,
        None,
        worker.pid,
        found[3]["features"]["traced_by"],
        None,
    ]
    helper = int(found[3]["features"]["traced_by"])
    assert helper != worker.pid
    assert psutil.pid_exists(helper)
    again = tracers.trace([configuration(2001), configuration(2002)], worker, TIMEOUT_S)
    assert [entry["features"]["traced_by"] for entry in again] == [worker.pid, helper]
    tracers.close()
    assert not psutil.pid_exists(helper)


def test_on_one_core_nothing_is_gained():
    assert Tracers(lambda: Worker(FAKE), cores=1).at_once == 0


def test_a_helper_that_is_lost_costs_its_traces_and_is_done_without(worker, tracers):
    found = tracers.trace([configuration(size) for size in (2001, fake.ENDS_TRACING, 2002, 2003)], worker, TIMEOUT_S)
    assert [entry is None for entry in found] == [False, True, False, True]
    assert worker.alive
    assert tracers.at_once == 0
    assert len(tracers.trace([configuration(2001), configuration(2002)], worker, TIMEOUT_S)) == 2


def test_the_worker_itself_may_be_lost(worker, tracers):
    found = tracers.trace([configuration(fake.ENDS_TRACING), configuration(2001)], worker, TIMEOUT_S)
    assert found[0] is None
    assert found[1] is not None
    assert not worker.alive


def run(sweep, **options):
    sink = Rows()
    return run_sweep(sweep, sink=sink, site=site(**options), executor=FAKE), sink


def test_a_sweep_traces_ahead_and_each_row_gets_its_own_trace(tmp_path):
    _, sink = run(sweep_of(tmp_path, range(2001, 2041)))
    assert {row.status for row in sink.rows} == {"ok"}
    tracers = {row.features["traced_by"] for row in sink.rows}
    measured_by = {row.data_time_s for row in sink.rows}
    assert len(measured_by) == 1
    assert len(tracers) == 2
    assert measured_by < tracers
    assert os.getpid() not in tracers
    children = psutil.Process().children()
    assert not {int(pid) for pid in tracers} & {child.pid for child in children}


def test_on_one_core_a_sweep_traces_where_it_measures(tmp_path):
    _, sink = run(sweep_of(tmp_path, [2001, 2002]), cores=1)
    assert [row.features for row in sink.rows] == [fake.LABELS["features"]] * 2


def test_a_worker_that_is_lost_while_tracing_costs_no_row(tmp_path):
    summary, sink = run(sweep_of(tmp_path, [2001, 2002, 2003, fake.ENDS_TRACING]))
    assert summary.counts == {"ok": 4}
    assert len(sink.rows) == 4


def test_a_row_that_is_lost_keeps_what_its_trace_told(tmp_path):
    sweep = sweep_of(tmp_path, [fake.TRACED_HANG, 2001])
    _, sink = run(sweep)
    lost = next(row for row in sink.rows if row.batch_size == fake.TRACED_HANG)
    assert lost.status == "timeout"
    assert lost.features["traced_by"] > 0
    assert lost.step_time_s is None


def test_a_contended_row_is_repeated_with_its_trace(tmp_path):
    sweep = sweep_of(tmp_path, [fake.TRACED_CONTENDED, 2001], extra="repeat_contended = 1")
    _, sink = run(sweep)
    row = next(row for row in sink.rows if row.batch_size == fake.TRACED_CONTENDED)
    assert row.contended
    assert row.features["traced_by"] > 0


def test_a_configuration_that_cannot_be_traced_leaves_the_error_to_the_measurement():
    broken = configuration(4).to_dict()
    broken["workload"] = broken["workload"] | {"optimizer": "none such"}
    found = trace([configuration(4).to_dict(), broken, configuration(8).to_dict()])
    assert found[1] is None
    assert [set(entry) for entry in (found[0], found[2])] == [set(TRACE_FIELDS)] * 2
    assert [entry["input_signature"][0][0][0] for entry in (found[0], found[2])] == [4, 8]
