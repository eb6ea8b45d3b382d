"""``trainpilot profile``: what one training step of a model consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainpilot.cli.console import print_json, print_table, print_text
from trainpilot.cli.options import JsonFlag, WorkloadOptions, with_workload_options
from trainpilot.report.format import byte_size, count

if TYPE_CHECKING:
    from trainpilot.profiling import WorkloadProfile

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
    from trainpilot.profiling import OP_CLASSES

    shapes = ", ".join("x".join(map(str, shape)) + f" {dtype}" for shape, dtype in result.input_signature)
    print_text(f"{result.name} ({result.family}), batch {result.batch_size}, {result.optimizer}, input {shapes}")
    print_table(
        ["", ">"],
        [
            ["parameters", f"{count(result.params)} ({result.params:,})"],
            ["  trainable", f"{count(result.trainable_params)} ({result.trainable_params:,})"],
            ["layers / depth", f"{result.layers} / {result.depth}"],
            ["forward", count(result.forward_flops, "FLOP")],
            ["backward", count(result.backward_flops, "FLOP")],
            ["operators dispatched", f"{sum(group.calls for group in result.op_groups):,}"],
        ],
        title="One training step",
    )
    by_class = {name: [g for g in result.op_groups if g.op_class == name] for name in OP_CLASSES}
    print_table(
        ["class", ">calls", ">FLOP", ">bytes moved"],
        [
            [
                name,
                f"{sum(g.calls for g in groups):,}",
                count(sum(g.flops for g in groups)),
                byte_size(sum(g.bytes_read + g.bytes_written for g in groups)),
            ]
            for name, groups in by_class.items()
            if groups
        ],
        title="By class of operator",
    )
    # Without a machine in view, cost is ranked by FLOPs plus bytes: a processor that does a few FLOPs per byte
    # moved is the common case, and the order is meant to point a reader at the heavy operators, not to time them.
    ranked = sorted(result.op_groups, key=lambda g: g.flops + 8 * (g.bytes_read + g.bytes_written), reverse=True)
    print_table(
        ["operator", "phase", ">calls", ">FLOP", ">bytes moved", "sizes"],
        [
            [
                group.op,
                group.phase,
                f"{group.calls:,}",
                count(group.flops),
                byte_size(group.bytes_read + group.bytes_written),
                " ".join(f"{key}={value}" for key, value in group.shape.items()),
            ]
            for group in ranked[:_TOP]
        ],
        title=f"The {min(_TOP, len(ranked))} most expensive groups of operators",
    )
    memory = result.memory
    print_table(
        ["part", ">bytes"],
        [
            ["weights", byte_size(memory.weights_bytes)],
            ["buffers", byte_size(memory.buffers_bytes)],
            ["gradients", byte_size(memory.gradients_bytes)],
            ["optimizer state", byte_size(memory.optimizer_bytes)],
            ["activations", byte_size(memory.activations_bytes)],
            ["workspace", byte_size(memory.workspace_bytes)],
            ["peak at one moment", byte_size(memory.peak_bytes)],
        ],
        title="Memory of the step (estimated)",
    )
    if result.uncounted_ops:
        listed = ", ".join(f"{op} ({calls} calls)" for op, calls in sorted(result.uncounted_ops.items()))
        print_text(f"not counted, no formula: {listed}")
    else:
        print_text("every operator that does arithmetic was counted")
    if result.data_dependent and result.forward_flops_range is not None:
        low, high = (count(value, "FLOP") for value in result.forward_flops_range)
        print_text(f"data-dependent: the forward pass took {low} to {high} on the inputs tried")
    for text in result.notes:
        print_text(f"note: {text}")
