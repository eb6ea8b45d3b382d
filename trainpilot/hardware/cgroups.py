"""Linux control groups, versions 1 and 2: the processor quota and the memory limit that apply to this process."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Version 1 writes "no limit" as the largest page-aligned 64-bit number; no machine has half of that.
_UNLIMITED_BYTES = 1 << 60
_ROOT = Path("/")


@dataclass(frozen=True)
class MemoryLimit:
    """Memory of one control group in bytes.

    Attributes:
        limit_bytes: What the group may hold.
        used_bytes: What it holds, file cache included.
        inactive_file_bytes: File cache that the kernel drops before it kills anything.
    """

    limit_bytes: int
    used_bytes: int
    inactive_file_bytes: int

    @property
    def available_bytes(self) -> int:
        """What could still be allocated."""
        return max(0, self.limit_bytes - max(0, self.used_bytes - self.inactive_file_bytes))


@dataclass(frozen=True)
class _Mount:
    version: int
    controllers: frozenset[str]
    root: PurePosixPath
    point: Path


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Cores that the processor quota grants, e.g. 7.65, or None without a quota.

    A process is bound by its group and by every group above it, so the least quota counts.

    Args:
        root: Where ``proc`` and ``sys`` are; another folder in tests.
    """
    quotas: list[float] = []
    for version, folder in _folders("cpu", root):
        if version == 2:
            words = _read(folder / "cpu.max").split()
            quota, period = (_number(words[0]), _number(words[1])) if len(words) == 2 else (None, None)
        else:
            quota, period = _number(_read(folder / "cpu.cfs_quota_us")), _number(_read(folder / "cpu.cfs_period_us"))
        if quota is not None and period is not None and quota > 0 and period > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limits(root: Path = _ROOT) -> tuple[MemoryLimit, ...]:
    """Memory limits of this process's group and of those above it, where they have one.

    Args:
        root: Where ``proc`` and ``sys`` are; another folder in tests.
    """
    limits: list[MemoryLimit] = []
    for version, folder in _folders("memory", root):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (_number(_read(folder / name)) for name in names)
        if limit is None or used is None or limit < 0 or limit >= _UNLIMITED_BYTES:
            continue
        # Version 1 has the figure of the whole subtree under another name; usage is that of the subtree.
        wanted = "inactive_file" if version == 2 else "total_inactive_file"
        fields = dict(line.split(" ", 1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
        limits.append(MemoryLimit(limit, used, _number(fields.get(wanted, "")) or 0))
    return tuple(limits)


def _folders(controller: str, root: Path) -> Iterable[tuple[int, Path]]:
    """(Version, folder) of this process's group for a controller and of every group above it."""
    # A process stays in its group, and reading the mounts takes longer than a prediction.
    return _own_folders(controller, os.getpid()) if root == _ROOT else _found_folders(controller, root)


@functools.lru_cache(maxsize=4)
def _own_folders(controller: str, process: int) -> tuple[tuple[int, Path], ...]:  # noqa: ARG001 (a fork may be moved)
    return tuple(_found_folders(controller, _ROOT))


def _found_folders(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    mounts = list(_mounts(root))
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        version = 2 if names == "" else 1
        if version == 1 and controller not in names.split(","):
            continue
        for mount in mounts:
            if mount.version != version or (version == 1 and controller not in mount.controllers):
                continue
            group = PurePosixPath(path)
            # In a container without a namespace of its own, the mount shows a part of the tree only; a group
            # outside of that part is represented by the mount itself.
            inside = group.relative_to(mount.root) if group.is_relative_to(mount.root) else PurePosixPath()
            folder = mount.point / inside
            yield version, folder
            while folder != mount.point:
                folder = folder.parent
                yield version, folder


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        yield _Mount(
            version=2 if kind[0] == "cgroup2" else 1,
            controllers=frozenset(kind[2].split(",")),
            root=PurePosixPath(fields[3]),
            point=root / fields[4].lstrip("/"),
        )


def _read(path: Path) -> str:
    """Text of a file, or "" where there is none: not every system has control groups."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:  # "max", or an empty file
        return None
