from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainpilot.hardware import machine, versions
from trainpilot.hardware.fingerprint import (
    _apple_accelerators,
    _apple_processor,
    _cpuinfo,
    _linux_processor,
    _nvidia,
    _other_gpus,
    describe,
)

GIB = 1 << 30
FACTS: dict[str, Any] = {
    "cpu_model": "Example CPU",
    "cores_physical": 8,
    "cores_usable": 4,
    "memory_total_bytes": 31 * GIB,
    "system": "Linux",
    "architecture": "x86_64",
    "instruction_sets": ("avx2", "fma"),
    "accelerators": ("cuda:NVIDIA H200",),
}

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu sse2 sse4_2 fma f16c avx avx2 avx512f avx512_bf16 sha_ni

processor\t: 1
model name\t: Another
"""
GRAVITON = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd asimdhp asimddp sve i8mm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""
# As printed by `sysctl hw.optional machdep.cpu` on Apple silicon and on an Intel Mac, shortened.
M2 = {
    "machdep.cpu.brand_string": "Apple M2 Pro",
    "hw.optional.arm.FEAT_BF16": "1",
    "hw.optional.arm.FEAT_FP16": "1",
    "hw.optional.arm.FEAT_SME": "0",
    "hw.optional.AdvSIMD": "1",
}
INTEL_MAC = {
    "machdep.cpu.brand_string": "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz",
    "machdep.cpu.features": "FPU SSE4.2 FMA AVX1.0 F16C",
    "machdep.cpu.leaf7_features": "AVX2 BMI2",
}


def test_the_same_facts_give_the_same_id_in_any_order() -> None:
    shuffled = {**FACTS, "instruction_sets": ("fma", "avx2")}
    assert describe(**FACTS) == describe(**shuffled)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu_model", "Other CPU"),
        ("cores_physical", 16),
        ("cores_usable", 2),
        ("memory_total_bytes", 62 * GIB),
        ("system", "Darwin"),
        ("architecture", "arm64"),
        ("instruction_sets", ("avx2",)),
        ("accelerators", ()),
    ],
)
def test_every_fact_that_decides_speed_changes_the_id(field: str, value: Any) -> None:
    assert describe(**{**FACTS, field: value}).machine_id != describe(**FACTS).machine_id


@pytest.mark.parametrize("nominal", [8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512])
def test_what_a_kernel_keeps_for_itself_does_not_change_the_id(nominal: int) -> None:
    ids = {
        describe(**{**FACTS, "memory_total_bytes": int(nominal * GIB * kept)}).machine_id for kept in (0.97, 0.985, 1.0)
    }
    assert len(ids) == 1


def test_this_machine_is_the_same_in_another_process_and_needs_no_torch() -> None:
    code = (
        "import dataclasses, json, sys; from trainpilot.hardware import machine, versions; "
        "here = dataclasses.asdict(machine()); versions(); "
        "print(json.dumps([here, 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    there, torch_loaded = json.loads(done.stdout)
    here = json.loads(json.dumps(dataclasses.asdict(machine())))
    assert there == here
    assert torch_loaded is False


def test_this_machine_holds_sensible_facts_and_no_host_name() -> None:
    here = machine()
    assert here.cores_physical >= 1
    assert here.cores_usable >= 1
    assert here.memory_total_bytes > 0
    assert here.system == platform.system()
    assert len(here.machine_id) == 16
    name = platform.node()
    assert len(name) < 4 or name not in json.dumps(dataclasses.asdict(here))


def test_omp_num_threads_is_no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    machine.cache_clear()
    assert machine() == before


def test_x86_processor(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(EPYC)
    model, sets = _linux_processor(_cpuinfo(path))
    assert model == "AMD EPYC (family 25 model 17)"
    assert set(sets) == {"sse4_2", "fma", "f16c", "avx", "avx2", "avx512f", "avx512_bf16"}


def test_arm_processor(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(GRAVITON)
    model, sets = _linux_processor(_cpuinfo(path))
    assert model == "Arm implementer 0x41 part 0xd40"
    assert set(sets) == {"asimd", "asimdhp", "asimddp", "sve", "i8mm", "bf16"}


def test_no_cpuinfo(tmp_path: Path) -> None:
    assert _linux_processor(_cpuinfo(tmp_path / "missing")) == ("", ())


def test_apple_silicon() -> None:
    model, sets = _apple_processor(M2)
    assert model == "Apple M2 Pro"
    assert set(sets) == {"bf16", "asimdhp", "asimd"}
    assert _apple_accelerators(M2) == ("ane:Apple M2 Pro", "mps:Apple M2 Pro")


def test_intel_mac() -> None:
    _, sets = _apple_processor(INTEL_MAC)
    assert set(sets) == {"sse4_2", "fma", "avx", "f16c", "avx2"}
    assert _apple_accelerators(INTEL_MAC) == ()


def test_nvidia_devices_by_the_driver(tmp_path: Path) -> None:
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   5\n")
    assert _nvidia(tmp_path) == ("cuda:NVIDIA H200", "cuda:NVIDIA H200")


def test_other_gpus_by_their_pci_numbers(tmp_path: Path) -> None:
    for card, vendor in (("card0", "0x8086"), ("card0-HDMI-A-1", "0x8086"), ("card1", "0x1002"), ("card2", "0x1af4")):
        device = tmp_path / card / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "device").write_text("0x56a0\n")
    assert _other_gpus(tmp_path) == ("xpu:Intel 0x56a0", "cuda:AMD 0x56a0")


def test_versions() -> None:
    import numpy
    import torch

    import trainpilot

    found = versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert found["numpy"] == numpy.__version__
    assert found["trainpilot"] == trainpilot.__version__
