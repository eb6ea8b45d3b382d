import pytest

from tests.benchmarking import fake_executor as fake
from tests.benchmarking.helpers import FAKE, Rows, site, sweep_of
from trainpilot.benchmarking import load_sweep, plan_sweep, run_sweep
from trainpilot.benchmarking import runner as runner_module
from trainpilot.errors import MeasurementError, StoreError, UnknownNameError, UsageError


def run(sweep, sink=None, **options):
    sink = sink or Rows()
    return run_sweep(sweep, sink=sink, site=site(), executor=FAKE, **options), sink


@pytest.mark.parametrize(("fault", "status"), [(fake.IS_OOM, "oom"), (fake.IS_KILLED, "killed")])
def test_b03_one_configuration_out_of_memory_costs_one_row(tmp_path, fault, status):
    summary, sink = run(sweep_of(tmp_path, [16, 32, fault, 64, 128]))
    assert len(sink.rows) == 5
    assert summary.counts == {"ok": 4, status: 1}
    lost = next(row for row in sink.rows if row.status != "ok")
    assert lost.batch_size == fault
    assert lost.reason
    assert lost.step_time_s is None
    assert lost.first_step_s is None
    assert lost.steps == 0
    assert "5 rows measured" in str(summary)
    assert f"1 {status}" in str(summary)


def test_every_fault_is_one_row_and_the_sweep_goes_on(tmp_path):
    faults = {
        fake.RAISES: "failed",
        fake.ABORTS: "killed",
        fake.EXITS: "failed",
        fake.IS_KILLED: "killed",
        fake.PRINTS: "ok",
        fake.CHANGES: "ok",
    }
    summary, sink = run(sweep_of(tmp_path, [*faults, 1, 2, 3]))
    assert {row.batch_size: row.status for row in sink.rows} == faults | {1: "ok", 2: "ok", 3: "ok"}
    assert summary.measured == 9
    assert summary.remaining == 0
    assert all(row.reason for row in sink.rows if row.status != "ok")
    assert all("\n" not in row.reason for row in sink.rows)


def test_a_hang_is_a_row_with_status_timeout(tmp_path):
    summary, _ = run(sweep_of(tmp_path, [1, fake.HANGS, 2]))
    assert summary.counts == {"ok": 2, "timeout": 1}


def test_a_worker_is_used_again_unless_something_stayed_behind(tmp_path):
    _, sink = run(sweep_of(tmp_path, [1, 2, 3, 4]))
    assert len({row.data_time_s for row in sink.rows}) == 1
    for fault in (fake.CHANGES, fake.IS_OOM):
        sweep = sweep_of(tmp_path, [1, 2, 3, fault])
        order = [sweep.configurations(cores=2)[i].workload["batch_size"] for i in sweep.order(4, 0)]
        _, sink = run(sweep)
        expected = 2 if order[-1] != fault and order[0] != fault else 1
        workers = {row.data_time_s for row in sink.rows if row.status == "ok" and row.batch_size != fault}
        assert len(workers) == expected


def test_rounds_run_in_different_processes_and_another_order(tmp_path):
    summary, sink = run(sweep_of(tmp_path, list(range(1, 13)), rounds=2))
    assert summary.counts == {"ok": 24}
    first = [row.batch_size for row in sink.rows[:12]]
    second = [row.batch_size for row in sink.rows[12:]]
    assert {row.repetition for row in sink.rows[:12]} == {0}
    assert {row.repetition for row in sink.rows[12:]} == {1}
    assert sorted(first) == sorted(second)
    assert first != second
    assert sink.rows[0].data_time_s != sink.rows[12].data_time_s


def test_later_rounds_ask_for_the_trace_of_the_first(tmp_path):
    asked = []

    def known_trace(key):
        asked.append(key)
        return {"features": {"params": 7.0}, "op_groups": [{"op": "aten.mm"}]} if len(asked) > 1 else None

    _, sink = run(sweep_of(tmp_path, [1, 2, 3], rounds=2), known_trace=known_trace)
    first, later = sink.rows[:3], sink.rows[3:]
    assert sorted(asked) == sorted(row.config_key for row in later)  # once each
    assert asked[0] == later[0].config_key
    assert all(row.features == fake.LABELS["features"] for row in first)
    assert later[0].features == fake.LABELS["features"]  # nothing was known, so it was traced anew
    assert all(row.features == {"params": 7.0} and row.op_groups == [{"op": "aten.mm"}] for row in later[1:])


def test_the_order_is_that_of_the_stored_seed(tmp_path):
    sweep = sweep_of(tmp_path, list(range(1, 13)), rounds=2)
    _, once = run(sweep)
    _, again = run(sweep)
    assert [row.batch_size for row in once.rows] == [row.batch_size for row in again.rows]


def test_b04_a_sweep_resumes_exactly(tmp_path):
    sweep = sweep_of(tmp_path, list(range(1, 31)), rounds=2)
    stopped = Rows()

    def stop_after(row, operators):
        stopped(row, operators)
        if len(stopped.rows) == 17:
            raise KeyboardInterrupt

    summary, _ = run(sweep, stop_after)
    assert summary.stopped == "interrupted"
    assert len(stopped.rows) == 17
    summary, rest = run(sweep, finished=stopped.keys)
    assert summary.already == 17
    assert summary.measured == 43
    assert not stopped.keys & rest.keys
    assert len(stopped.keys | rest.keys) == 60
    summary, none = run(sweep, finished=stopped.keys | rest.keys)
    assert summary.measured == 0
    assert none.rows == []
    # A new value in the list of batch sizes adds only its own keys.
    larger = sweep_of(tmp_path, [*range(1, 31), 77], rounds=2)
    summary, added = run(larger, finished=stopped.keys | rest.keys)
    assert [row.batch_size for row in added.rows] == [77, 77]


def test_keys_change_with_what_changes_the_speed(tmp_path):
    sweep = sweep_of(tmp_path, [4])

    def keys(**changes):
        return {row.key for round_ in plan_sweep(sweep, site(**changes)) for row in round_}

    assert keys() == keys()
    assert keys() == keys(versions={"torch": "2.13.0", "python": "3.12"})
    assert keys() != keys(versions={"torch": "2.14.0", "python": "3.11"})


def test_shards_are_disjoint_and_together_everything(tmp_path):
    sweep = sweep_of(tmp_path, list(range(1, 12)), rounds=2)
    whole = {(row.key, row.repetition) for round_ in plan_sweep(sweep, site()) for row in round_}
    parts = [
        {(row.key, row.repetition) for round_ in plan_sweep(sweep, site(), shard=(i, 3)) for row in round_}
        for i in (1, 2, 3)
    ]
    assert sum(map(len, parts)) == len(whole) == 22
    assert set.union(*parts) == whole


def test_a_budget_is_kept(tmp_path):
    summary, sink = run(sweep_of(tmp_path, list(range(1, 400)), rounds=2), budget_s=1.5)
    assert summary.stopped == "budget"
    assert summary.elapsed_s < 10
    assert 0 < len(sink.rows) < 798
    assert summary.remaining == 798 - len(sink.rows)


def test_a_row_that_the_budget_cuts_is_no_row(tmp_path):
    summary, sink = run(sweep_of(tmp_path, [fake.HANGS]), budget_s=2.0)
    assert summary.stopped == "budget"
    assert sink.rows == []
    assert summary.remaining == 1


def test_expensive_configurations_are_skipped_with_the_reason(tmp_path):
    progress = []
    summary, _ = run(sweep_of(tmp_path, [1, fake.IS_EXPENSIVE], rounds=2), progress=progress.append)
    assert summary.counts == {"ok": 2}
    assert list(summary.skipped.values()) == ["a step would take about 99.0 s, the sweep's cap is 1 s"]
    assert summary.remaining == 0
    assert [p.status for p in progress].count("skipped") == 2


def test_a_contended_row_is_repeated_at_the_end_and_then_marked(tmp_path):
    progress = []
    sweep = sweep_of(tmp_path, [1, fake.IS_CONTENDED, 2], extra="repeat_contended = 2")
    summary, sink = run(sweep, progress=progress.append)
    assert len(sink.rows) == 3
    assert sink.rows[-1].batch_size == fake.IS_CONTENDED
    assert sink.rows[-1].contended
    assert not sink.rows[0].contended
    assert summary.contended == 1


def test_a_held_row_is_not_lost_when_the_sweep_is_interrupted(tmp_path):
    rows = Rows()

    def interrupt(row, operators):
        rows(row, operators)
        if row.batch_size != fake.IS_CONTENDED:
            raise KeyboardInterrupt

    sizes = [fake.IS_CONTENDED, 1]
    sweep = sweep_of(tmp_path, sizes, extra="repeat_contended = 5")
    seed = next(
        s
        for s in range(50)
        if sweep_of(tmp_path, sizes, extra=f"repeat_contended = 5\nseed = {s}").order(2, 0) == [0, 1]
    )
    sweep = sweep_of(tmp_path, sizes, extra=f"repeat_contended = 5\nseed = {seed}")
    summary, _ = run(sweep, interrupt)
    assert summary.stopped == "interrupted"
    assert {row.batch_size for row in rows.rows} == set(sizes)


def test_progress_tells_how_far_and_how_long(tmp_path):
    progress = []
    run(sweep_of(tmp_path, [1, 2, 3, 4]), progress=progress.append)
    assert [p.done for p in progress] == [1, 2, 3, 4]
    assert all(p.total == 4 for p in progress)
    assert progress[-1].remaining_s == 0
    assert all(p.remaining_s is not None for p in progress)


@pytest.mark.parametrize(("budget_s", "expected"), [(None, 6.0), (1e9, 6.0), (4.0, 4.0), (0.0, 0.0)])
def test_the_remaining_time_is_that_of_the_rows_and_never_above_the_budget(tmp_path, monkeypatch, budget_s, expected):
    progress = []
    sweep = sweep_of(tmp_path, [1, 2, 3, 4])
    monkeypatch.setattr(runner_module.time, "monotonic", lambda: 100.0)
    sweep_run = runner_module._SweepRun(sweep, site(), Rows(), budget_s, progress.append, FAKE, None)
    sweep_run._summary.total = 4
    sweep_run._row_times.append(2.0)  # a worker's start would not be among them
    sweep_run._counts["ok"] = 1
    sweep_run._report(plan_sweep(sweep, site())[0][0], "ok")
    assert progress[0].remaining_s == pytest.approx(expected)


def test_a_busy_machine_ends_the_repetitions(tmp_path, monkeypatch):
    # Every row is contended: three repetitions in a row prove it, and the rest is kept as it is.
    asked = []
    right = runner_module._SweepRun._ask

    def ask(self, planned):
        asked.append(planned.configuration.workload["batch_size"])
        return right(self, planned) | {"contended": "something else"}

    monkeypatch.setattr(runner_module._SweepRun, "_ask", ask)
    summary, sink = run(sweep_of(tmp_path, list(range(1, 9)), extra="repeat_contended = 5"))
    assert len(sink.rows) == summary.contended == 8
    assert len(asked) == 8 + 3


def test_under_a_budget_new_rows_come_before_repetitions(tmp_path, monkeypatch):
    asked = []
    right = runner_module._SweepRun._ask

    def ask(self, planned):
        asked.append((planned.configuration.workload["batch_size"], planned.repetition))
        return right(self, planned)

    monkeypatch.setattr(runner_module._SweepRun, "_ask", ask)
    sweep = sweep_of(tmp_path, [1, fake.IS_CONTENDED], rounds=2, extra="repeat_contended = 1")
    summary, sink = run(sweep, budget_s=600.0)
    assert summary.stopped == ""
    assert len(sink.rows) == 4
    assert len(set(asked[:4])) == 4
    assert sorted(asked[4:]) == [(fake.IS_CONTENDED, 0), (fake.IS_CONTENDED, 1)]
    asked.clear()
    run(sweep)
    assert asked.index((fake.IS_CONTENDED, 0)) < 2
    assert asked[2] == (fake.IS_CONTENDED, 0)


def test_a_failing_sink_ends_the_sweep(tmp_path):
    def full(row, operators):
        raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        run(sweep_of(tmp_path, [1, 2]), full)


def test_control_times_stand_in_the_rows(tmp_path):
    _, sink = run(sweep_of(tmp_path, [1, 2]))
    assert [row.control_time_s for row in sink.rows] == [0.0005, 0.0005]


def test_a_worker_that_does_not_start_is_an_error_of_its_own(tmp_path):
    with pytest.raises(MeasurementError, match="the benchmark worker does not start: .*No module named 'nowhere'"):
        run_sweep(sweep_of(tmp_path, [1]), sink=Rows(), site=site(), executor="nowhere")


def test_an_unknown_backend_is_named_with_the_valid_ones(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown backend 'cupp': did you mean cpu"):
        run(sweep_of(tmp_path, [1]), backends=["cupp"])


def test_a_plan_names_backends_that_do_not_exist_and_sweeps_that_hold_nothing(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown backend 'gpu'"):
        plan_sweep(sweep_of(tmp_path, [1]), site(), backends=["gpu"])
    path = tmp_path / "wide.toml"
    path.write_text('[[space]]\nmodel = "mlp"\nthreads = 64\n')
    with pytest.raises(UsageError, match="holds nothing for this machine: it has 2 usable cores"):
        plan_sweep(load_sweep(path), site())
    # More parts than configurations: some are empty.
    assert plan_sweep(sweep_of(tmp_path, [1, 2]), site(), shard=(3, 3)) == [[]]


def test_a_repeated_control_finds_a_new_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(runner_module, "CONTROL_EVERY_S", 0.0)
    summary, _ = run(sweep_of(tmp_path, [1, 2, 3]))
    assert summary.counts == {"ok": 3}
