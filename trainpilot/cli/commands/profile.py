"""``trainpilot profile``: what one training step of a model consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainpilot.cli.console import print_json, print_table, print_text
from trainpilot.cli.options import JsonFlag, WorkloadOptions, with_workload_options
from trainpilot.report.format import byte_size, count

if TYPE_CHECKING:
    from trainpilot.profiling import Row, WorkloadProfile

_TOP = 10


@with_workload_options
def profile(options: WorkloadOptions, as_json: JsonFlag = False) -> None:
    """Count the operations, FLOPs, bytes and memory of one training step, without running it."""
    workload = options.workload()
    from trainpilot.profiling import profile as trace

    result = trace(workload)
    if as_json:
        print_json({"schema": 1, **result.to_dict()})
    else:
        _print_profile(result)


def _print_profile(result: WorkloadProfile) -> None:
    from trainpilot.profiling import profile_table

    shapes = ", ".join("x".join(map(str, shape)) + f" {dtype}" for shape, dtype in result.input_signature)
    print_text(f"{result.name} ({result.family}), batch {result.batch_size}, {result.optimizer}, input {shapes}")
    print_table(
        ["", ">"],
        [
            ["parameters", f"{count(result.params)} ({result.params:,})"],
            ["  trainable", f"{count(result.trainable_params)} ({result.trainable_params:,})"],
            ["layers / depth", f"{result.layers} / {result.depth}"],
        ],
    )
    table = profile_table(result, _TOP)
    for title, first, rows in (
        ("One training step", "phase", table.phases),
        ("By class of operator", "class", table.classes),
    ):
        print_table([first, ">calls", ">FLOP", ">bytes moved"], map(_cells, rows), title=title)
    print_table(
        ["operation", ">calls", ">FLOP", ">bytes moved", "sizes"],
        [[*_cells(row), " ".join(f"{key}={value}" for key, value in row.sizes.items())] for row in table.operations],
        title=f"The {len(table.operations)} most expensive operations",
    )
    print_table(
        ["part", ">bytes"],
        [[part, byte_size(size)] for part, size in table.memory_bytes.items()],
        title="Memory of the step (estimated; the peak is what is alive at one moment)",
    )
    if table.uncounted:
        listed = ", ".join(f"{op} ({calls} calls)" for op, calls in sorted(table.uncounted.items()))
        print_text(f"not counted, no formula: {listed}")
    else:
        print_text("every operator that does arithmetic was counted")
    if result.data_dependent and result.forward_flops_range is not None:
        low, high = (count(value, "FLOP") for value in result.forward_flops_range)
        print_text(f"data-dependent: the forward pass took {low} to {high} on the inputs tried")
    for text in table.notes:
        print_text(f"note: {text}")


def _cells(row: Row) -> list[str]:
    return [row.name, f"{row.calls:,}", count(row.flops), byte_size(row.bytes_moved)]
