"""The estimator of one target: extrapolation, shrinkage, range, intervals."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.predictors.rows import CALL_S, STEP_S, dataset, frame, group, law_s, measurement, model_step, step
from trainpilot.errors import NotFittedError, PredictorError
from trainpilot.predictors.crossfit import HeldOut, Shrinkage, learn_shrinkage
from trainpilot.predictors.folds import family_folds, family_groups, model_folds, size_folds
from trainpilot.predictors.labels import clean
from trainpilot.predictors.model import TargetModel
from trainpilot.predictors.splits import Splits
from trainpilot.predictors.table import WorkTable, table_of_frame
from trainpilot.predictors.targets import PEAK_MEMORY, STEP_TIME, price_step_s


def fit(rows):
    labels = clean(frame(rows))
    return TargetModel(n_jobs=1).fit(labels.table, labels.values["step_time_s"], labels.figures)


def table(*rows):
    return table_of_frame(frame(rows))


def flops_only(size, **changes):
    return measurement([group("matmul", flops=size * 1e9, calls=1)], 2e-2 * size, model=f"{size:g}", **changes)


def test_c01_time_beyond_the_data_goes_on_and_says_so():
    model = fit([flops_only(size) for size in range(1, 101)])
    inside, beyond = model.forecast(table(flops_only(50), flops_only(1000)))
    assert inside.value == pytest.approx(1.0, rel=0.05)
    assert inside.in_range
    assert beyond.value == pytest.approx(20.0, rel=0.15)
    assert not beyond.in_range
    assert inside.low is not None
    assert beyond.low is not None
    assert beyond.high / beyond.low > inside.high / inside.low
    assert beyond.notes == ("out of range: 1e+12 matmul FLOPs a step are 10 times the largest measured (1e+11)",)
    far = model.predict(table(flops_only(200), flops_only(10_000)))
    np.testing.assert_allclose(far, [4.0, 200.0], rtol=0.15)


def test_unseen_families_are_predicted_by_the_law(labels, predictor):
    metrics = predictor.step.metrics_["family"]
    assert metrics["groups"] == 10
    assert metrics["median_ape"] < 0.05
    assert 0.8 <= metrics["coverage"] <= 1.0
    held = predictor.step.held_out_.of_kind("family")
    errors = held.base - predictor.step.shrinkage_.factor(held.distance) * held.correction
    family = np.array([labels.table.family[row] for row in held.row])
    # 3% label noise; the law is additive, so a family whose operators others have too is hardly harder than a seen one.
    shared = np.isin(family, ["cnn", "resnet", "unet", "vgg", "transformer", "vit", "mlp"])
    assert np.abs(np.expm1(-errors[shared])).mean() < 0.06
    # The operators of the others are in no other family, so they keep the order of magnitude they begin with.
    for lone in ("lstm", "mobilenet", "embedding"):
        assert abs(errors[family == lone].mean()) < np.log(2)


def test_c07_bounds_are_in_order_and_positive(labels, predictor):
    for forecast in predictor.step.forecast(labels.table):
        assert 0 < forecast.low <= forecast.value <= forecast.high


def test_e02_an_optimizer_that_touches_everything_costs_time_although_it_has_no_flops(predictor):
    # 6.4 million parameters of which a step uses few: 16,384 matmul FLOPs forward, a dense update of everything.
    forward = {"matmul": (16_384.0, 4e4, 1.0), "embedding": (0.0, 3e5, 1.0)}
    groups = step(forward, params=6_400_130.0)
    row = measurement(groups, None, family="embedding", model="emb", params=6_400_130.0)
    predicted = float(predictor.step.predict(table(row))[0])
    # No measured update moves as much in one call, so that part of it keeps the dearer prices of fresh memory.
    assert predicted == pytest.approx(law_s(groups), rel=0.3)
    flops = sum(item["flops"] for item in groups)
    plain = measurement([group("matmul", flops=flops, calls=3)], None)
    overhead = STEP_S + 3 * CALL_S
    by_flops = float(predictor.step.predict(table(plain))[0]) - overhead
    assert predicted > 50 * by_flops


def test_c05_a_step_without_any_flops_takes_time(predictor):
    # An embedding bag that reads 28 rows of 16 floats: 1,792 bytes and no FLOPs.
    row = measurement([group("embedding", size=1792, calls=1)], None, model="bag", params=16_000.0)
    forecast = predictor.step.forecast(table(row))[0]
    assert forecast.value > 0
    assert math.isfinite(forecast.value)


def curved(rows, bend):
    """Labels times a factor that no sum of parts can express: it depends on the mix of the work."""
    found = []
    for row in rows:
        shares = {
            name: sum(item["flops"] for item in row.op_groups if item["op_class"] == name)
            for name in ("conv", "matmul")
        }
        part = shares["conv"] / max(1.0, sum(shares.values()))
        found.append(dataclasses.replace(row, step_time_s=row.step_time_s * (1 + bend * math.sin(9 * part))))
    return found


def spread_mixes(count=160, seed=3):
    """Models of ten families whose share of convolutions is anything from none to all."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        part, work = rng.uniform(0, 1), 10 ** rng.uniform(9.5, 11)
        forward = {
            "conv": (part * work / 4, part * work / 40, 5.0),
            "matmul": ((1 - part) * work, (1 - part) * work / 40, 5.0),
        }
        groups = step(forward, params=1e5)
        rows.append(
            measurement(
                groups,
                law_s(groups) * float(np.exp(rng.normal(0, 0.01))),
                family=f"f{number % 10}",
                model=str(number),
            )
        )
    return rows


def test_the_correction_is_used_where_it_helps_on_unseen_families():
    model = fit(curved(spread_mixes(), bend=0.4))
    metrics = model.metrics_["family"]
    assert model.shrinkage_.weight > 0
    assert metrics["mape"] < 0.8 * metrics["additive"]["mape"]


def test_the_correction_is_left_out_where_it_does_not_help(predictor):
    assert predictor.step.shrinkage_.weight == 0
    assert predictor.parts_in_use.startswith("additive model alone")


def held_out(base, correction, distance, kind="family"):
    count = len(base)
    return HeldOut(
        row=np.arange(count),
        kind=np.full(count, kind, dtype=object),
        family=np.array([f"f{i % 5}" for i in range(count)], dtype=object),
        model=np.array([f"m{i}" for i in range(count)], dtype=object),
        workload=np.array([f"w{i}" for i in range(count)], dtype=object),
        base=np.asarray(base, dtype=float),
        correction=np.asarray(correction, dtype=float),
        distance=np.asarray(distance, dtype=float),
        extrapolation=np.zeros(count),
        in_range=np.ones(count, dtype=bool),
    )


def test_the_shrinkage_falls_with_distance_where_the_correction_only_carries_near():
    distance = np.tile([0.1, 8.0], 50)
    base = np.where(distance < 1, 0.3, -0.3)
    found = learn_shrinkage(held_out(base, np.full(100, 0.3), distance))
    assert found.weight == 1.0
    assert found.factor(np.array([0.1]))[0] > 0.8
    assert found.factor(np.array([8.0]))[0] < 0.02


def test_the_shrinkage_does_not_fall_where_the_correction_carries_everywhere():
    found = learn_shrinkage(held_out(np.full(100, 0.3), np.full(100, 0.3), np.tile([0.1, 8.0], 50)))
    assert found == Shrinkage(1.0, np.inf)


def test_a_correction_that_hurts_unseen_families_is_left_out():
    near = held_out(np.full(400, 0.3), np.full(400, 0.3), np.full(400, 0.1), kind="model")
    unseen = held_out(np.full(100, -0.05), np.full(100, 0.3), np.full(100, 0.1))
    assert learn_shrinkage(HeldOut.join([near, unseen])).weight == 0


@given(st.floats(0.1, 300.0), st.integers(0, 159))
@settings(max_examples=40, deadline=None)
def test_more_of_the_same_work_never_takes_less_time(factor, number):
    model = _CURVED[0]
    work = _CURVED[1].take(np.array([number]))
    grown = WorkTable(
        **{**{f.name: getattr(work, f.name) for f in dataclasses.fields(work)}, "work": _grow(work.work, factor)}
    )
    small, large = (work, grown) if factor >= 1 else (grown, work)
    before, after = model.predict(small)[0], model.predict(large)[0]
    assert np.isfinite(after)
    assert 0 < before <= after * (1 + 1e-12)


def _grow(work, factor):
    from trainpilot.predictors.terms import WORK_COLUMNS

    scale = np.array([1.0 if name.startswith("calls") else factor for name in WORK_COLUMNS])
    return work * scale


_CURVED = []


@pytest.fixture(autouse=True, scope="module")
def _curved_model():
    rows = curved(spread_mixes(), bend=0.4)
    _CURVED.extend([fit(rows), table_of_frame(frame(rows))])
    assert _CURVED[0].shrinkage_.weight > 0


def test_deterministic(labels, predictor):
    again = TargetModel(n_jobs=1).fit(labels.table, labels.values["step_time_s"], labels.figures)
    np.testing.assert_array_equal(again.predict(labels.table), predictor.step.predict(labels.table))


def test_the_number_of_threads_does_not_matter_to_the_bit():
    labels = clean(frame(curved(spread_mixes(60), bend=0.4)))
    one, two = (
        TargetModel(n_jobs=jobs).fit(labels.table, labels.values["step_time_s"], labels.figures) for jobs in (1, 2)
    )
    assert one.boosted_.booster_.save_raw("ubj") == two.boosted_.booster_.save_raw("ubj")
    np.testing.assert_array_equal(one.held_out_.correction, two.held_out_.correction)
    np.testing.assert_array_equal(one.predict(labels.table), two.predict(labels.table))


def test_targets_may_share_their_splits(labels):
    splits = Splits.of(labels.table, labels.figures)
    for target in (STEP_TIME, PEAK_MEMORY):
        values = labels.values[target.name]
        shared = TargetModel(target, n_jobs=1).fit(labels.table, values, labels.figures, splits)
        alone = TargetModel(target, n_jobs=1).fit(labels.table, values, labels.figures)
        assert shared.metrics_ == alone.metrics_
        assert list(shared.forecast(labels.table)) == list(alone.forecast(labels.table))


@pytest.mark.parametrize("reach", [np.inf, 2.0])
def test_a_step_gets_exactly_what_it_gets_in_a_batch(reach):
    model, steps = _CURVED
    rng = np.random.default_rng(0)
    # More than a chunk, half of it far from anything measured.
    many = steps.take(rng.integers(0, len(steps), 1100))
    many = dataclasses.replace(
        many, work=many.work * np.exp(rng.normal(0, 1, many.work.shape) * (rng.random((1100, 1)) < 0.5))
    )
    shrinkage, model.shrinkage_ = model.shrinkage_, Shrinkage(0.8, reach)
    try:
        batch = model.forecast(many)
        np.testing.assert_array_equal(model.predict(many), batch.value)
        for row in rng.integers(0, len(many), 40).tolist():
            assert model.forecast(many.take(np.array([row])))[0] == batch[row]
    finally:
        model.shrinkage_ = shrinkage


def test_forecasts_are_a_sequence(labels, predictor):
    found = predictor.step.forecast(labels.table)
    assert len(found) == len(labels.table)
    assert found[-1] == found[len(found) - 1] == list(found)[-1]
    assert found[:3] == [found[0], found[1], found[2]]
    assert list(found.in_range) == [forecast.in_range for forecast in found]
    with pytest.raises(IndexError):
        found[len(found)]


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 3.0))
@settings(max_examples=60, deadline=None)
def test_whether_a_mix_is_unlike_is_the_same_as_by_the_distance_to_the_nearest(seed, spread):
    domain = _CURVED[0].domain_
    rng = np.random.default_rng(seed)
    points = domain.mixes[rng.integers(0, len(domain.mixes), 30)]
    points = points + rng.normal(0, spread * domain.scale, points.shape)
    apart = np.sqrt(((points[:, None] - domain.mixes) ** 2).sum(axis=2)).min(axis=1) / domain.scale
    np.testing.assert_allclose(domain.nearest(points)[0], apart)
    decided = np.abs(apart - 4.0) > 1e-9
    np.testing.assert_array_equal(domain._unlike(points)[decided], (apart > 4.0)[decided])


def test_the_order_of_rows_does_not_matter(labels, predictor):
    order = np.random.default_rng(0).permutation(len(labels.table))
    again = TargetModel(n_jobs=1).fit(labels.table.take(order), labels.values["step_time_s"][order], labels.figures)
    np.testing.assert_allclose(again.predict(labels.table), predictor.step.predict(labels.table), rtol=1e-4)


def test_a_planted_shift_of_the_labels_shows_in_the_error(labels, predictor):
    shifted = np.roll(labels.values["step_time_s"], 7)
    model = TargetModel(n_jobs=1).fit(labels.table, shifted, labels.figures)
    assert model.metrics_["family"]["mape"] > 5 * predictor.step.metrics_["family"]["mape"]


def test_a_family_that_was_dropped_is_out_of_range(labels, predictor):
    dropped = labels.table.family != "mobilenet"
    model = TargetModel(n_jobs=1).fit(labels.table.take(dropped), labels.values["step_time_s"][dropped], labels.figures)
    asked = labels.table.take(~dropped)
    assert all(forecast.in_range for forecast in predictor.step.forecast(asked))
    forecasts = model.forecast(asked)
    outside = [forecast for forecast in forecasts if not forecast.in_range]
    assert len(outside) > len(forecasts) / 2
    assert any("depthwise FLOPs a step, but no measured workload has any" in note for note in outside[0].notes)


def test_too_few_rows_for_an_interval_say_so():
    rows = dataset(families=("mlp", "cnn"), models=2, batches=(8,))
    forecast = fit(rows).forecast(table(rows[0]))[0]
    assert (forecast.low, forecast.high) == (None, None)
    assert "no valid interval: the predictor was tried on" in forecast.notes[-1]


def test_bad_labels_and_asking_before_the_fit(labels):
    with pytest.raises(PredictorError):
        TargetModel().fit(labels.table, np.zeros(3), labels.figures)
    with pytest.raises(PredictorError):
        TargetModel().fit(labels.table, np.zeros(len(labels.table)), labels.figures)
    with pytest.raises(NotFittedError):
        TargetModel().forecast(labels.table)


# --- groups -----------------------------------------------------------------------------------------------------------


def all_folds(steps):
    return [*family_folds(steps), *model_folds(steps), *size_folds(steps, price_step_s(steps, {}).sum(axis=1))]


def test_c06_no_model_is_on_both_sides_of_any_split(labels):
    folds = all_folds(labels.table)
    assert {fold.kind for fold in folds} == {"family", "model", "size"}
    for fold in folds:
        assert len(fold.held)
        assert len(fold.train)
        held, train = labels.table.take(fold.held), labels.table.take(fold.train)
        assert not set(held.model_hash) & set(train.model_hash)
        assert not set(held.workload_hash) & set(train.workload_hash)
        if fold.kind == "family":
            assert not set(held.family) & set(train.family)


def test_c06_every_model_is_held_out_exactly_once(labels):
    for folds in (family_folds(labels.table), model_folds(labels.table)):
        held = np.concatenate([fold.held for fold in folds])
        assert sorted(held) == list(range(len(labels.table)))


def test_c06_the_reported_score_is_the_grouped_one():
    # 30 models with an effect of their own that no feature explains, ten rows each.
    rng = np.random.default_rng(0)
    rows = []
    for number in range(30):
        effect, flops = float(rng.normal(0, 1)), 10 ** rng.uniform(9, 11)
        for variant in range(10):
            groups = [group("matmul", flops=flops * (1 + 0.1 * (variant % 4)), calls=1)]
            seconds = law_s(groups) * math.exp(effect + rng.normal(0, 0.05))
            rows.append(
                measurement(
                    groups, seconds, model=str(number), family=f"f{number % 3}", workload_hash=f"{number}-{variant}"
                )
            )
    metrics = fit(rows).metrics_
    for kind in ("model", "family"):
        assert metrics[kind]["median_ape"] > 0.4


def test_single_operators_are_never_held_out_and_users_models_are_families_of_their_own():
    operators = dataset(families=("mlp",), models=3, batches=(8,))
    rows = [dataclasses.replace(row, family="operator", model_hash=f"op{i}") for i, row in enumerate(operators)]
    own = [dataclasses.replace(row, family="custom", model_hash=f"c{i}") for i, row in enumerate(operators)]
    steps = table(*rows, *own)
    assert set(family_groups(steps)) == {"operator", "custom c0", "custom c1", "custom c2"}
    folds = family_folds(steps)
    assert len(folds) == 3
    for fold in folds:
        assert not set(fold.held) & {0, 1, 2}
        assert {0, 1, 2} <= set(fold.train)


def test_fewer_than_two_groups_cannot_be_split():
    groups, params = model_step("mlp", 64, 8, 3)
    steps = table(*(measurement(groups, 0.1, batch_size=batch, params=params) for batch in (8, 16, 32)))
    assert all_folds(steps) == []
