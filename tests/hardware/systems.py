"""Folders that look like the ``proc`` and ``sys`` of a Linux system."""

from __future__ import annotations

from pathlib import Path

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def version_2(root: Path, group: str, files: dict[str, str]) -> Path:
    """A system with control groups version 2; ``files`` by group path and name, e.g. ``a/b/cpu.max``."""
    named = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return write(root, {"proc/self/mountinfo": V2_MOUNT + "\n", "proc/self/cgroup": f"0::{group}\n", **named})


def version_1(root: Path, controllers: str, group: str, files: dict[str, str], mount_root: str = "/") -> Path:
    """A system with control groups version 1 and one mounted hierarchy."""
    point = f"/sys/fs/cgroup/{controllers}"
    named = {f"{point.lstrip('/')}/{name}": text for name, text in files.items()}
    mounts = (
        "29 23 0:25 / /proc rw - proc proc rw\n"
        f"32 31 0:29 {mount_root} {point} rw,relatime - cgroup cgroup rw,{controllers}\n"
    )
    groups = f"9:name=systemd:/\n5:{controllers}:{group}\n0::/\n"
    return write(root, {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups, **named})
