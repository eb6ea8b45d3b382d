"""The operator level: joining timings to traces, and prices learned from them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.predictors.rows import frame, measurement
from trainpilot.benchmarking import OperatorTiming
from trainpilot.errors import ArtifactError, PredictorError
from trainpilot.predictors import operators
from trainpilot.predictors.amounts import AMOUNT_INDEX
from trainpilot.predictors.artifact import OPERATORS_FILE, load_predictor, save_predictor
from trainpilot.predictors.fitting import fit_predictor
from trainpilot.predictors.groups import GROUP_FEATURES, KINDS, StepGroups
from trainpilot.predictors.labels import clean
from trainpilot.predictors.operator_labels import operator_labels
from trainpilot.predictors.operators import OperatorModel
from trainpilot.predictors.table import table_of_frame

# The law of these tests: what a product and an update cost, in s.
FLOP_S, UPDATE_BYTE_S, CALL_S = 5e-11, 2e-10, 4e-6


def product(m, n, k, *, calls=1, phase="forward", op="aten.addmm"):
    return {
        "op": op,
        "op_class": "matmul",
        "phase": phase,
        "calls": calls,
        "flops": 2 * m * n * k * calls,
        "bytes_read": 4 * (m * k + k * n) * calls,
        "bytes_written": 4 * m * n * calls,
        "shape": {"m": m, "n": n, "k": k, "batch": 1},
    }


def update(elements, *, op="aten.add_"):
    return {
        "op": op,
        "op_class": "optimizer",
        "phase": "optimizer",
        "calls": 2,
        "flops": 0,
        "bytes_read": 8 * elements,
        "bytes_written": 4 * elements,
        "shape": {"elements": elements, "tensors": 2},
    }


def timing(op, phase, shapes, time_s, calls=1, agrees=True):
    return OperatorTiming(op, phase, "matmul", shapes, calls, time_s, 1.0, agrees)


def time_s(group):
    traffic = group["bytes_read"] + group["bytes_written"]
    return group["flops"] * FLOP_S + group["calls"] * CALL_S + (UPDATE_BYTE_S * traffic if not group["flops"] else 0.0)


def row_of(groups, timings=(), **changes):
    row = measurement(groups, sum(map(time_s, groups)), **changes)
    return row, {row.row_id: list(timings)}


def labels_of(row, timings, factor=1.0):
    return operator_labels([dataclasses.asdict(row)], timings, {row.row_id: factor})


def test_calls_are_joined_by_operator_phase_and_sizes():
    groups = [product(8, 16, 32), product(8, 4, 32), product(16, 32, 8, phase="backward", op="aten.mm"), update(100)]
    timings = [
        timing("aten.addmm", "forward", [[4], [8, 32], [32, 4]], 2e-6),
        timing("aten.addmm", "forward", [[16], [8, 32], [32, 16]], 1e-6),
        timing("aten.mm", "backward", [[16, 8], [8, 32]], 3e-6),
        timing("aten.add_.Tensor", "optimizer", [[100], [100]], 4e-6, calls=2),
        timing("aten.view", "forward", [[100]], 9e-6),  # not in the trace
    ]
    found = labels_of(*row_of(groups, timings))
    assert [KINDS[kind] for kind in found.kind] == ["matmul"] * 3 + ["optimizer"]
    flops = found.amounts[:, [AMOUNT_INDEX["gemm.forward.flops"], AMOUNT_INDEX["gemm.backward.flops"]]].toarray()
    pairs = {(time_s, *row) for time_s, row in zip(found.time_s.tolist(), flops.tolist(), strict=True)}
    assert pairs == {
        (2e-6, 2 * 8 * 4 * 32, 0.0),
        (1e-6, 2 * 8 * 16 * 32, 0.0),
        (3e-6, 0.0, 2 * 16 * 32 * 8),
        (4e-6, 0.0, 0.0),
    }
    # 12 bytes an element in two calls, of which the four that are written are in place.
    assert found.amounts[[3], [AMOUNT_INDEX["optimizer.bytes0"]]] == [1200]


def test_sizes_that_do_not_match_are_taken_together_if_the_calls_do():
    groups = [product(8, 16, 32), product(8, 4, 32)]
    unlike = timing("aten.addmm", "forward", [[1], [1, 1], [1, 1]], 5e-6, calls=2)
    found = labels_of(*row_of(groups, [unlike]))
    assert found.time_s.tolist() == [5e-6]
    assert found.amounts[[0], [AMOUNT_INDEX["gemm.calls"]]] == [2]
    assert labels_of(*row_of(groups, [dataclasses.replace(unlike, calls=3)])) is None


def test_times_that_do_not_agree_with_their_step_are_no_labels():
    alone = timing("aten.addmm", "forward", [[16], [8, 32], [32, 16]], 1e-6, agrees=False)
    assert labels_of(*row_of([product(8, 16, 32)], [alone])) is None


def test_what_slowed_down_the_row_is_divided_out_of_its_operators():
    alone = timing("aten.addmm", "forward", [[16], [8, 32], [32, 16]], 1e-6)
    assert labels_of(*row_of([product(8, 16, 32)], [alone]), factor=0.5).time_s.tolist() == [5e-7]


def test_another_batch_size_scales_all_but_the_update():
    whole = StepGroups([product(8, 16, 32), update(100)]).arrays
    half = StepGroups([product(8, 16, 32), update(100)], batch_scale=0.5).arrays
    kinds = whole.kind[whole.group]
    ratio = half.amount / whole.amount
    fixed = (kinds == KINDS.index("optimizer")) | (whole.column == AMOUNT_INDEX["gemm.calls"])
    assert (ratio[fixed] == 1).all()
    assert (ratio[~fixed] == 0.5).all()
    assert whole.features.shape == (2, len(GROUP_FEATURES))


def test_features_of_a_group_by_hand():
    arrays = StepGroups([product(8, 16, 32, calls=3, phase="backward")]).arrays
    named = dict(zip(GROUP_FEATURES, arrays.features[0].tolist(), strict=True))
    traffic = 4 * (8 * 32 + 32 * 16 + 8 * 16)
    logs = {"flops": 2 * 8 * 16 * 32, "bytes": traffic, "thinnest": 8, "m": 8, "n": 16, "k": 32, "batch": 1}
    for name, value in logs.items():
        assert named[name] == pytest.approx(math.log1p(value), rel=1e-6)
    assert named["intensity"] == pytest.approx(math.log((3 * 8192 + 1) / (3 * traffic + 1)), rel=1e-6)
    assert (named["phase"], named["kind=matmul"], named["kind=conv"], named["cin"]) == (1, 1, 0, -1)


def timed(families=6, models=12):
    """Steps of products and updates, timed operator by operator by the law."""
    random = np.random.default_rng(0)
    rows, timings = [], {}
    for family in range(families):
        for model in range(models):
            sizes = (2 ** random.uniform(4, 9, (5, 3))).astype(int).tolist()
            groups = [product(*size) for size in sizes] + [update(m * n) for m, n, _ in sizes]
            row, own = row_of(
                groups,
                [
                    *(
                        timing("aten.addmm", "forward", [[n], [m, k], [k, n]], time_s(product(m, n, k)))
                        for m, n, k in sizes
                    ),
                    *(
                        timing("aten.add_.Tensor", "optimizer", [[m * n]], time_s(update(m * n)), calls=2)
                        for m, n, _ in sizes
                    ),
                ],
                family=f"family{family}",
                model=f"{family}-{model}",
            )
            rows.append(row)
            timings |= own
    return rows, timings


@pytest.fixture(scope="module")
def learned():
    rows, timings = timed()
    labels = clean(frame(rows), timings)
    return labels, OperatorModel.fit(labels.operators, labels.figures)


def test_prices_of_operators_follow_the_law(learned):
    labels, model = learned
    random = np.random.default_rng(1)
    sizes = (2 ** random.uniform(4.5, 8.5, (40, 3))).astype(int).tolist()
    rows = [row_of([product(*size), update(size[0] * size[1])], model=str(size))[0] for size in sizes]
    parts = model.parts(table_of_frame(frame(rows)), labels.figures)
    products = parts[:, [position for name, position in AMOUNT_INDEX.items() if name.startswith("gemm")]].sum(axis=1)
    updates = parts[:, [position for name, position in AMOUNT_INDEX.items() if name.startswith("opt")]].sum(axis=1)
    for found, truth in (
        (products, [time_s(product(*size)) for size in sizes]),
        (updates, [time_s(update(size[0] * size[1])) for size in sizes]),
    ):
        assert np.abs(np.log(found / truth)).mean() < 0.05


def test_a_step_takes_what_its_operators_take_in_whatever_table_it_comes(learned):
    labels, model = learned
    whole = model.parts(labels.table, labels.figures)
    for position in (0, 7):
        alone = model.parts(labels.table.take(np.array([position])), labels.figures)
        np.testing.assert_array_equal(alone[0], whole[position])


def test_a_step_without_operations_takes_no_time(learned):
    labels, model = learned
    empty = dataclasses.replace(
        labels.table.take(np.array([0])),
        work=np.zeros((1, labels.table.work.shape[1])),
        groups=_steps([StepGroups([])]),
    )
    assert not model.parts(empty, labels.figures).any()


def _steps(found):
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array


@pytest.fixture(scope="module")
def fitted():
    before = operators.LEAST_LABELS
    operators.LEAST_LABELS = 100
    try:
        rows, timings = timed()
        labels = clean(frame(rows), timings)
        yield labels, fit_predictor("cpu", labels, n_jobs=1)
    finally:
        operators.LEAST_LABELS = before


def test_steps_are_the_sums_of_their_operators(fitted):
    _, predictor = fitted
    assert predictor.step.operators_ is not None
    held = predictor.step.held_out_
    errors = held.errors(predictor.step.shrinkage_)[held.kind == "family"]
    assert np.abs(np.expm1(-errors)).mean() < 0.06


def test_few_timed_operators_leave_the_prices_to_the_steps():
    rows, timings = timed(families=2, models=2)
    predictor = fit_predictor("cpu", clean(frame(rows), timings), n_jobs=1)
    assert predictor.step.operators_ is None


def test_a_stored_operator_level_gives_the_same_numbers(fitted, tmp_path):
    labels, predictor = fitted
    save_predictor(predictor, tmp_path / "stored")
    again = load_predictor(tmp_path / "stored")
    np.testing.assert_array_equal(predictor.step.predict(labels.table), again.step.predict(labels.table))


def test_a_foreign_booster_of_operators_is_refused(fitted, tmp_path):
    _, predictor = fitted
    save_predictor(predictor, tmp_path / "stored")
    (tmp_path / "stored" / OPERATORS_FILE).write_bytes(b"{")
    with pytest.raises(ArtifactError, match=OPERATORS_FILE):
        load_predictor(tmp_path / "stored")
    (tmp_path / "stored" / OPERATORS_FILE).unlink()
    with pytest.raises(ArtifactError, match=OPERATORS_FILE):
        load_predictor(tmp_path / "stored")


def test_prices_of_unknown_operators_are_refused(fitted):
    _, predictor = fitted
    card = predictor.step.operators_.to_card()
    with pytest.raises(PredictorError, match="magic"):
        OperatorModel.from_card({"magic": card["matmul"]}, predictor.step.operators_.boosted)


def test_more_work_never_takes_less_time(fitted):
    _, predictor = fitted
    sizes = [16, 32, 64, 128, 256]
    rows = [row_of([product(size, 64, 64), update(4096)], model=str(size))[0] for size in sizes]
    model = predictor.step
    totals = model.operators_.parts(table_of_frame(frame(rows)), {}).sum(axis=1)
    assert (np.diff(totals) >= 0).all()
