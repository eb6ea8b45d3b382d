import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.store.helpers import measurement, operators
from trainpilot.errors import DataError, StoreCorruptError, StoreSchemaError, UnknownNameError, UsageError
from trainpilot.store import (
    dataset_frame,
    dataset_rows,
    export_parquet,
    import_parquet,
    merge,
    open_store,
    verify,
)
from trainpilot.store.exchange import operators_path


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path / 'a.sqlite'}") as opened:
        for number in range(5):
            opened.append(measurement(config_key=str(number), created_at=float(number)), operators())
        opened.append(measurement(config_key="oom", status="oom", reason="x", step_time_s=None, created_at=9.0))
        yield opened


@pytest.fixture
def other(tmp_path):
    with open_store(f"sqlite:///{tmp_path / 'b.sqlite'}") as opened:
        yield opened


def test_export_and_import_keep_everything(store, other, tmp_path):
    path = tmp_path / "out" / "dataset.parquet"
    assert export_parquet(store, path) == 6
    assert import_parquet(path, other) == (6, 0)
    assert list(other.rows()) == list(store.rows())
    assert sorted(map(repr, other.all_operators())) == sorted(map(repr, store.all_operators()))
    assert import_parquet(path, other) == (0, 6)
    assert [p.name for p in path.parent.iterdir() if p.name.startswith(".")] == []


def test_export_takes_filters(store, other, tmp_path):
    path = tmp_path / "ok.parquet"
    assert export_parquet(store, path, status="ok") == 5
    assert pq.read_table(path).num_rows == 5
    assert pq.read_table(operators_path(path)).num_rows == 10
    with pytest.raises(UnknownNameError):
        export_parquet(store, path, statu="ok")


def test_the_parquet_file_has_plain_columns(store, tmp_path):
    path = tmp_path / "x.parquet"
    export_parquet(store, path)
    table = pq.read_table(path)
    assert table.column_names == [f.name for f in dataclasses.fields(measurement())]
    assert table.schema.field("step_time_s").type == pa.float64()
    assert table.column("step_time_s").null_count == 1


def test_merge_joins_stores_and_files(store, other, tmp_path):
    path = tmp_path / "part.parquet"
    with open_store(f"sqlite:///{tmp_path / 'c.sqlite'}") as third:
        third.append(measurement(config_key="third"), operators())
        third.append(measurement(config_key="0"), operators())
        export_parquet(third, path)
    assert merge([tmp_path / "a.sqlite", path], other) == (7, 1)
    assert other.count() == 7
    assert verify(other).problems == ()


def test_verify_accepts_a_sound_dataset(store, tmp_path):
    path = tmp_path / "x.parquet"
    export_parquet(store, path)
    for source in (store, path, tmp_path / "a.sqlite"):
        report = verify(source)
        assert report.problems == ()
        assert report.rows == {"ok": 5, "oom": 1}
        assert (report.configurations, report.families, report.operators) == (5, 1, 10)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"step_time_s": 0.0}, "status ok with step_time_s 0.0"),
        ({"step_time_s": None}, "status ok with step_time_s None"),
        ({"step_time_s": -1.0}, "step_time_s -1.0"),
        ({"status": "timeout", "reason": "slow"}, "status timeout with a step time"),
        ({"status": "oom", "step_time_s": None}, "status oom without a reason"),
        ({"status": "fine"}, "unknown status 'fine'"),
        ({"steps": 0}, "without a timed step"),
        ({"features": {}}, "without features"),
        ({"step_quantiles_s": {"min": 2.0, "median": 1.0}}, "quantiles are not in order"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"threads": 0}, "threads 0"),
    ],
)
def test_verify_finds_what_cannot_be_right(other, changes, problem):
    other.append(measurement(**changes))
    assert any(problem in found for found in verify(other).problems)


def test_verify_finds_doubled_rows_and_lost_owners(store, tmp_path):
    path = tmp_path / "x.parquet"
    export_parquet(store, path)
    table = pq.read_table(path)
    doubled = pa.concat_tables([table, table.slice(0, 1)]).replace_schema_metadata(table.schema.metadata)
    pq.write_table(doubled, path)
    problems = verify(path).problems
    assert any("the id is there twice" in problem for problem in problems)
    assert any("repetition 0 of its configuration is there twice" in problem for problem in problems)
    pq.write_table(table.slice(1), path)
    assert any("there is no such row" in problem for problem in verify(path).problems)


def test_files_that_are_none(other, tmp_path):
    with pytest.raises(DataError, match=r"there is no dataset .*none.parquet"):
        import_parquet(tmp_path / "none.parquet", other)
    with pytest.raises(DataError, match="there is no dataset"):
        verify(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(StoreCorruptError, match=r"text.parquet is damaged or no Parquet file"):
        verify(tmp_path / "text.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign.parquet")
    with pytest.raises(StoreSchemaError, match=r"foreign.parquet is no timing dataset"):
        verify(tmp_path / "foreign.parquet")


def test_another_schema_is_refused(store, tmp_path):
    path = tmp_path / "x.parquet"
    export_parquet(store, path)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"trainpilot_schema": "9"}), path)
    with pytest.raises(StoreSchemaError, match="has schema 9"):
        verify(path)
    pq.write_table(table.drop_columns(["threads"]), path)
    with pytest.raises(StoreSchemaError, match="has no column threads"):
        verify(path)


def test_a_cut_parquet_file_is_named(store, tmp_path):
    path = tmp_path / "x.parquet"
    export_parquet(store, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreCorruptError, match="damaged"):
        verify(path)


def test_an_export_that_cannot_be_written_leaves_nothing(store, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot be written"):
        export_parquet(store, tmp_path / "file" / "x.parquet")


@pytest.mark.parametrize("name", ["rows.txt", "rows", "rows.operators.parquet"])
def test_an_export_has_a_name_by_which_it_is_known_again(store, tmp_path, name):
    with pytest.raises(UsageError, match=r"ends in \.parquet"):
        export_parquet(store, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_the_same_file_imported_twice_and_conflicting_rows_change_nothing(other, tmp_path):
    row = measurement()
    with open_store(f"sqlite:///{tmp_path / 'first.sqlite'}") as first:
        first.append(row, operators())
        export_parquet(first, tmp_path / "rows.parquet")
    assert merge([tmp_path / "rows.parquet"] * 2, other) == (1, 1)
    # Another machine's copy of the same configuration and repetition, with another label.
    conflicting = dataclasses.replace(row, row_id="f" * 32, step_time_s=9.0)
    with open_store(f"sqlite:///{tmp_path / 'conflict.sqlite'}") as third:
        third.append(conflicting, operators())
    assert merge([tmp_path / "conflict.sqlite"], other) == (0, 1)
    assert [found.step_time_s for found in other.rows()] == [row.step_time_s]
    assert [row_id for row_id, _ in other.all_operators()] == [row.row_id] * 2
    assert verify(other).problems == ()


def test_a_dataset_is_read_where_it_lies(store, tmp_path):
    folder = tmp_path / "out"
    export_parquet(store, folder / "b.parquet", config_key=["3", "4", "oom"])
    export_parquet(store, folder / "a.parquet", config_key=["0", "1", "2"])
    expected = list(store.rows())
    assert dataset_rows(tmp_path / "a.sqlite") == expected
    assert dataset_rows(folder) == expected  # files in order of their names, operator timings beside them left out
    assert dataset_rows(str(folder / "b.parquet")) == expected[3:]


def test_a_dataset_as_a_table(store, other, tmp_path):
    path = tmp_path / "x.parquet"
    store.append(measurement(config_key="simulated", simulated=True, backend="simulated"))
    export_parquet(store, path)
    for source in (path, tmp_path / "a.sqlite"):
        frame = dataset_frame(source)
        assert list(frame.columns) == [f.name for f in dataclasses.fields(measurement())]
        assert list(frame.config_key) == ["0", "1", "2", "3", "4"]
        assert frame.features[0] == {"flops.matmul": 1.5e6, "params": 10.0}
        assert list(dataset_frame(source, status="oom").config_key) == ["oom"]
        assert len(dataset_frame(source, status=None)) == 6
    export_parquet(other, path)
    assert list(dataset_frame(path).columns) == list(frame.columns)


@pytest.mark.parametrize("read", [dataset_rows, dataset_frame])
def test_a_dataset_that_is_not_there(read, tmp_path):
    for name in ("none.parquet", "none.sqlite", "none"):
        with pytest.raises(DataError, match=f"there is no dataset .*{name}"):
            read(tmp_path / name)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(DataError, match="folder holds no Parquet file"):
        read(folder)
    (folder / "x.operators.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="folder holds no Parquet file"):
        read(folder)
    (folder / "x.parquet").write_text("text")
    with pytest.raises(StoreCorruptError, match=r"x.parquet is damaged or no Parquet file"):
        read(folder)
