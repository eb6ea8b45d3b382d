import json
import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainpilot import zoo
from trainpilot.benchmarking import Configuration, load_sweep, parse_shard, sweep_names
from trainpilot.benchmarking.sampling import Choice, Derived, Range, space_filling
from trainpilot.errors import UnknownNameError, UsageError


def load(tmp_path, text, name="own"):
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    return load_sweep(path)


def test_lists_are_crossed_and_tables_sampled(tmp_path):
    sweep = load(
        tmp_path,
        """
        [[space]]
        model = "mlp"
        count = 8
        batch_size = [4, 8]
        dtype = ["float32", "bfloat16"]
        settings.width = { low = 16, high = 1024, log = true, multiple = 16 }
        settings.layers = { any = [2, 3] }
        """,
    )
    found = sweep.configurations(cores=2)
    assert len(found) == 8 * 2 * 2
    widths = sorted({c.workload["settings"]["width"] for c in found})
    assert all(width % 16 == 0 and 16 <= width <= 1024 for width in widths)
    # Spread over the logarithm: each of the three factors of four between 16 and 1024 has its share.
    for low in (16, 64, 256):
        assert any(low <= width <= low * 4 for width in widths)
    assert {c.workload["settings"]["layers"] for c in found} == {2, 3}
    assert {(c.workload["batch_size"], c.workload["dtype"]) for c in found} == {
        (b, d) for b in (4, 8) for d in ("float32", "bfloat16")
    }


def test_the_same_seed_gives_the_same_points_and_another_seed_others(tmp_path):
    text = """
    seed = {seed}
    [[space]]
    model = "mlp"
    count = 6
    settings.width = {{ low = 8, high = 4096, log = true }}
    """
    first = load(tmp_path, text.format(seed=1)).configurations(cores=1)
    assert first == load(tmp_path, text.format(seed=1)).configurations(cores=1)
    assert first != load(tmp_path, text.format(seed=2)).configurations(cores=1)


def test_a_longer_design_keeps_the_points_of_the_shorter(tmp_path):
    text = '[[space]]\nmodel = "mlp"\ncount = {count}\nsettings.width = {{ low = 8, high = 4096, log = true }}'
    short = load(tmp_path, text.format(count=5)).configurations(cores=1)
    long = load(tmp_path, text.format(count=9)).configurations(cores=1)
    assert long[:5] == short


def test_a_new_space_leaves_the_others_alone(tmp_path):
    one = '[[space]]\nmodel = "mlp"\ncount = 4\nsettings.width = { low = 8, high = 4096, log = true }\n'
    before = load(tmp_path, one).configurations(cores=1)
    after = load(tmp_path, '[[space]]\nmodel = "op_relu"\n' + one).configurations(cores=1)
    assert set(map(repr, before)) < set(map(repr, after))


def test_a_setting_may_follow_another(tmp_path):
    sweep = load(
        tmp_path,
        """
        [[space]]
        model = "gpt"
        settings.width = [64, 128]
        settings.hidden = { of = "width", times = 4 }
        """,
    )
    found = [c.workload["settings"] for c in sweep.configurations(cores=1)]
    assert [(s["width"], s["hidden"]) for s in found] == [(64, 256), (128, 512)]


def test_threads_follow_the_machine(tmp_path):
    sweep = load(tmp_path, '[[space]]\nmodel = "mlp"\nthreads = [1, 2, "all"]')
    assert [c.threads for c in sweep.configurations(cores=8)] == [1, 2, 8]
    assert [c.threads for c in sweep.configurations(cores=2)] == [1, 2]
    assert [c.threads for c in sweep.configurations(cores=1)] == [1]


def test_backends_are_those_of_the_sweep_unless_named(tmp_path):
    sweep = load(tmp_path, 'backends = ["cpu"]\n[[space]]\nmodel = "mlp"')
    assert [c.backend for c in sweep.configurations(cores=1)] == ["cpu"]
    assert [c.backend for c in sweep.configurations(cores=1, backends=["cuda", "cpu"])] == ["cuda", "cpu"]


def test_ones_own_model_is_found_beside_the_sweep(tmp_path):
    (tmp_path / "net.py").write_text("def build():\n    raise SystemExit('never run here')\n")
    sweep = load(tmp_path, '[[space]]\nmodel = "net.py:build"\ninput = "3x8x8"\nclasses = 4\nbatch_size = [2, 4]')
    first, second = sweep.configurations(cores=1)
    assert first.workload["model"] == f"{tmp_path / 'net.py'}:build"
    assert first.workload["input_spec"]["shape"] == (3, 8, 8)
    assert first.family == "custom"
    assert first.key("m", {}) != second.key("m", {})
    before = first.key("m", {})
    (tmp_path / "net.py").write_text("def build():\n    return 1\n")
    assert Configuration.from_dict(first.to_dict()).key("m", {}) != before


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "own.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"own.toml is not valid TOML"):
        load_sweep(tmp_path / "own.toml")


def test_a_configuration_survives_the_way_to_the_worker(tmp_path):
    import json

    found = load(tmp_path, '[[space]]\nmodel = "gpt"\nbatch_size = 2').configurations(cores=1)[0]
    again = Configuration.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.key("m", {"torch": "2"}) == found.key("m", {"torch": "2"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = 0\n[[space]]\nmodel = 'mlp'", "own.toml: rounds: Input should be greater than"),
        ("round = 2\n[[space]]\nmodel = 'mlp'", "own.toml: round: there is no such key"),
        ("rounds = 2", "own.toml: space: Field required"),
        ("space = []", "own.toml: space: List should have at least 1 item"),
        ("rounds = 1000000\n[[space]]\nmodel = 'mlp'", "own.toml: rounds: Input should be less than"),
        ("[[space]]\nmodel = 'mlp'\nwidth = 8", "own.toml: space.1.width: there is no such key"),
        ("[[space]]\nmodel = 'mlp'\ncount = 1000000000", "own.toml: space.1.count: Input should be less than"),
        ("timeout_s = inf\n[[space]]\nmodel = 'mlp'", "own.toml: timeout_s: Input should be a finite number"),
        ("cap_s = nan\n[[space]]\nmodel = 'mlp'", "own.toml: cap_s: "),
        ("[timing]\nwarmup_s = nan\n[[space]]\nmodel = 'mlp'", "own.toml: timing.warmup_s: "),
        ("[timing]\ntarget_s = -1\n[[space]]\nmodel = 'mlp'", "own.toml: timing: target_s must be positive"),
        ("rounds = = 2", "own.toml is not valid TOML"),
        ("[[space]]\nmodel = 'mlp'\nsettings.width = {low = 9, high = 3}", "low 9 must be less than high 3"),
        ("[[space]]\nmodel = 'mlp'\nsettings.width = {low = 0, high = 3, log = true}", "must start above 0"),
        ("[[space]]\nmodel = 'mlp'\nsettings.width = {low = 9, high = 15, multiple = 8}", "no multiple of 8"),
        ("[[space]]\nmodel = 'mlp'\nbatch_size = []", "must not be empty"),
        ("statistic = 'mode'\n[[space]]\nmodel = 'mlp'", "own.toml: statistic"),
    ],
)
def test_files_that_cannot_be_right(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("model = 'mpl'", r"sweep own, space 1 \(mpl\): unknown model 'mpl': did you mean mlp"),
        ("model = 'mlp'\nsettings.widht = 8", "unknown setting 'widht': did you mean width"),
        ("model = 'mlp'\nsettings.width = 1", "width must be"),
        ("model = 'gpt'\nsettings.width = 100\nsettings.heads = 8", "not divisible by 8 heads"),
        ("model = 'mlp'\noptimizer = 'adamm'", "unknown optimizer 'adamm'"),
        ("model = 'mlp'\ndtype = 'int8'", "dtype 'int8'"),
        ("model = 'mlp'\nmemory_format = 'strange'", "memory format 'strange'"),
        ("model = 'mlp'\nbatch_size = 0", "batch_size must be"),
        ("model = 'mlp'\nbatch_size = -3", "batch_size must be"),
        ("model = 'mlp'\nbatch_size = 2.5", "batch_size must be"),
        ("model = 'mlp'\ncount = 1000000\nbatch_size = [1, 2]", "2000000 configurations are too many"),
        ("model = 'mlp'\nthreads = 'both'", 'threads must be a whole number or "all"'),
        ("model = 'mlp'\nthreads = 0", "threads must be at least 1"),
        ("model = 'mlp'\nphase = 'backward'", "phase must be train_step or forward"),
        (
            "model = 'mlp'\nsettings.width = {of = 'layers', times = 2}",
            "follows 'layers', which the space does not set",
        ),
        ("model = 'x.py:build'\ninput = '3x'", "write the shape of one sample"),
    ],
)
def test_configurations_that_cannot_be_right(tmp_path, space, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, f"[[space]]\n{space}").configurations(cores=2)


def test_an_unknown_sweep_is_answered_with_the_names(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown sweep 'quik': did you mean quick"):
        load_sweep("quik")
    with pytest.raises(UsageError, match="there is no sweep file"):
        load_sweep(tmp_path / "none.toml")


def test_shards_are_read():
    assert parse_shard("2/4") == (2, 4)
    for text in ("0/4", "5/4", "2", "a/b", "1/0", "-1/2"):
        with pytest.raises(UsageError, match="write i/n"):
            parse_shard(text)


@given(st.integers(1, 40), st.integers(0, 10))
def test_designs_fill_the_space(count, seed):
    dimensions = {"a": Range(1.0, 2.0), "b": Choice((1, 2)), "c": Range(8, 512, log=True, multiple=8)}
    points = space_filling(dimensions, count, (seed,))
    assert len(points) == count
    assert points == space_filling(dimensions, count, (seed,))
    assert all(1.0 <= p["a"] <= 2.0 and p["b"] in (1, 2) and 8 <= p["c"] <= 512 and p["c"] % 8 == 0 for p in points)
    if count >= 4:  # every value of a choice and both halves of a range
        assert {p["b"] for p in points} == {1, 2}
        assert {p["a"] < 1.5 for p in points} == {True, False}


@given(st.integers(1, 10_000), st.floats(0.1, 8.0))
def test_derived_numbers_are_whole_and_positive(value, times):
    found = Derived("x", times).at(value)
    assert found >= 1
    assert math.isclose(found, value * times, abs_tol=1.0)


# What comes with the library.


@pytest.mark.parametrize("name", sweep_names())
def test_shipped_sweeps_are_right(name):
    sweep = load_sweep(name)
    assert sweep.description
    assert sweep.rounds >= 2
    assert sweep.configurations(cores=2)


def test_the_names_of_the_issue_are_there():
    assert set(sweep_names()) >= {"quick", "standard", "reference", "operators", "noise"}


def test_quick_covers_every_family_and_holds_out_what_the_quickstart_predicts():
    found = load_sweep("quick").configurations(cores=2)
    assert 40 <= len(found) <= 60
    assert {c.family for c in found} == set(zoo.families())
    small_cnn = zoo.get("small_cnn").resolve_settings({})
    for c in found:
        model, settings = c.workload["model"], c.workload["settings"]
        assert (model, settings.get("width", 0)) != ("gpt", 96)
        assert model != "mlp" or (settings["width"], settings["layers"]) != (384, 3)
        assert model != "small_cnn" or {**settings, "image_size": 0} != {**small_cnn, "image_size": 0}


def test_operators_covers_every_operator():
    found = load_sweep("operators").configurations(cores=2)
    assert {c.workload["model"] for c in found} == {n for n in zoo.names() if zoo.get(n).family == "operator"}


def test_noise_is_24_configurations_four_times():
    sweep = load_sweep("noise")
    found = sweep.configurations(cores=2)
    assert (len(found), sweep.rounds) == (24, 4)
    assert {c.threads for c in found} == {1, 2}


def test_settings_holds_every_cpu_setting_of_each_workload():
    partners = defaultdict(set)
    models = {}
    for c in load_sweep("settings").configurations(cores=2):
        same = json.dumps({name: value for name, value in c.workload.items() if name != "dtype"}, sort_keys=True)
        partners[same].add((c.workload["dtype"], c.threads))
        models[same] = c.workload["model"]
    assert len(partners) == 44
    everything = {(dtype, threads) for dtype in ("float32", "bfloat16") for threads in (1, 2)}
    lacking = [same for same, settings in partners.items() if settings != everything]
    assert [models[same] for same in lacking] == ["lstm"] * 3
    assert all(partners[same] == {("float32", 1), ("float32", 2)} for same in lacking)


def test_reference_covers_what_the_dataset_needs():
    found = load_sweep("reference").configurations(cores=2)
    assert len(found) >= 1_600
    assert {c.family for c in found} == set(zoo.families())
    assert {c.threads for c in found} == {1, 2}
    assert {c.workload["dtype"] for c in found} == {"float32", "bfloat16"}
    assert {c.memory_format for c in found} == {"contiguous", "channels_last"}
    assert len({c.workload["optimizer"] for c in found}) >= 5
