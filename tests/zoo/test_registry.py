import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainpilot import zoo
from trainpilot.errors import UnknownNameError, UsageError
from trainpilot.zoo.entry import Setting


def test_importing_the_zoo_loads_neither_torch_nor_pandas_nor_sklearn():
    code = (
        "import sys, trainpilot.zoo as zoo, trainpilot.zoo.data\n"
        "[zoo.get(name).resolve_settings({}) for name in zoo.names()]\n"
        "zoo.from_model_config({'name': 'small_cnn', 'layers': 3})\n"
        "print([name for name in ('torch', 'pandas', 'sklearn', 'xgboost') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_families_cover_what_people_train():
    expected = {
        "mlp", "cnn", "vgg", "resnet", "mobilenet", "unet", "transformer", "gpt", "vit", "rnn", "text",
        "convnext", "mixer", "autoencoder", "tcn", "recommendation", "operator",
    }  # fmt: skip
    assert expected <= set(zoo.families())
    assert len(zoo.families()) == len(set(zoo.families()))


def test_every_class_of_operators_has_a_single_operator_model():
    expected = {
        "op_linear", "op_matmul", "op_conv2d", "op_depthwise_conv2d", "op_conv1d", "op_conv_transpose2d",
        "op_attention", "op_lstm", "op_gru", "op_embedding", "op_embedding_bag", "op_layer_norm", "op_batch_norm",
        "op_group_norm", "op_softmax", "op_relu", "op_gelu", "op_silu", "op_add", "op_max_pool2d", "op_avg_pool2d",
        "op_upsample", "op_cat", "op_transpose_copy", "op_dropout", "op_reduce", "op_cross_entropy", "op_optimizer",
    }  # fmt: skip
    assert expected <= {name for name in zoo.names() if zoo.get(name).family == "operator"}


def test_unknown_model_offers_the_nearest_names():
    with pytest.raises(UnknownNameError, match=r"unknown model 'smal_cnn': did you mean small_cnn") as caught:
        zoo.get("smal_cnn")
    assert caught.value.nearest[0] == "small_cnn"
    assert caught.value.valid == zoo.names()


@pytest.mark.parametrize("name", [None, 3, ["mlp"], ""])
def test_a_name_that_is_no_text_is_unknown(name):
    with pytest.raises(UnknownNameError):
        zoo.get(name)


def test_unknown_setting_lists_the_valid_ones():
    with pytest.raises(UnknownNameError, match=r"unknown setting 'widht': did you mean width\? valid: features"):
        zoo.get("mlp").resolve_settings({"widht": 3})


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("mlp", {"layers": 0}, "mlp: layers must be a whole number from 1 to 64, got 0"),
        ("mlp", {"layers": 2.0}, "mlp: layers must be a whole number from 1 to 64, got 2.0"),
        ("mlp", {"layers": True}, "mlp: layers must be a whole number from 1 to 64, got True"),
        ("mlp", {"layers": "3"}, "mlp: layers must be a whole number from 1 to 64, got '3'"),
        ("mlp", {"bias": 1}, "mlp: bias must be true or false, got 1"),
        ("mlp", {"dropout": float("nan")}, "mlp: dropout must be a number from 0.0 to 0.9, got nan"),
        ("mlp", {"norm": "bach"}, "mlp: norm must be one of none, batch, layer, got 'bach'"),
        ("vgg", {"layers": 12}, "vgg: layers must be one of 8, 11, 13, 16, 19, got 12"),
        ("vgg", {"layers": True}, "vgg: layers must be one of 8, 11, 13, 16, 19, got True"),
        ("transformer", {"width": 100, "heads": 3}, "transformer: width 100 is not divisible by 3 heads"),
        ("vit", {"image_size": 30, "patch": 4}, "vit: image_size 30 is not divisible by patch 4"),
        ("unet", {"image_size": 36, "layers": 3}, "unet: image_size 36 cannot be halved 3 times"),
        ("gpt", {"vocabulary": 64, "sequence": 64}, "gpt: vocabulary and sequence are both 64"),
        ("rotary_gpt", {"heads": 4, "kv_heads": 3}, "rotary_gpt: 4 heads cannot share 3 kv_heads evenly"),
        ("resnet_bottleneck", {"width": 48, "groups": 32}, "resnet_bottleneck: width 48 is not divisible by 32 groups"),
        ("window_transformer", {"image_size": 40, "stages": 1, "window": 16}, "window_transformer: stage 1 has 20"),
        ("op_conv2d", {"inputs": 6, "groups": 4}, "op_conv2d: inputs 6 is not divisible by 4 groups"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(name, given, message):
    with pytest.raises(UsageError) as caught:
        zoo.get(name).resolve_settings(given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", zoo.names())
def test_defaults_are_valid_and_resolving_twice_changes_nothing(name):
    entry = zoo.get(name)
    resolved = entry.resolve_settings({})
    assert list(resolved) == list(entry.settings)
    assert entry.resolve_settings(resolved) == resolved
    assert all(setting.help for setting in entry.settings.values())


def test_a_whole_number_for_a_share_is_the_same_setting():
    found = zoo.get("mlp").resolve_settings({"dropout": 0})
    assert found["dropout"] == 0.0
    assert type(found["dropout"]) is float


@given(st.integers(-100, 100), st.integers(-100, 100), st.integers(-200, 200))
def test_a_number_is_accepted_exactly_inside_its_range(low, high, value):
    setting = Setting(low, "int", low, high)
    assert setting.accepts(value) is (low <= value <= high)
    assert Setting(low, "float", low, high).accepts(float(value)) is (low <= value <= high)
    assert not setting.accepts(float(value))
