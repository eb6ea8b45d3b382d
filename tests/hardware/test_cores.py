from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hardware.systems import version_1, version_2, write
from trainpilot.errors import UsageError
from trainpilot.hardware import cores, usable_cores
from trainpilot.hardware.cgroups import cpu_quota
from trainpilot.hardware.cores import cores_by_environment, granted_cores


def _affinity(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(cores, "allowed_cpus", lambda: frozenset(range(count)))


@pytest.mark.parametrize(
    ("cpu_max", "affinity", "expected"),
    [
        ("400000 100000\n", 12, 4),
        ("765000 100000\n", 12, 7),
        ("50000 100000\n", 12, 1),
        ("max 100000\n", 12, 12),
        ("", 12, 12),
        (None, 12, 12),
        ("400000 100000\n", 2, 2),
        ("400000 100000\n", 1, 1),
        ("max 100000\n", 1, 1),
    ],
)
def test_d06_quota_version_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_max: str | None, affinity: int, expected: int
) -> None:
    version_2(tmp_path, "/job", {} if cpu_max is None else {"job/cpu.max": cpu_max})
    _affinity(monkeypatch, affinity)
    assert granted_cores(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 12), ("400000", 4), ("50000", 1), ("", 12)])
def test_d06_quota_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int) -> None:
    version_1(tmp_path, "cpu,cpuacct", "/job", {"job/cpu.cfs_quota_us": quota, "job/cpu.cfs_period_us": "100000"})
    _affinity(monkeypatch, 12)
    assert granted_cores(tmp_path) == expected


def test_d06_the_least_quota_above_the_group_counts(tmp_path: Path) -> None:
    version_2(
        tmp_path,
        "/a/b/c",
        {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000", "a/b/c/cpu.max": "9000000 100000"},
    )
    assert cpu_quota(tmp_path) == 3.0


def test_a_container_sees_its_own_group_at_the_mount(tmp_path: Path) -> None:
    version_1(
        tmp_path,
        "cpu",
        "/docker/abc",
        {"cpu.cfs_quota_us": "250000", "cpu.cfs_period_us": "100000"},
        mount_root="/docker/abc",
    )
    assert cpu_quota(tmp_path) == 2.5


def test_a_group_outside_of_the_mount_is_the_mount(tmp_path: Path) -> None:
    version_2(tmp_path, "/../other", {"cpu.max": "200000 100000"})
    assert cpu_quota(tmp_path) == 2.0


def test_no_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


def test_an_odd_mountinfo_line_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/mountinfo": "nonsense\n\n", "proc/self/cgroup": "0::/\n"})
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "granted", "expected", "warns"),
    [
        ("3", 4, 3, False),
        ("3", 3, 3, False),
        ("3", 2, 2, True),
        ("", 4, 4, False),
        ("2,1", 4, 2, False),
        ("0", 4, 4, True),
        ("many", 4, 4, True),
    ],
)
def test_d06_omp_num_threads(
    caplog: pytest.LogCaptureFixture, text: str, granted: int, expected: int, warns: bool
) -> None:
    cores._warn.cache_clear()
    with caplog.at_level(logging.WARNING, logger="trainpilot"):
        assert cores_by_environment(granted, {"OMP_NUM_THREADS": text}) == expected
        cores_by_environment(granted, {"OMP_NUM_THREADS": text})
    assert len(caplog.records) == warns  # warned once, not at each call
    if warns:
        assert "OMP_NUM_THREADS" in caplog.text


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_d06_real_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@given(quota=st.integers(1, 10**8), period=st.integers(1000, 10**6), affinity=st.integers(1, 256))
def test_granted_cores_are_within_affinity_and_quota(
    tmp_path_factory: pytest.TempPathFactory, quota: int, period: int, affinity: int
) -> None:
    root = version_2(tmp_path_factory.mktemp("system"), "/", {"cpu.max": f"{quota} {period}"})
    with pytest.MonkeyPatch.context() as monkeypatch:
        _affinity(monkeypatch, affinity)
        granted = granted_cores(root)
    assert 1 <= granted <= affinity
    assert granted == 1 or granted * period <= quota
    assert granted == affinity or (granted + 1) * period > quota


def test_more_threads_than_cores_are_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "granted_cores", lambda: 4)
    cores.check_threads(None)
    cores.check_threads(4)
    with pytest.raises(UsageError, match="99 threads were asked, but this process may use 4 cores: give at most 4"):
        cores.check_threads(99)
