import dataclasses
import multiprocessing
import sqlite3
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.helpers import measurement, operators
from trainpilot.errors import (
    MeasurementError,
    StoreCorruptError,
    StoreError,
    StoreSchemaError,
    UnknownNameError,
    UsageError,
)
from trainpilot.store import engine as engine_module
from trainpilot.store import list_sweeps, open_store
from trainpilot.store.schema import MEASUREMENTS, field_kinds, from_columns, to_columns

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'timings.sqlite'}"


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        yield opened


def test_a_row_comes_back_as_it_was(store):
    row = measurement()
    assert store.append(row, operators())
    assert list(store.rows()) == [row]
    assert store.operators(row.row_id) == operators()


def test_missing_values_stay_missing(store):
    names = (
        "step_time_s first_step_s setup_time_s data_time_s cpu_time_s involuntary_switches peak_memory_bytes energy_j "
        "loss_finite control_time_s load_average_1min cpu_utilization actual_placement"
    )
    missing = dict.fromkeys(names.split())
    row = measurement(status="oom", reason="no memory", steps=0, step_quantiles_s={}, **missing)
    store.append(row)
    assert list(store.rows()) == [row]
    assert store.frame(status=None).step_time_s.isna().all()


numbers = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=50)
@given(
    step_time_s=st.none() | st.floats(1e-9, 1e9),
    features=st.dictionaries(st.text(max_size=8), numbers, max_size=4),
    reason=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30),
    peak=st.none() | st.integers(0, 2**62),
    flag=st.booleans(),
)
def test_columns_hold_every_value(step_time_s, features, reason, peak, flag):
    row = measurement(step_time_s=step_time_s, features=features, reason=reason, peak_memory_bytes=peak, contended=flag)
    assert from_columns(to_columns(row)) == row


def test_text_that_no_database_takes_is_escaped(store):
    # A file name that is no UTF-8 (\xff) and an error message with half a character and a NUL.
    store.append(measurement(name="net\udcff.py:build", reason="half \ud800, caf\u00e9, nul \x00"))
    (row,) = store.rows()
    assert row.name == r"net\udcff.py:build"
    assert row.reason == "half \\ud800, caf\u00e9, nul \\x00"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(store, value):
    with pytest.raises(MeasurementError, match="step_time_s"):
        store.append(measurement(step_time_s=value))
    with pytest.raises(MeasurementError, match="cannot be kept"):
        store.append(measurement(features={"x": value}))
    assert store.count() == 0


def test_columns_are_the_fields_with_their_units():
    assert [column.name for column in MEASUREMENTS.columns] == [f.name for f in dataclasses.fields(measurement())]
    assert "s per step" in MEASUREMENTS.c.step_time_s.comment
    assert MEASUREMENTS.c.peak_memory_bytes.comment == "bytes"
    assert field_kinds()["features"].kind == "json"


def test_a_repetition_is_kept_once(store):
    row = measurement()
    assert store.append(row)
    assert not store.append(row)
    assert not store.append(measurement(step_time_s=9.0), operators())
    assert store.append(measurement(repetition=1))
    assert store.finished_keys() == {("k" * 32, 0), ("k" * 32, 1)}
    assert [r.step_time_s for r in store.rows()] == [0.0123, 0.0123]
    assert list(store.all_operators()) == []


def test_training_runs_repeat_freely(store):
    assert store.append(measurement(origin="training", sweep_id="training"))
    assert store.append(measurement(origin="training", sweep_id="training"))
    assert store.count(origin="training") == 2
    assert store.finished_keys() == set()


MADE_BY = {"trainpilot": "0.1.0", "torch": "2.13.0", "numpy": "2.4"}


def traced(**changes):
    return measurement(**{"versions": MADE_BY} | changes)


def test_the_trace_of_a_configuration_is_that_of_its_rows(store):
    lost = {"features": {}, "op_groups": [], "input_signature": [], "model_hash": ""}
    store.append(traced(status="timeout", reason="slow", step_time_s=None, **lost))
    store.append(traced(config_key="other", model_hash="o" * 32))
    assert store.trace_of("k" * 32, MADE_BY) is None  # a row that was lost before it was traced has none
    assert store.trace_of("unknown", MADE_BY) is None
    row = traced(repetition=1)
    store.append(row)
    assert store.trace_of("k" * 32, MADE_BY) == {
        "workload_hash": row.workload_hash,
        "model_hash": row.model_hash,
        "input_signature": row.input_signature,
        "features": row.features,
        "op_groups": row.op_groups,
    }


def test_the_latest_trace_counts(store):
    store.append(traced(repetition=0, created_at=3.0, features={"params": 3.0}))
    store.append(traced(repetition=1, created_at=9.0, features={"params": 9.0}))
    store.append(traced(repetition=2, created_at=5.0, features={"params": 5.0}))
    assert store.trace_of("k" * 32, MADE_BY)["features"] == {"params": 9.0}


def test_a_damaged_trace_names_its_row(store, tmp_path):
    row = traced()
    store.append(row)
    with sqlite3.connect(tmp_path / "timings.sqlite") as connection:
        connection.execute("UPDATE measurements SET features = '{'")
    with pytest.raises(StoreCorruptError, match=f"row {row.row_id} cannot be read"):
        store.trace_of("k" * 32, MADE_BY)


def test_a_trace_of_another_version_is_left_alone(store):
    store.append(traced(repetition=0, created_at=1.0, features={"params": 1.0}))
    store.append(
        traced(repetition=1, created_at=2.0, features={"params": 2.0}, versions=MADE_BY | {"trainpilot": "0.2"})
    )
    store.append(traced(repetition=2, created_at=3.0, versions={"numpy": "2.4"}))
    assert store.trace_of("k" * 32, MADE_BY | {"numpy": "1.26"})["features"] == {"params": 1.0}
    assert store.trace_of("k" * 32, MADE_BY | {"trainpilot": "0.2"})["features"] == {"params": 2.0}
    assert store.trace_of("k" * 32, MADE_BY | {"torch": "2.14.0"}) is None


def test_rows_are_filtered_and_in_order(store):
    for number, family in enumerate(["mlp", "cnn", "gpt"]):
        store.append(measurement(family=family, config_key=family, created_at=float(10 - number)))
    assert [row.family for row in store.rows()] == ["gpt", "cnn", "mlp"]
    assert [row.family for row in store.rows(family=["mlp", "gpt"])] == ["gpt", "mlp"]
    assert store.count(family="cnn") == 1
    with pytest.raises(UnknownNameError, match="unknown column 'famly': did you mean family"):
        list(store.rows(famly="cnn"))
    with pytest.raises(UnknownNameError, match="unknown column 'features'"):
        list(store.rows(features={}))


def test_the_frame_holds_labels_only_unless_asked(store):
    store.append(measurement())
    store.append(measurement(config_key="a", status="oom", reason="x", step_time_s=None))
    store.append(measurement(config_key="b", simulated=True, backend="simulated"))
    frame = store.frame()
    assert list(frame.status) == ["ok"]
    assert list(frame.columns) == [f.name for f in dataclasses.fields(measurement())]
    assert frame.features[0] == {"flops.matmul": 1.5e6, "params": 10.0}
    assert frame.op_groups[0][0]["shape"] == {"m": 4}
    assert len(store.frame(status=None)) == 2
    assert len(store.frame(simulated=True)) == 1
    assert len(store.frame(status=None, simulated=None)) == 3


def test_an_empty_frame_has_all_columns(store):
    assert list(store.frame().columns) == [f.name for f in dataclasses.fields(measurement())]
    assert list(store.operator_frame().columns)[:3] == ["row_id", "op", "phase"]


def test_operator_timings_that_disagree_are_left_out(store):
    row = measurement()
    wrong = [dataclasses.replace(operators()[0], agreement=0.2, agrees=False)]
    store.append(row, wrong)
    other = measurement(config_key="other")
    store.append(other, operators())
    assert list(store.operator_frame().row_id) == [other.row_id] * 2
    assert len(store.operator_frame(agrees=None)) == 3


def test_sweeps_are_listed(store):
    store.append(measurement(created_at=1.0))
    store.append(measurement(repetition=1, created_at=3.0))
    store.append(measurement(config_key="a", created_at=2.0, status="oom", reason="x"))
    store.append(measurement(config_key="b", created_at=0.5, sweep_id="noise-1"))
    noise, quick = list_sweeps(store)
    assert (noise.sweep_id, noise.rows) == ("noise-1", {"ok": 1})
    assert (quick.rows, quick.configurations) == ({"ok": 2, "oom": 1}, 2)
    assert (quick.first_at, quick.last_at) == (1.0, 3.0)


def test_an_open_reader_sees_one_state(store):
    for number in range(3):
        store.append(measurement(config_key=str(number), created_at=float(number)))
    rows = store.rows()
    next(rows)
    store.append(measurement(config_key="later", created_at=9.0))
    assert [row.config_key for row in rows] == ["1", "2"]
    assert store.count() == 4


def _write_rows(url, count, barrier):
    with open_store(url) as store:
        barrier.wait()
        for number in range(count):
            store.append(measurement(config_key=uuid.uuid4().hex, repetition=number), operators())


@pytest.mark.parametrize(("writers", "rows"), [(4, 100)])
def test_c09_many_writers_and_a_reader(url, writers, rows):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(writers + 1)
    processes = [context.Process(target=_write_rows, args=(url, rows, barrier)) for _ in range(writers)]
    for process in processes:
        process.start()
    with open_store(url) as store:
        barrier.wait()
        seen = [0]
        while any(process.is_alive() for process in processes):
            found = [row.row_id for row in store.rows()]
            assert len(found) == len(set(found)) >= seen[-1]
            seen.append(len(found))
        for process in processes:
            process.join()
            assert process.exitcode == 0
        ids = [row.row_id for row in store.rows()]
        assert len(ids) == len(set(ids)) == writers * rows
        assert len(list(store.all_operators())) == 2 * writers * rows
        assert store.integrity_problems() == []


def test_stores_created_at_the_same_moment(url):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_write_rows, args=(url, 2, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with open_store(url) as store:
        assert store.count() == 6


def test_b04_a_killed_writer_leaves_readable_rows(url):
    code = textwrap.dedent(
        f"""
        import sys
        from tests.store.helpers import measurement, operators
        from trainpilot.store import open_store
        store = open_store({url!r})
        for number in range(100000):
            store.append(measurement(config_key=str(number)), operators())
            print(number, flush=True)
        """
    )
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert writer.stdout is not None
    confirmed = -1
    for line in writer.stdout:
        confirmed = int(line)
        if confirmed >= 25:
            break
    writer.kill()
    confirmed = max([confirmed, *(int(line) for line in writer.stdout.read().split())])
    writer.wait()
    writer.stdout.close()
    with open_store(url) as store:
        keys = [int(row.config_key) for row in store.rows()]
        assert sorted(keys) == list(range(len(keys)))
        assert len(keys) in (confirmed + 1, confirmed + 2)  # at most the row in flight is more or less
        assert store.integrity_problems() == []
        assert store.append(measurement(config_key="next"))


def test_b04_a_log_cut_in_the_middle_loses_the_last_rows_only(tmp_path, url):
    with open_store(url) as store:
        for number in range(20):
            store.append(measurement(config_key=str(number)))
        # What a power cut leaves: the files as they are while the store is open, the log cut in a row.
        for name in ("timings.sqlite", "timings.sqlite-wal"):
            (tmp_path / "cut").mkdir(exist_ok=True)
            (tmp_path / "cut" / name).write_bytes((tmp_path / name).read_bytes())
    log = tmp_path / "cut" / "timings.sqlite-wal"
    log.write_bytes(log.read_bytes()[:-2_000])
    with open_store(f"sqlite:///{tmp_path / 'cut' / 'timings.sqlite'}") as store:
        keys = {row.config_key for row in store.rows()}
        assert keys == {str(number) for number in range(19)}


@pytest.mark.parametrize("content", [b"not a database at all, but a text", b"SQLite format 3\x00cut", b"\x00" * 5000])
def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "timings.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError, match="timings.sqlite is damaged or no store"):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def filled(path, rows=60):
    with open_store(f"sqlite:///{path}") as store:
        for number in range(rows):
            store.append(measurement(config_key=str(number)), operators())


def test_a_cut_file_is_named_and_left_alone(tmp_path):
    path = tmp_path / "timings.sqlite"
    filled(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(StoreCorruptError, match=r"timings.sqlite is damaged: it was cut to \d+ of \d+ bytes"):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes() == content[: len(content) * 2 // 3]


def test_garbage_inside_is_named(tmp_path):
    path = tmp_path / "timings.sqlite"
    filled(path)
    content = bytearray(path.read_bytes())
    for page in range(4096 * 4, len(content), 4096):
        content[page : page + 200] = b"\xde\xad\xbe\xef" * 50
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError, match="timings.sqlite is damaged"), open_store(f"sqlite:///{path}") as store:
        list(store.rows())
    assert path.read_bytes() == content


def test_a_damaged_value_is_named(tmp_path):
    path = tmp_path / "timings.sqlite"
    filled(path, 1)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE measurements SET features = '{\"cut'")
    connection.close()
    with pytest.raises(StoreCorruptError, match="row .* cannot be read"), open_store(f"sqlite:///{path}") as store:
        list(store.rows())


def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "timings.sqlite"
    filled(path, 1)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE trainpilot_schema SET version = 7")
    connection.close()
    with pytest.raises(StoreSchemaError, match="schema 7, this version of TrainPilot knows up to 1: upgrade"):
        open_store(f"sqlite:///{path}")


def test_somebody_elses_database_is_refused(tmp_path):
    path = tmp_path / "photos.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    connection.close()
    with pytest.raises(StoreSchemaError, match=r"photos.sqlite is a database, but no store of TrainPilot"):
        open_store(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
    connection.close()
    assert tables == ["photos"]


def test_a_store_that_somebody_keeps_locked_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("trainpilot.store.engine._BUSY_TIMEOUT_MS", 20)
    file = tmp_path / "timings.sqlite"
    with open_store(f"sqlite:///{file}") as store:
        lock = sqlite3.connect(file, isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="is busy: another program has kept it locked for 0.02 s"):
            store.append(measurement())
        assert store.count() == 0  # reading goes on
        lock.close()
        assert store.append(measurement())


def test_a_read_only_store_says_so(tmp_path):
    path = tmp_path / "timings.sqlite"
    filled(path, 1)
    with open_store(f"sqlite:///file:{path}?mode=ro&uri=true") as store:
        assert store.count() == 1
        with pytest.raises(StoreError, match="timings.sqlite.* is read-only"):
            store.append(measurement(config_key="new"))


@pytest.mark.parametrize("blocked", ["file", "folder"])
def test_a_store_without_the_right_to_write_is_read(tmp_path, monkeypatch, blocked):
    path = tmp_path / "dataset" / "timings #1.sqlite"
    path.parent.mkdir()
    filled(path, 3)
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    # Root may write everything, so the answer of the system is replaced.
    closed = path if blocked == "file" else path.parent
    monkeypatch.setattr(engine_module, "_writable", lambda asked: asked != closed)
    before = path.read_bytes()
    with open_store(f"sqlite:///{path}") as store:
        assert store.count() == len(list(store.rows())) == len(store.finished_keys()) == 3
        assert store.integrity_problems() == []
        with pytest.raises(StoreError, match="timings #1.sqlite is read-only"):
            store.require_writable()
        with pytest.raises(StoreError, match="timings #1.sqlite is read-only"):
            store.append(measurement(config_key="new"))
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_rows_in_the_log_of_a_read_only_store_are_seen(tmp_path, monkeypatch):
    path = tmp_path / "timings.sqlite"
    with open_store(f"sqlite:///{path}") as writer:  # open, so that its rows are in the log
        writer.append(measurement())
        assert path.with_name("timings.sqlite-wal").stat().st_size > 0
        monkeypatch.setattr(engine_module, "_writable", lambda asked: False)
        with open_store(f"sqlite:///{path}") as store:
            assert store.count() == 1


def test_a_writable_store_is_writable(store):
    store.require_writable()


def append_many(store):
    for number in range(100):
        store.append(measurement(config_key=f"new {number}"))


def test_a_full_disk_says_so(tmp_path):
    path = tmp_path / "timings.sqlite"
    filled(path, 1)
    with open_store(f"sqlite:///{path}") as store:
        # A limit on the pages of the file fails like a full disk, with the same error of the database.
        with store._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
        with pytest.raises(StoreError, match="timings.sqlite cannot grow: the disk is full"):
            append_many(store)
        kept = store.count()
    with open_store(f"sqlite:///{path}") as store:
        assert store.count() == kept
        assert store.integrity_problems() == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("timings", "write a URL such as"),
        ("mysql://host/db", "mysql is not supported"),
        ("nothing://x", "nothing is not supported"),
    ],
)
def test_urls_that_cannot_be_right(url, message):
    with pytest.raises(UsageError, match=message):
        open_store(url)


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(f"sqlite:///{tmp_path / 'file' / 'timings.sqlite'}")


def test_the_default_store_is_that_of_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINPILOT_DATA_DIR", str(tmp_path / "data"))
    with open_store() as store:
        assert store.name == str(tmp_path / "data" / "timings.sqlite")
        assert store.count() == 0


def test_the_front_loads_neither_torch_nor_pandas():
    code = (
        "import sys, trainpilot.store, trainpilot.benchmarking; trainpilot.store.open_store; "
        "print([m for m in ('torch', 'xgboost', 'pandas', 'sklearn', 'scipy.stats') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout.strip() == "[]"
