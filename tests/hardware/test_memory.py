from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.hardware.systems import version_1, version_2
from trainpilot.hardware import memory_available_bytes
from trainpilot.hardware.memory import memory_total_bytes

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB, available=40 * GIB))


def test_without_control_groups_the_host_counts(tmp_path: Path) -> None:
    assert memory_available_bytes(tmp_path) == 40 * GIB
    assert memory_total_bytes(tmp_path) == 64 * GIB


def test_version_2_limit_less_use_plus_inactive_file_cache(tmp_path: Path) -> None:
    files = {
        "job/memory.max": str(8 * GIB),
        "job/memory.current": str(5 * GIB),
        "job/memory.stat": f"anon {2 * GIB}\nactive_file {GIB}\ninactive_file {2 * GIB}\n",
    }
    version_2(tmp_path, "/job", files)
    assert memory_available_bytes(tmp_path) == 5 * GIB  # 8 - (5 - 2)
    assert memory_total_bytes(tmp_path) == 8 * GIB


def test_version_2_the_tightest_group_above_counts(tmp_path: Path) -> None:
    files = {
        "a/memory.max": str(4 * GIB),
        "a/memory.current": str(3 * GIB),
        "a/memory.stat": "inactive_file 0\n",
        "a/b/memory.max": "max",
        "a/b/memory.current": str(GIB),
    }
    version_2(tmp_path, "/a/b", files)
    assert memory_available_bytes(tmp_path) == GIB


def test_version_2_max_is_no_limit(tmp_path: Path) -> None:
    version_2(tmp_path, "/job", {"job/memory.max": "max\n", "job/memory.current": str(50 * GIB)})
    assert memory_available_bytes(tmp_path) == 40 * GIB


def test_version_1_subtree_figures(tmp_path: Path) -> None:
    files = {
        "job/memory.limit_in_bytes": str(6 * GIB),
        "job/memory.usage_in_bytes": str(4 * GIB),
        "job/memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}\n",
    }
    version_1(tmp_path, "memory", "/job", files)
    assert memory_available_bytes(tmp_path) == 3 * GIB  # 6 - (4 - 1)


def test_version_1_unlimited(tmp_path: Path) -> None:
    files = {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": str(GIB)}
    version_1(tmp_path, "memory", "/", files)
    assert memory_available_bytes(tmp_path) == 40 * GIB
    assert memory_total_bytes(tmp_path) == 64 * GIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    version_2(tmp_path, "/", {"memory.max": str(GIB), "memory.current": str(2 * GIB)})
    assert memory_available_bytes(tmp_path) == 0


def test_more_cache_than_use_gives_the_limit_at_most(tmp_path: Path) -> None:
    files = {"memory.max": str(GIB), "memory.current": "10", "memory.stat": "inactive_file 1000000"}
    version_2(tmp_path, "/", files)
    assert memory_available_bytes(tmp_path) == GIB
