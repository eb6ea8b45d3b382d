"""``trainpilot devices`` and ``trainpilot calibrate``: what this machine has and how fast it is."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from trainpilot.cli.console import note, print_json, print_table, print_text
from trainpilot.cli.options import JsonFlag
from trainpilot.report.format import byte_size, count, duration

_UNITS = {"_flops_per_s": "FLOP/s", "_bytes_per_s": "B/s"}


def devices(as_json: JsonFlag = False) -> None:
    """List every backend: usable or the reason why not, load, memory, calibration."""
    from trainpilot.backends import candidate_backends
    from trainpilot.hardware import machine, sample_load
    from trainpilot.settings import load_settings

    here, load, limit = machine(), sample_load(), load_settings().probe_timeout_s
    listed: list[dict[str, Any]] = []
    for backend in candidate_backends():
        usability = backend.probe(limit)
        calibration = backend.calibration(run=False) if usability.usable else None
        listed.append(
            {
                **dataclasses.asdict(backend.info()),
                **dataclasses.asdict(usability),
                "calibration": None if calibration is None else dataclasses.asdict(calibration),
            }
        )
    if as_json:
        print_json(
            {"schema": 1, "machine": dataclasses.asdict(here), "load": dataclasses.asdict(load), "backends": listed}
        )
        return
    print_text(
        f"{here.cpu_model}, {here.cores_usable} usable of {here.cores_physical} cores, "
        f"{byte_size(here.memory_total_bytes)} memory, {here.system} {here.architecture}"
    )
    print_text(
        f"load: {load.cpu_utilization:.0%} of the usable cores busy, "
        f"{byte_size(load.memory_available_bytes)} memory available"
    )
    print_table(
        ["backend", "available", "usable", ">memory available", ">busy", "calibrated", "device or reason"],
        [
            [
                found["backend"],
                "yes" if found["available"] else "no",
                "yes" if found["usable"] else "no",
                byte_size(found["memory_available_bytes"]) if found["usable"] else "-",
                "-" if found["utilization"] is None else f"{found['utilization']:.0%}",
                _calibrated(found),
                found["description"] if found["usable"] else found["reason"],
            ]
            for found in listed
        ],
    )


def _calibrated(found: dict[str, Any]) -> str:
    if not found["usable"]:
        return "-"
    if found["calibration"] is None:
        return "no: trainpilot calibrate"
    return count(found["calibration"]["figures"].get("matmul_flops_per_s"), "FLOP/s")


def calibrate(
    backend: Annotated[str, typer.Option("--backend", help="Backend to calibrate.")] = "cpu",
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads; default: all usable ones.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    refresh: Annotated[bool, typer.Option("--refresh", help="Probe again even if figures are cached.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure how fast a backend computes, moves memory and dispatches operators (a few seconds)."""
    from trainpilot.backends import ExecutionSettings
    from trainpilot.selection import usable_backend

    settings = ExecutionSettings(threads=threads, dtype=dtype)
    note("calibrating: a few seconds; keep the machine quiet meanwhile")
    found = usable_backend(backend).calibration(settings, refresh=refresh)
    assert found is not None  # only run=False gives None
    if as_json:
        print_json({"schema": 1, **dataclasses.asdict(found)})
        return
    rows = []
    for name, value in found.figures.items():
        unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), None)
        shown = duration(value) if name.endswith("_s") and unit is None else count(value, unit or "")
        rows.append([name, shown])
    print_table(["figure", ">value"], rows, title=f"{backend}, {found.threads} threads, {found.dtype} (measured)")
