"""Figures of the measuring harness, in one run with nothing else on the machine.

    python benchmarks/harness.py [--sweep standard] [--shard I/N] [--budget SECONDS] [--only noise|share|guard]
        [--store URL]

Prints, as one JSON document:

* label noise of the ``noise`` sweep on one thread and on all: mean |first / second - 1| of the median of one round's
  windows and of the label as predictors learn it, from one round and from two, and the ratio of the last to the first;
* the share of the wall time of a sweep that is spent inside steps: timed, warm-up and first ones, and those timed
  operator by operator. All else counts against it: starting workers, tracing, building models, control runs, the
  store. Probing the machine comes once, before a first sweep, and is told apart;
* the share of rounds that the contention guard marks without and with a spinning process on another core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trainpilot.benchmarking import load_sweep, parse_shard, this_site
from trainpilot.store import LEARNED, NoiseReport, TimingStore, benchmark, noise_report, open_store

_GUARD_SWEEP = """
description = "Short configurations, to see which rounds the guard marks"
rounds = 3
[timing]
target_s = 0.3
warmup_s = 0.1
[[space]]
model = "mlp"
threads = [1, "all"]
batch_size = [16, 64, 256]
[[space]]
model = "small_cnn"
threads = [1, "all"]
batch_size = [8, 32]
"""
_SPIN = "while True: pass"


def noise_figures(store: TimingStore, cores: int) -> dict[str, Any]:
    """Label noise by number of threads, contended rounds left out."""
    summary = benchmark("noise", store=store, resume=False)
    report = noise_report(store, sweep="noise")
    groups = {"1 thread": "1 thread", "all threads": f"{cores} threads"}
    return {
        "rows": summary.counts,
        "contended": report.contended,
        **{name: _group_figures(report, group) for name, group in groups.items()},
    }


def _group_figures(report: NoiseReport, group: str) -> dict[str, Any]:
    """The label as predictors learn it, from one round and from two, against the median of one round's windows.

    How windows and rounds become a label is chosen for each configuration on the other ones.
    """
    found = {entry.statistic: entry.mean for entry in report.entries if entry.group == group}
    plain = found.get("median")
    one, two = found.get(LEARNED), found.get(f"{LEARNED}, 2 rounds")
    return {
        "median_of_one_window_series": plain,
        "label_of_one_round": one,
        "label_of_two_rounds": two,
        "ratio": None if not plain or two is None else two / plain,
        "rule": report.rules.get(group),
        "best_statistic": min(found, key=lambda name: found[name], default=None),
    }


def share_in_steps(store: TimingStore, sweep: str, budget_s: float | None, shard: tuple[int, int]) -> dict[str, Any]:
    """Share of the wall time that a sweep spends inside training steps."""
    begin = time.monotonic()
    summary = benchmark(sweep, store=store, resume=False, budget_s=budget_s, shard=shard)
    return {
        "sweep": sweep,
        "rows": summary.measured,
        "stopped": summary.stopped,
        "elapsed_s": summary.elapsed_s,
        "before_the_first_row_s": time.monotonic() - begin - summary.elapsed_s,
        "share": summary.stepping_s / summary.elapsed_s,
    }


def guard_figures(store: TimingStore, folder: Path) -> dict[str, float]:
    """Share of the rounds that are marked on the machine as it is, and beside a spinning process."""
    path = folder / "guard.toml"
    path.write_text(_GUARD_SWEEP, encoding="utf-8")
    sweep = load_sweep(path)
    quiet = benchmark(sweep, store=store, resume=False)
    neighbour = subprocess.Popen([sys.executable, "-c", _SPIN])
    try:
        beside = benchmark(sweep, store=store, resume=False)
    finally:
        neighbour.kill()
        neighbour.wait()
    return {
        "marked_when_quiet": quiet.contended / quiet.measured,
        "marked_beside_a_neighbour": beside.contended / beside.measured,
    }


def main() -> None:
    """Run all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", default="standard", help="sweep whose share of time in steps is measured")
    parser.add_argument("--only", choices=("noise", "share", "guard"), help="one of the three figures")
    parser.add_argument("--budget", type=float, help="time limit of that sweep in s: its shuffled first part then")
    parser.add_argument("--shard", type=parse_shard, default=(1, 1), help="part I/N of that sweep, all of its rounds")
    parser.add_argument(
        "--store", help="URL of a store that keeps the rows of noise and share; default: a temporary one"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures: dict[str, Any] = {}
        temporary = f"sqlite:///{folder / 'harness.sqlite'}"
        if options.only in (None, "guard"):
            with open_store(temporary) as store:
                figures["guard"] = guard_figures(store, folder)
        with open_store(options.store or temporary) as store:
            if options.only in (None, "noise"):
                figures["noise"] = noise_figures(store, this_site().cores)
            if options.only in (None, "share"):
                figures["share_in_steps"] = share_in_steps(store, options.sweep, options.budget, options.shard)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
