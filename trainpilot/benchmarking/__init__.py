"""Measuring: the timing protocol, isolated workers and sweeps. Knows nothing of the store."""

from trainpilot.benchmarking.configuration import Configuration, OperatorTiming
from trainpilot.benchmarking.energy import EnergyMeter, NoMeter, ReplayMeter, ZeusMeter
from trainpilot.benchmarking.measurement import STATUSES, Measurement
from trainpilot.benchmarking.rows import Site, this_site
from trainpilot.benchmarking.runner import PlannedRow, SweepProgress, SweepSummary, plan_sweep, run_sweep
from trainpilot.benchmarking.sweep import Sweep, load_sweep, parse_shard, sweep_names
from trainpilot.benchmarking.timing import StepTiming, TimingLimits, label_of, measure_steps

__all__ = [
    "STATUSES",
    "Configuration",
    "EnergyMeter",
    "Measurement",
    "NoMeter",
    "OperatorTiming",
    "PlannedRow",
    "ReplayMeter",
    "Site",
    "StepTiming",
    "Sweep",
    "SweepProgress",
    "SweepSummary",
    "TimingLimits",
    "ZeusMeter",
    "label_of",
    "load_sweep",
    "measure_steps",
    "parse_shard",
    "plan_sweep",
    "run_sweep",
    "sweep_names",
    "this_site",
]
