import pytest

from trainpilot import zoo
from trainpilot.errors import UnknownNameError, UsageError

DOCUMENTED = {"name": "small_cnn", "layers": 3, "has_conv": True, "has_rnn": False}


def test_the_documented_configuration():
    assert zoo.from_model_config(DOCUMENTED) == ("small_cnn", {"layers": 3})


def test_further_keys_are_settings():
    config = {"name": "lstm", "layers": 2, "has_rnn": True, "width": 64, "classes": 5}
    assert zoo.from_model_config(config) == ("lstm", {"layers": 2, "width": 64, "classes": 5})


def test_the_configuration_is_not_changed():
    config = dict(DOCUMENTED)
    zoo.from_model_config(config)
    assert config == DOCUMENTED


@pytest.mark.parametrize("layers", [2, 3, 5, 9])
def test_layers_of_small_cnn_are_convolutions_plus_the_linear_layer(layers):
    name, settings = zoo.from_model_config({**DOCUMENTED, "layers": layers})
    model = zoo.get(name).build(settings)
    kinds = [type(module).__name__ for module in model.modules() if not list(module.children())]
    assert kinds.count("Conv2d") == layers - 1
    assert kinds.count("Linear") == 1


@pytest.mark.parametrize("layers", [1, 2, 7])
def test_layers_of_mlp_are_linear_layers(layers):
    model = zoo.get("mlp").build({"layers": layers, "width": 8})
    assert sum(type(module).__name__ == "Linear" for module in model.modules()) == layers


@pytest.mark.parametrize(("name", "layers"), [("resnet", 18), ("resnet", 56), ("resnet_bottleneck", 50), ("vgg", 16)])
def test_layers_of_deep_cnns_are_weight_layers_of_the_main_path(name, layers):
    model = zoo.get(name).build({"layers": layers, "width": 8})
    weighted = [
        path
        for path, module in model.named_modules()
        if type(module).__name__ in ("Conv2d", "Linear") and "shortcut" not in path
    ]
    assert len(weighted) == layers


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_layers_of_recurrent_models_are_stacked_recurrent_layers(name):
    model = zoo.get(name).build({"layers": 3, "width": 8})
    assert model.recurrent.num_layers == 3


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"has_rnn": True}, UsageError, "small_cnn has has_conv=True and has_rnn=False, but has_rnn=True was given"),
        ({"has_conv": False}, UsageError, "but has_conv=False was given"),
        ({"has_conv": 1}, UsageError, "has_conv must be true or false, got 1"),
        ({"layers": 1}, UsageError, "small_cnn: layers must be a whole number from 2 to 64, got 1"),
        ({"layers": "3"}, UsageError, "layers must be a whole number"),
        ({"name": "big_cnn"}, UnknownNameError, "unknown model 'big_cnn'"),
        ({"name": None}, UnknownNameError, "unknown model 'None'"),
        ({"widht": 3}, UnknownNameError, "unknown key of model_config for small_cnn 'widht': did you mean width"),
        ({"name": "op_relu"}, UsageError, "op_relu has has_conv=False"),
        ({"name": "op_conv2d"}, UsageError, "op_conv2d is a single operator without layers; leave layers out"),
    ],
)
def test_contradictions_and_unknown_keys_are_refused(change, error, message):
    with pytest.raises(error) as caught:
        zoo.from_model_config({**DOCUMENTED, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize("config", [{}, {"layers": 3}, None, "small_cnn", [("name", "mlp")]])
def test_a_configuration_without_a_name_is_refused(config):
    with pytest.raises(UsageError, match="name"):
        zoo.from_model_config(config)
