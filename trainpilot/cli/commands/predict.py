"""``trainpilot predict`` and ``trainpilot select``: what training will take, and where to train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainpilot.cli.console import print_json, print_table, print_text
from trainpilot.cli.options import JsonFlag, WorkloadOptions, with_workload_options
from trainpilot.report.format import byte_size, with_interval

if TYPE_CHECKING:
    from trainpilot.backends import ExecutionSettings
    from trainpilot.selection import Selection
    from trainpilot.workload import Workload

_Backends = Annotated[
    list[str] | None, typer.Option("--backend", help="Candidate; repeatable. Default: every real backend.")
]
_Threads = Annotated[
    list[int] | None, typer.Option("--threads", help="CPU threads; repeat to compare. Default: all usable ones.")
]
_MemoryFormats = Annotated[
    list[str] | None,
    typer.Option("--memory-format", help="contiguous or channels_last; repeat to compare. Default: contiguous."),
]
_Dtypes = Annotated[
    list[str] | None,
    typer.Option("--allow-dtype", help="Another compute type that may be chosen, e.g. bfloat16; repeatable."),
]


@with_workload_options
def predict(
    options: WorkloadOptions,
    backend: _Backends = None,
    threads: _Threads = None,
    memory_format: _MemoryFormats = None,
    allow_dtype: _Dtypes = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Run a few real steps where the prediction alone says too little.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Predict time per step, per epoch and in total, and peak memory, on each backend."""
    workload = options.workload()
    variants = _variants(workload, threads, memory_format, allow_dtype)
    selection = _select(workload, backend, variants, probe=probe)
    if as_json:
        print_json(document(workload, selection))
        return
    print_predictions(workload, selection)
    for name, reason in selection.excluded.items():
        print_text(f"{name}: {reason}")


@with_workload_options
def select(
    options: WorkloadOptions,
    backend: _Backends = None,
    threads: _Threads = None,
    memory_format: _MemoryFormats = None,
    allow_dtype: _Dtypes = None,
    objective: Annotated[str, typer.Option("--objective", help="time or energy.")] = "time",
    memory_limit: Annotated[
        int | None, typer.Option("--memory-limit-bytes", help="Memory that the run may use; default: what is free.")
    ] = None,
    power_limit: Annotated[float | None, typer.Option("--power-limit-w", help="Mean power allowed, in W.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Choose where to train, with the probability that the choice is the fastest, and the reasons."""
    workload = options.workload()
    selection = _select(
        workload,
        backend,
        _variants(workload, threads, memory_format, allow_dtype),
        objective=objective,
        memory_limit_bytes=memory_limit,
        power_limit_w=power_limit,
    )
    if as_json:
        print_json(document(workload, selection))
    else:
        print_selection(selection)


def _variants(
    workload: Workload, threads: list[int] | None, memory_formats: list[str] | None, dtypes: list[str] | None
) -> list[ExecutionSettings]:
    """Every combination of the execution settings that were asked for, the workload's own first."""
    from trainpilot.backends import ExecutionSettings

    counts: list[int | None] = [*threads] if threads else [None]
    return [
        ExecutionSettings(threads=count, dtype=dtype, memory_format=memory_format)
        for dtype in dict.fromkeys([workload.dtype, *(dtypes or ())])
        for memory_format in dict.fromkeys(memory_formats or ["contiguous"])
        for count in dict.fromkeys(counts)
    ]


def _select(
    workload: Workload, backends: list[str] | None, variants: list[ExecutionSettings], **options: Any
) -> Selection:
    from trainpilot.backends import backend_names, get_backend
    from trainpilot.predictors import load_active
    from trainpilot.selection import select as choose

    for name in backends or ():
        get_backend(name)  # a misspelt name is told before anything is imported or probed
    for name in backends or backend_names():
        # A predictor that must not be used is an error here: numbers from calibration alone would look like its own.
        load_active(name)
    return choose(workload, backends=backends, settings=variants, **options)


def document(workload: Workload, selection: Selection) -> dict[str, Any]:
    """The JSON document of predictions and the decision (schema 1)."""
    return {
        "schema": 1,
        "workload": {
            "name": workload.name,
            "family": workload.family,
            "batch_size": workload.plan.batch_size,
            "dataset_size": workload.plan.dataset_size,
            "epochs": workload.plan.epochs,
            "steps": workload.plan.steps,
            "optimizer": workload.optimizer_name,
            "dtype": workload.dtype,
        },
        **selection.to_dict(),
    }


def print_predictions(workload: Workload, selection: Selection) -> None:
    """Print what each candidate would take."""
    plan = workload.plan
    print_text(
        f"{workload.name}: {plan.dataset_size:,} samples, batch {plan.batch_size}, "
        f"{plan.epochs} epoch{'s' if plan.epochs != 1 else ''}, "
        f"{plan.steps:,} steps, {workload.optimizer_name}, {workload.dtype}"
    )
    print_table(
        ["candidate", ">per step", ">per epoch", ">in total", ">peak memory", "source", "in range"],
        [
            [
                label,
                with_interval(found.step_time_s),
                with_interval(found.epoch_time_s),
                with_interval(found.total_time_s),
                with_interval(found.peak_memory_bytes, byte_size),
                found.source,
                "yes" if found.in_range else "no",
            ]
            for label, found in selection.predictions.items()
        ],
    )
    for label, found in selection.predictions.items():
        for text in found.notes:
            print_text(f"{label}: {text}")


def print_selection(selection: Selection) -> None:
    """Print the decision and its reasons."""
    verdict = "" if selection.clear else ", no clear difference"
    print_text(
        f"train on {selection.candidate} (confidence {selection.confidence:.2f}{verdict}; source: {selection.source})"
    )
    for reason in selection.reasons:
        print_text(f"  {reason}")
    for name, reason in selection.excluded.items():
        print_text(f"  not {name}: {reason}")
