import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.benchmarking.helpers import FAKE, site, sweep_of
from tests.store.helpers import measurement, operators
from trainpilot.errors import StoreError
from trainpilot.store import benchmark, export_parquet, merge, noise_report, open_store, verify

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if Path("/usr/lib/postgresql").is_dir() else []


def _run(*command):
    """Run as an ordinary user: the server refuses to run as root."""
    command = [str(part) for part in command]
    if os.getuid() == 0:
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *command]
    return subprocess.run(command, capture_output=True, text=True, cwd="/")


@pytest.fixture(scope="module")
def server():
    """URL of a server of the test's own, on a free port and a socket folder of its own."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not BINARIES:
        pytest.skip("PostgreSQL is not installed (/usr/lib/postgresql/*/bin)")
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("the server does not run as root, and setpriv is not installed")
        try:
            owner = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("the server does not run as root, and there is no user postgres")
    folder = Path(tempfile.mkdtemp(prefix="trainpilot-pg-"))
    if os.getuid() == 0:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data, log = folder / "data", folder / "log"
    made = _run(BINARIES[-1] / "initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8")
    assert made.returncode == 0, made.stderr
    options = f"-c listen_addresses='' -c port={port} -c unix_socket_directories={folder} -c fsync=off"
    started = subprocess.run(
        [
            *(["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.getuid() == 0 else []),
            *map(str, [BINARIES[-1] / "pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start"]),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    assert started.returncode == 0, log.read_text()
    try:
        yield f"postgresql://tester@/{{}}?host={folder}&port={port}"
    finally:
        _run(BINARIES[-1] / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.fixture
def url(server, request):
    import psycopg

    name = f"db{abs(hash(request.node.name)) % 10**9}"
    with psycopg.connect(server.format("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.format(name)


def test_rows_come_back_as_they_were(url):
    row = measurement()
    with open_store(url) as store:
        assert store.append(row, operators())
        assert not store.append(measurement())
        assert store.append(measurement(origin="training"))
        assert store.append(measurement(origin="training"))
    with open_store(url) as store:
        assert row in list(store.rows())
        assert store.operators(row.row_id) == operators()
        assert store.finished_keys() == {(row.config_key, 0)}
        assert len(store.frame()) == 3
        assert verify(store).problems == ()
        assert [entry.rows for entry in store.sweeps()] == [{"ok": 3}]
        assert noise_report(store).label_noise is None


def test_a_sweep_is_collected_and_resumed(url, tmp_path):
    sweep = sweep_of(tmp_path, list(range(1, 11)), rounds=2)
    assert benchmark(sweep, site=site(), executor=FAKE, calibrate=False, store=url).counts == {"ok": 20}
    assert benchmark(sweep, site=site(), executor=FAKE, calibrate=False, store=url).measured == 0


def test_the_dataset_moves_to_a_file_and_back(url, tmp_path):
    with open_store(url) as store:
        store.append(measurement(), operators())
        export_parquet(store, tmp_path / "x.parquet")
        rows = list(store.rows())
    with open_store(f"sqlite:///{tmp_path / 'x.sqlite'}") as store:
        assert merge([tmp_path / "x.parquet"], store) == (1, 0)
        assert list(store.rows()) == rows


def test_columns_carry_their_units(url):
    import psycopg

    open_store(url).close()
    query = "SELECT col_description('measurements'::regclass, ordinal_position) FROM information_schema.columns "
    with psycopg.connect(url) as connection:
        found = connection.execute(query + "WHERE column_name = 'peak_memory_bytes'").fetchone()
    assert found == ("bytes",)


def test_a_server_that_is_not_there_is_one_line(tmp_path):
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(StoreError) as caught:
        open_store(f"postgresql://somebody:secret@/db?host={tmp_path}&port=1")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
