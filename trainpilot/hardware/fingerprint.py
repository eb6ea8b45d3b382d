"""The machine's fingerprint: what decides speed, and nothing that names a person, host or serial number.

No fact needs torch, so the fingerprint is the same before and after torch is imported, and cheap.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import psutil

from trainpilot.hardware.cores import granted_cores
from trainpilot.hardware.memory import memory_total_bytes
from trainpilot.hardware.types import Machine

# Instruction sets for which the libraries have kernels of their own, by the names of /proc/cpuinfo.
_X86_SETS = (
    "sse4_2",
    "f16c",
    "fma",
    "avx",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
)
_ARM_SETS = ("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svebf16", "sme", "sme2")
# The same on macOS, which tells them by the names of the architecture's features.
_APPLE_SETS = {
    "AdvSIMD": "asimd",
    "FEAT_FP16": "asimdhp",
    "FEAT_DotProd": "asimddp",
    "FEAT_I8MM": "i8mm",
    "FEAT_BF16": "bf16",
    "FEAT_SME": "sme",
    "FEAT_SME2": "sme2",
}
_PCI_VENDORS = {"0x8086": "xpu:Intel", "0x1002": "cuda:AMD"}  # torch calls AMD's devices cuda, too
_COMMAND_LIMIT_S = 10.0


@lru_cache(maxsize=1)
def machine() -> Machine:
    """Describe this machine; determined once per process.

    ``machine_id`` is a hash over all fields. ``cores_usable`` (CPU affinity and quota, not ``OMP_NUM_THREADS``) is
    one of them, because a container with two cores is another machine than one with eight. Memory enters by its
    magnitude only, because kernels keep different amounts for themselves.
    """
    system = platform.system()
    apple = _sysctl() if system == "Darwin" else {}
    cpu_model, sets = _apple_processor(apple) if apple else _linux_processor(_cpuinfo())
    return describe(
        cpu_model=cpu_model or platform.processor() or platform.machine(),
        cores_physical=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        cores_usable=granted_cores(),
        memory_total_bytes=memory_total_bytes(),
        system=system,
        architecture=platform.machine(),
        instruction_sets=sets,
        accelerators=_apple_accelerators(apple) if apple else (*_nvidia(), *_other_gpus()),
    )


def describe(
    *,
    cpu_model: str,
    cores_physical: int,
    cores_usable: int,
    memory_total_bytes: int,
    system: str,
    architecture: str,
    instruction_sets: Iterable[str],
    accelerators: Iterable[str],
) -> Machine:
    """Make the fingerprint of the given facts; the order of sets and accelerators does not matter."""
    sets, devices = tuple(sorted(instruction_sets)), tuple(sorted(accelerators))
    # Quarter octaves: nominal sizes (8, 16, 24, 32 GiB, ...) less what a kernel keeps fall well inside one.
    magnitude = round(4 * math.log2(max(memory_total_bytes, 1)))
    facts = [cpu_model, cores_physical, cores_usable, magnitude, system, architecture, sets, devices]
    return Machine(
        machine_id=hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16],
        cpu_model=cpu_model,
        cores_physical=cores_physical,
        cores_usable=cores_usable,
        memory_total_bytes=memory_total_bytes,
        system=system,
        architecture=architecture,
        instruction_sets=sets,
        accelerators=devices,
    )


def _cpuinfo(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Fields of the first processor."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _linux_processor(cpuinfo: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """Name of the processor and its instruction sets."""
    flags = set(cpuinfo.get("flags", cpuinfo.get("Features", "")).split())
    sets = tuple(name for name in (*_X86_SETS, *_ARM_SETS) if name in flags)
    if "model name" in cpuinfo:
        # Virtual machines shorten the name to "AMD EPYC"; family and model still tell the generations apart.
        numbers = f"family {cpuinfo.get('cpu family', '?')} model {cpuinfo.get('model', '?')}"
        return (f"{cpuinfo['model name']} ({numbers})" if "cpu family" in cpuinfo else cpuinfo["model name"]), sets
    if "CPU implementer" in cpuinfo:
        part = cpuinfo.get("CPU part", "?")
        return f"Arm implementer {cpuinfo['CPU implementer']} part {part}", sets
    return "", sets


def _nvidia(folder: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """NVIDIA devices as the driver lists them, else as its own tool does."""
    names = []
    for path in sorted(folder.glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", path.read_text(errors="replace"), re.MULTILINE)
        if found:
            names.append(found.group(1).strip())
    if not names and (tool := shutil.which("nvidia-smi")):
        names = _lines([tool, "--query-gpu=name", "--format=csv,noheader"])
    return tuple(f"cuda:{name}" for name in names)


def _other_gpus(folder: Path = Path("/sys/class/drm")) -> tuple[str, ...]:
    """Intel's and AMD's devices by their PCI numbers."""
    names = []
    for device in sorted(folder.glob("card*/device")):
        if re.fullmatch(r"card\d+", device.parent.name) is None:  # card0-HDMI-A-1 is a connector
            continue
        try:
            vendor, number = ((device / name).read_text().strip() for name in ("vendor", "device"))
        except OSError:
            continue
        if vendor in _PCI_VENDORS:
            names.append(f"{_PCI_VENDORS[vendor]} {number}")
    return tuple(names)


# macOS: written from Apple's documentation and tested with recorded output; never run on a Mac.


def _sysctl() -> dict[str, str]:
    pairs = (line.split(":", 1) for line in _lines(["/usr/sbin/sysctl", "hw.optional", "machdep.cpu"]) if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _apple_processor(sysctl: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    present = {key.rsplit(".", 1)[-1] for key, value in sysctl.items() if value == "1"}
    arm = [ours for theirs, ours in _APPLE_SETS.items() if theirs in present]
    intel = (
        sysctl.get("machdep.cpu.features", "").lower().split()
        + sysctl.get("machdep.cpu.leaf7_features", "").lower().split()
    )
    renamed = {"avx1.0": "avx", "sse4.2": "sse4_2"}
    x86 = {renamed.get(name, name) for name in intel} & set(_X86_SETS)
    return sysctl.get("machdep.cpu.brand_string", ""), (*arm, *sorted(x86))


def _apple_accelerators(sysctl: dict[str, str]) -> tuple[str, ...]:
    brand = sysctl.get("machdep.cpu.brand_string", "")
    return (f"ane:{brand}", f"mps:{brand}") if brand.startswith("Apple") else ()


def _lines(command: list[str]) -> list[str]:
    """Output lines of a system tool, or none if it fails: a missing tool means that there is nothing to describe."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
