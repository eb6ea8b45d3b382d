"""What other programs on the machine cost a training run."""

from __future__ import annotations

import dataclasses
import time

from trainpilot.hardware import usable_cores
from trainpilot.hardware.others import OthersMeter
from trainpilot.predictors import Prediction

LOAD_INTERVAL_S = 0.5
"""Time over which the load is sampled: a shorter one takes a single interruption for a load."""
_NOTE = "times are multiplied by"


def others_utilization(interval_s: float = LOAD_INTERVAL_S) -> float:
    """Share of the usable cores, 0 to 1, that everything but this process keeps busy; takes ``interval_s`` seconds."""
    meter = OthersMeter()
    time.sleep(interval_s)
    cores = meter.cores()
    assert cores is not None  # only shorter intervals cannot tell
    return min(1.0, cores / usable_cores())


def load_notes(prediction: Prediction) -> list[str]:
    """What ``adjust_for_load`` noted in a prediction."""
    return [note for note in prediction.notes if note.startswith(_NOTE)]


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

    A factor that rounds to 1.00 is within what sampling can tell and changes nothing.

    Args:
        prediction: Times of a machine that does nothing else.
        factor: From ``interference_factor``.
        utilization: Observed busy share, 0 to 1, for the note.
    """
    if f"{factor:.2f}" == "1.00":
        return prediction

    def slowed(value: float) -> float:
        return value * factor

    note = (
        f"{_NOTE} {factor:.2f}, because {utilization:.0%} of the device is busy now (assumed: fair share); "
        "a prediction for the quiet device leaves this out"
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
