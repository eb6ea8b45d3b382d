import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.benchmarking import fake_executor as fake
from tests.benchmarking.helpers import FAKE, site, sweep_of
from tests.store.helpers import measurement, operators
from trainpilot.benchmarking import plan_sweep
from trainpilot.errors import DataError, StoreCorruptError, StoreError
from trainpilot.store import Kept, benchmark, import_spilled, keep_row, open_store, spill

ROOT = Path(__file__).parents[2]


def collect(sweep, **options):
    return benchmark(sweep, site=site(), executor=FAKE, calibrate=False, **options)


def test_a_sweep_becomes_rows_of_the_default_store(tmp_path):
    summary = collect(sweep_of(tmp_path, [1, 2, 3], rounds=2))
    assert summary.counts == {"ok": 6}
    with open_store() as store:
        rows = list(store.rows())
    assert len(rows) == 6
    assert len({(row.config_key, row.repetition) for row in rows}) == 6
    assert {row.sweep_id for row in rows} == {summary.sweep_id}
    assert {row.machine_id for row in rows} == {"m" * 32}
    assert rows[0].versions == {"torch": "2.13.0", "python": "3.11"}
    assert rows[0].machine["cpu_model"] == "test processor"


def test_a_finished_sweep_measures_nothing(tmp_path):
    sweep = sweep_of(tmp_path, [1, 2, 3], rounds=2)
    collect(sweep)
    summary = collect(sweep)
    assert (summary.measured, summary.already, summary.remaining) == (0, 6, 0)


def test_rows_that_another_run_measured_meanwhile_are_told(tmp_path):
    sweep = sweep_of(tmp_path, [1, 2, 3])
    url = f"sqlite:///{tmp_path / 'shared.sqlite'}"
    others = []

    def meanwhile(progress):
        if not others:  # a second run of the same sweep, started before this one could keep more than a row
            others.append(collect(sweep, store=url))

    summary = collect(sweep, store=url, progress=meanwhile)
    assert (others[0].measured, others[0].dropped) == (2, 0)
    assert (summary.measured, summary.dropped) == (3, 2)
    assert "2 of them dropped: another run had put the same rows there meanwhile" in str(summary)
    assert "dropped" not in str(others[0])
    with open_store(url) as store:
        assert store.count() == 3


def test_a_store_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    sweep = sweep_of(tmp_path, [1, 2])
    collect(sweep)
    monkeypatch.setattr("trainpilot.store.engine._writable", lambda path: False)
    seen = []
    with pytest.raises(StoreError, match="is read-only"):
        collect(sweep, resume=False, progress=seen.append)
    assert seen == []
    assert collect(sweep, dry_run=True).already == 2


def test_without_resuming_everything_is_measured_once_more(tmp_path):
    sweep = sweep_of(tmp_path, [1, 2], rounds=2)
    collect(sweep)
    summary = collect(sweep, resume=False)
    assert summary.counts == {"ok": 4}
    with open_store() as store:
        assert sorted(row.repetition for row in store.rows()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_dry_run_lists_what_is_missing(tmp_path):
    collect(sweep_of(tmp_path, [1, 2]))
    summary = collect(sweep_of(tmp_path, [1, 2, 3], rounds=2), dry_run=True)
    assert (summary.total, summary.already, summary.measured) == (6, 2, 0)
    assert len(summary.planned) == 4
    assert "mlp, width=8, batch 3, adamw, cpu, 1 thread, round 1" in summary.planned
    with open_store() as store:
        assert store.count() == 2


def test_a_named_sweep_and_an_open_store(tmp_path):
    with open_store(f"sqlite:///{tmp_path / 'own.sqlite'}") as store:
        summary = collect(sweep_of(tmp_path, [1]), store=store)
        assert summary.counts == {"ok": 1}
        assert store.count() == 1
    summary = benchmark("quick", site=site(), dry_run=True)
    assert summary.total > 60


def harness(sweep_path, store_url):
    code = textwrap.dedent(
        f"""
        from tests.benchmarking.helpers import FAKE, site
        from trainpilot.benchmarking import load_sweep
        from trainpilot.store import benchmark
        sweep = load_sweep({str(sweep_path)!r})
        summary = benchmark(sweep, site=site(), executor=FAKE, calibrate=False, store={store_url!r})
        print(summary.measured)
        """
    )
    # The whole group is killed at the end of the test, should anything be left.
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def rows_of(url):
    with open_store(url) as store:
        return [(row.config_key, row.repetition) for row in store.rows()]


def test_b04_kill_9_of_the_harness_loses_nothing_and_doubles_nothing(tmp_path):
    sweep_of(tmp_path, list(range(1, 41)), rounds=2, name="killed")
    path, url = tmp_path / "killed.toml", f"sqlite:///{tmp_path / 'killed.sqlite'}"
    generator = random.Random(4)
    seen: set[tuple[str, int]] = set()
    for _ in range(2):
        process = harness(path, url)
        target = len(seen) + generator.randint(5, 25)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if (tmp_path / "killed.sqlite").exists() and len(rows_of(url)) >= target:
                break
            time.sleep(0.01)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        found = rows_of(url)
        assert len(found) == len(set(found))
        assert seen <= set(found)  # nothing that was there is lost
        assert target <= len(found) < 80
        seen = set(found)
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert not alive
    process = harness(path, url)
    out, _ = process.communicate(timeout=60)
    assert int(out) == 80 - len(seen)
    final = rows_of(url)
    assert len(final) == len(set(final)) == 80


def test_kill_9_of_the_worker_costs_the_row_in_flight(tmp_path, monkeypatch):
    generator = random.Random(5)

    def kill_sometimes(progress):
        children = psutil.Process().children()
        if generator.random() < 0.2 and children:
            os.kill(children[0].pid, signal.SIGKILL)

    summary = collect(sweep_of(tmp_path, list(range(1, 21))), progress=kill_sometimes)
    assert summary.measured == 20
    assert summary.remaining == 0
    # A worker that is killed between two rows fails the next one.
    assert summary.counts["killed"] >= 1
    assert summary.counts["ok"] + summary.counts["killed"] == 20


def test_ctrl_c_keeps_what_is_there_and_tells(tmp_path):
    def interrupt(progress):
        if progress.done == 4:
            raise KeyboardInterrupt

    sweep = sweep_of(tmp_path, list(range(1, 11)))
    summary = collect(sweep, progress=interrupt)
    assert summary.stopped == "interrupted"
    assert "stopped (interrupted), 6 of 10 rows missing" in str(summary)
    with open_store() as store:
        assert store.count() == 4
    assert collect(sweep).measured == 6


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one MiB, where we may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_ends_the_sweep_and_loses_no_row(small_disk, tmp_path, data_dir):
    url = f"sqlite:///{small_disk / 'timings.sqlite'}"
    open_store(url).close()
    taken = os.statvfs(small_disk)
    (small_disk / "photos").write_bytes(b"x" * (taken.f_bavail * taken.f_frsize - 200_000))
    with pytest.raises(StoreError, match="the disk is full; the row is kept in .*trainpilot-row-") as caught:
        collect(sweep_of(tmp_path, list(range(1, 400))), store=url)
    kept = next((data_dir / "spill").glob("trainpilot-row-*.json"))
    assert str(kept) in str(caught.value)
    (small_disk / "photos").unlink()
    with open_store(url) as store:
        before = store.count()
        assert before > 0
        assert store.integrity_problems() == []
        assert import_spilled(kept, store)
        assert store.count() == before + 1
        assert not import_spilled(kept, store)


def test_a_row_that_can_be_kept_nowhere_is_told(monkeypatch, tmp_path, data_dir):
    (tmp_path / "gone").write_text("no folder either")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    row = measurement()
    (data_dir / "spill").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="could not be kept in a file either") as caught:
        spill(row, operators())
    text = str(caught.value)
    content = json.loads(text[text.index("{") :])
    assert content["measurement"]["row_id"] == row.row_id
    assert "\n" not in text


def test_a_spilled_file_that_is_none(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    with open_store() as store:
        with pytest.raises(DataError, match=r"x.json holds no row"):
            import_spilled(path, store)
        with pytest.raises(DataError, match="cannot be read"):
            import_spilled(tmp_path / "none.json", store)


def test_two_harnesses_with_one_store_double_nothing(tmp_path):
    sweep_of(tmp_path, list(range(1, 16)), name="both")
    url = f"sqlite:///{tmp_path / 'both.sqlite'}"
    processes = [harness(tmp_path / "both.toml", url) for _ in range(2)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    found = rows_of(url)
    assert len(found) == len(set(found)) == 15


def test_operator_timings_reach_the_store(tmp_path, monkeypatch):
    assert fake.STEP_S > 0
    with open_store() as store:
        row = measurement()
        store.append(row, operators())
        assert [timing.op for timing in store.operators(row.row_id)] == ["aten.addmm", "aten.mm"]


def test_a_trace_of_another_version_of_trainpilot_is_not_taken_over(tmp_path, monkeypatch):
    here = site(versions={"torch": "2.13.0", "trainpilot": "1.0"})
    later = site(versions={"torch": "2.13.0", "trainpilot": "1.1"})
    sweep = sweep_of(tmp_path, [2001], rounds=2)
    with open_store() as store:

        def collect_at(where, **options):
            benchmark(sweep, site=where, executor=FAKE, calibrate=False, store=store, **options)

        asked = []
        right = type(store).trace_of
        monkeypatch.setattr(
            type(store), "trace_of", lambda self, *given: asked.append(right(self, *given)) or asked[-1]
        )
        # One configuration alone is traced where it is measured, so that its trace is put there by hand.
        key = plan_sweep(sweep, here)[0][0].key
        store.append(measurement(config_key=key, versions=here.versions, features={"params": 1.0}))
        collect_at(here)
        collect_at(later, resume=False)
        assert [found and found["features"] for found in asked] == [{"params": 1.0}, None, None]


def test_a_row_that_the_store_has_is_not_new(data_dir):
    row = measurement()
    with open_store() as store:
        assert keep_row(row, operators(), store) == Kept(new=True)
        assert keep_row(row, operators(), store) == Kept(new=False)
    assert keep_row(row).note == ""
    assert not (data_dir / "spill").exists()


@pytest.mark.parametrize("error", [StoreCorruptError("it is damaged"), PermissionError(13, "Permission denied")])
def test_a_row_that_the_store_cannot_take_is_in_a_file_that_the_note_names(monkeypatch, data_dir, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr("trainpilot.store.TimingStore.append", refuse)
    row = measurement()
    kept = keep_row(row, operators())
    assert kept.path == data_dir / "spill" / f"trainpilot-row-{row.row_id}.json"
    assert kept.note.startswith(str(error))
    assert f"`trainpilot data import {kept.path}`" in kept.note
    assert isinstance(kept.problem, StoreError)
    monkeypatch.undo()
    with open_store(f"sqlite:///{data_dir / 'later.sqlite'}") as store:
        assert import_spilled(kept.path, store)
        assert store.operators(row.row_id) == operators()
