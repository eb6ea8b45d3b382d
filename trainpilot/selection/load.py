"""What other programs on the machine cost a training run."""

from __future__ import annotations

import dataclasses

from trainpilot.predictors import Prediction


def interference_factor(utilization: float, *, threads: int, cores: int) -> float:
    """Return by how much a run slows down on a machine that is already busy.

    Assumed, not measured: a fair scheduler. Others keep ``utilization * cores`` cores busy and the run wants
    ``threads`` of them; together they want ``threads / cores + utilization`` times what there is, and where that is
    more than 1, everybody gets their share of it. So one idle core suffices for one thread, and a fully busy
    machine doubles the time of a run on all cores.

    Args:
        utilization: Busy share of the cores, 0 to 1, by everything else.
        threads: Threads of the run.
        cores: Usable cores.
    """
    return max(1.0, min(threads, cores) / cores + utilization)


def adjust_for_load(prediction: Prediction, factor: float, utilization: float) -> Prediction:
    """Multiply every time of a prediction by an interference factor and say so in its notes.

    Args:
        prediction: Times of a machine that does nothing else.
        factor: From ``interference_factor``.
        utilization: Observed busy share, 0 to 1, for the note.
    """
    if factor == 1.0:
        return prediction

    def slowed(value: float) -> float:
        return value * factor

    note = (
        f"times are multiplied by {factor:.2f}, because {utilization:.0%} of the device is busy (assumed: fair share)"
    )
    step, setup, epoch, total = (
        prediction.step_time_s,
        prediction.setup_time_s,
        prediction.epoch_time_s,
        prediction.total_time_s,
    )
    return dataclasses.replace(
        prediction,
        step_time_s=step and step.map(slowed),
        setup_time_s=setup and setup.map(slowed),
        epoch_time_s=epoch and epoch.map(slowed),
        total_time_s=total and total.map(slowed),
        notes=(*prediction.notes, note),
    )
