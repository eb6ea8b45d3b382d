"""Few rows on a new machine: the reference predictor, calibration figures and k local rows, against local rows alone.

    python benchmarks/few_rows.py --dataset datasets/FOLDER [--machine ID] [--rows 0,10,50,150] [--seeds 5] [--json]

The machine with the fewest rows (or the one named) is the new one, and the reference is fitted on the others. With one
machine in a dataset, its rows on one thread stand for the machine that the reference was measured on, and its rows on
all threads for the new one: their rates differ by class of operator as those of two machines do, and each has
calibration figures of its own. No workload is on both sides. Errors are those on all rows of the new machine that were
not among the k.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from trainpilot.predictors.baselines import METHODS
from trainpilot.predictors.crossfit import errors_of
from trainpilot.predictors.fitting import fit_predictor
from trainpilot.predictors.folds import OPERATOR_FAMILY
from trainpilot.predictors.labels import Labels, clean
from trainpilot.predictors.model import TargetModel
from trainpilot.predictors.table import WorkTable
from trainpilot.predictors.targets import STEP_TIME, price_step_s
from trainpilot.predictors.transfer import adapt, moved
from trainpilot.store import dataset_frame, dataset_operators

BACKEND = "cpu"
NEW = "new machine"


def as_new_machine(labels: Labels) -> Labels:
    """The same rows, said to be of another machine and on one thread."""
    table = labels.table
    renamed = {context: context._replace(machine_id=NEW, threads=1) for context in set(table.context)}
    contexts = np.empty(len(table), dtype=object)
    contexts[:] = [renamed[context] for context in table.context]
    figures = {renamed[context]: values for context, values in labels.figures.items() if context in renamed}
    return dataclasses.replace(labels, table=dataclasses.replace(table, context=contexts), figures=figures)


def part(labels: Labels, rows: np.ndarray[Any, Any]) -> Labels:
    """Some of the rows."""
    values = {name: found[rows] for name, found in labels.values.items()}
    table = labels.table.take(rows)
    operators = None if labels.operators is None else labels.operators.of(set(table.workload_hash), set(table.context))
    return dataclasses.replace(labels, table=table, values=values, rows=len(rows), operators=operators)


def without(table: WorkTable, workloads: set[str]) -> np.ndarray[Any, Any]:
    """Positions of the steps whose workload is not among some."""
    return np.array([row for row in range(len(table)) if table.model_hash[row] not in workloads])


def main() -> None:
    """Measure the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="Parquet file or folder")
    parser.add_argument("--machine", help="id of the machine that is the new one")
    parser.add_argument("--rows", default="0,10,50,150", help="numbers of local rows")
    parser.add_argument("--seeds", type=int, default=5, help="random choices of the local rows")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    frame = dataset_frame(options.dataset)
    frame = frame[(frame["backend"] == BACKEND) & (frame["phase"] == "train_step")]
    counts = frame["machine_id"].value_counts()
    if options.machine is not None and options.machine not in counts:
        parser.error(f"no row of machine {options.machine}: {', '.join(counts.index)}")
    timings = dataset_operators(options.dataset)
    if len(counts) > 1:
        name = options.machine or counts.index[-1]
        new = clean(frame[frame["machine_id"] == name])
        old = clean(frame[frame["machine_id"] != name], timings)
    else:
        new = as_new_machine(clean(frame[frame["threads"] == int(frame["threads"].max())]))
        old = clean(frame[frame["threads"] == 1], timings)
    old = part(old, without(old.table, set(new.table.model_hash)))
    reference = fit_predictor(BACKEND, old, n_jobs=1)
    settings = {tuple(context)[1:] for context in reference.contexts}
    judged = np.array(
        [
            row
            for row in range(len(new.table))
            if new.table.family[row] != OPERATOR_FAMILY and tuple(new.table.context[row])[1:] in settings
        ]
    )
    new = part(new, judged)
    truth = new.values[STEP_TIME.name]
    points = []
    for count in map(int, options.rows.split(",")):
        errors: dict[str, list[np.ndarray[Any, Any]]] = {}
        for seed in range(options.seeds if count else 1):
            chosen = np.random.default_rng(seed).permutation(len(truth))[:count]
            rest = np.setdiff1d(np.arange(len(truth)), chosen)
            held, local = new.table.take(rest), part(new, chosen)
            found = {"calibration alone": price_step_s(held, new.figures).sum(axis=1)}
            if count:
                found["reference and local rows"] = adapt(reference, local).predict(held)
                own = TargetModel(STEP_TIME).fit(local.table, local.values[STEP_TIME.name], new.figures)
                found["local rows alone"] = own.predict(held)
                found["plain XGBoost on local rows"] = METHODS["plain_xgboost"](
                    local.table, local.values[STEP_TIME.name], held, new.figures
                )
            else:
                values = np.zeros(len(held))
                for context in set(held.context):
                    mine = np.array([found == context for found in held.context])
                    step = moved(reference, context, new.figures[context]).step
                    values[mine] = step.predict(held.take(mine))
                found["reference and local rows"] = values
            for name, values in found.items():
                errors.setdefault(name, []).append(np.log(truth[rest] / values))
        points.append({"rows": count, **{name: errors_of(np.concatenate(all_)) for name, all_ in errors.items()}})
    if options.json:
        print(json.dumps({"schema": 1, "judged": len(truth), "points": points}, indent=1))
        return
    for point in points:
        print(f"{point['rows']} local rows")
        for name, metrics in point.items():
            if name != "rows":
                print(f"  {name:30} mean {metrics['mape']:.1%} median {metrics['median_ape']:.1%}")


if __name__ == "__main__":
    main()
