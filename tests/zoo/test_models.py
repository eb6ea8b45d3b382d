import math

import pytest
import torch
from hypothesis import HealthCheck, assume, settings
from hypothesis import given as forall
from hypothesis import strategies as st

from trainpilot import zoo
from trainpilot.errors import UsageError
from trainpilot.workload import ModelInputs, build_optimizer, compute_loss

# Small sizes of the models whose defaults take long in a test.
SMALL = {
    "large_mlp": {"width": 64},
    "vgg": {"width": 8, "hidden": 16},
    "resnet": {"width": 8},
    "resnet_bottleneck": {"width": 8, "groups": 4},
    "masked_lm": {"vocabulary": 100},
    "gpt": {"vocabulary": 100},
    "rotary_gpt": {"vocabulary": 100},
    "seq2seq": {"vocabulary": 100},
    "op_optimizer": {"elements": 100},
}


def step(name, given, batch_size=2):
    """One forward and backward pass; returns the model and its loss."""
    entry = zoo.get(name)
    model = entry.build(given)
    inputs = ModelInputs.of(entry.example_inputs(given, batch_size))
    outputs = model(*inputs.args)
    loss = compute_loss(outputs, entry.example_targets(given, batch_size), None)
    loss.backward()
    return model, outputs, loss.detach()


@pytest.mark.parametrize("name", zoo.names())
def test_every_model_trains_all_its_parameters(name):
    torch.manual_seed(0)
    model, _, loss = step(name, SMALL.get(name, {}))
    assert math.isfinite(loss)
    without = [path for path, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []
    assert any(bool(parameter.grad.abs().sum() > 0) for parameter in model.parameters())


@pytest.mark.parametrize("name", zoo.names())
def test_declared_kinds_of_layers_are_those_of_the_model(name):
    entry = zoo.get(name)
    modules = list(entry.build(SMALL.get(name, {})).modules())
    assert entry.has_conv is any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in modules)
    assert entry.has_rnn is any(isinstance(m, torch.nn.RNNBase) for m in modules)


@pytest.mark.parametrize("name", zoo.names())
def test_declared_shapes_are_those_of_inputs_targets_and_outputs(name):
    entry, given = zoo.get(name), SMALL.get(name, {})
    inputs = ModelInputs.of(entry.example_inputs(given, 3)).args
    assert tuple(inputs[0].shape) == (3, *entry.input_shape(given))
    targets = entry.example_targets(given, 3)
    outputs = entry.build(given)(*inputs)
    kind = entry.target.kind
    if kind == "none":
        assert targets is None
        assert outputs.shape == ()
    elif kind == "float":
        assert entry.classes(given) == 0
        assert outputs.shape == targets.shape
    else:
        classes = entry.classes(given)
        assert targets.dtype == torch.int64
        assert int(targets.min()) >= 0
        assert int(targets.max()) < classes
        assert targets.shape[0] == 3
        last = outputs.movedim(1, -1) if outputs.ndim == 4 else outputs
        assert tuple(last.shape) == (*targets.shape, classes)


def drawn_settings(draw, entry):
    """Settings of moderate size, all choices and flags included."""
    found = {}
    for name, setting in entry.settings.items():
        if setting.kind == "choice":
            found[name] = draw(st.sampled_from(setting.choices), label=name)
        elif setting.kind == "bool":
            found[name] = draw(st.booleans(), label=name)
        elif setting.kind == "float":
            found[name] = draw(st.sampled_from([setting.minimum, setting.default, setting.maximum]), label=name)
        else:
            least = int(setting.minimum)
            values = [least, least + 1, 2 * least, 8 if name == "classes" else 16]
            found[name] = draw(st.sampled_from([v for v in values if least <= v <= setting.maximum]), label=name)
    # Deep choices only repeat what shallow ones have.
    if entry.settings.get("layers") and entry.settings["layers"].kind == "choice":
        found["layers"] = min(found["layers"], 18 if entry.family != "resnet" else 26)
        assume(found["layers"] in entry.settings["layers"].choices)
    return found


@pytest.mark.parametrize("family", zoo.families())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@forall(data=st.data())
def test_settings_either_build_a_model_that_trains_or_are_refused(family, data):
    names = [name for name in zoo.names() if zoo.get(name).family == family]
    entry = zoo.get(data.draw(st.sampled_from(names)))
    given = drawn_settings(data.draw, entry)
    try:
        entry.resolve_settings(given)
    except UsageError:
        assume(False)
    _, _, loss = step(entry.name, given)
    assert math.isfinite(loss)


def parameters(name, given):
    return sum(p.numel() for p in zoo.get(name).build(given).parameters())


@pytest.mark.parametrize(
    ("name", "given", "count"),
    [
        # 784*256+256, 256*256+256, 256*10+10
        ("mlp", {}, 200_960 + 65_792 + 2_570),
        ("mlp", {"layers": 1, "features": 5, "classes": 3, "bias": False}, 15),
        ("mlp", {"layers": 2, "features": 5, "width": 8, "classes": 3, "norm": "layer"}, 48 + 16 + 27),
        # 3x3 convolutions 1→16 and 16→32, then 32*7*7 → 10
        ("small_cnn", {}, 160 + 4_640 + 15_690),
        # the same on 8x8 images: one halving, since 4 pixels are not halved again; 16→32 channels
        ("small_cnn", {"image_size": 8}, 160 + 4_640 + (32 * 4 * 4 * 10 + 10)),
        # LSTM: 4 gates of 28*128 + 128*128 + two biases; linear 128*10+10
        ("lstm", {}, 4 * 128 * (28 + 128 + 2) + 1_290),
        ("gru", {"bidirectional": True, "width": 8, "features": 3}, 2 * 3 * 8 * (3 + 8 + 2) + 170),
        # embedding and positions, two norms a block, attention 4*(w*w+w), feed-forward; final norm; tied head
        (
            "gpt",
            {"vocabulary": 50, "sequence": 8, "layers": 2, "width": 16, "heads": 2, "hidden": 32},
            50 * 16 + 8 * 16 + 2 * (4 * (256 + 16) + (16 * 32 + 32) + (32 * 16 + 16) + 2 * 32) + 32,
        ),
        # untied, no bias, two key/value heads of four: queries and output 256 each, keys and values 128 each; gated
        (
            "rotary_gpt",
            {"vocabulary": 50, "sequence": 8, "layers": 1, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 32},
            2 * 50 * 16 + (2 * 256 + 2 * 128) + 3 * 16 * 32 + 2 * 16 + 16,
        ),
        ("text_embedding", {}, 20_000 * 64 + (64 * 128 + 128) + (128 * 4 + 4)),
        # ResNet-18 for CIFAR without the ImageNet stem: 11,173,962 (He et al. 2016, as commonly implemented)
        ("resnet", {}, 11_173_962),
        # ResNet-50 with 1000 classes and the ImageNet stem: 25,557,032 (the count that torchvision documents)
        ("resnet_bottleneck", {"stem": "imagenet", "classes": 1000}, 25_557_032),
        # ResNet-18 of the same source: 11,689,512
        ("resnet", {"stem": "imagenet", "classes": 1000}, 11_689_512),
        # the convolutions of VGG-16 (14,714,688, as Keras documents them without the top), then 512 → 16 → 16 → 10
        (
            "vgg",
            {"layers": 16, "image_size": 32, "hidden": 16, "classes": 10},
            14_714_688 + (512 * 16 + 16) + (16 * 16 + 16) + 170,
        ),
        # one level: double convolutions 3→4, 4→8, up 8→4, merge 8→4, head 4→2; each norm has two values a channel
        (
            "unet",
            {"layers": 1, "width": 4, "classes": 2},
            (108 + 144 + 16) + (288 + 576 + 32) + (8 * 4 * 4 + 4) + (288 + 144 + 16) + 10,
        ),
        # depthwise 7x7 with bias, norm, 1→4→1, scale; stem, its norm, final norm, head
        (
            "convnext",
            {"stages": 1, "layers": 1, "width": 8, "image_channels": 1, "patch": 2},
            (4 * 8 + 8 + 16) + (49 * 8 + 8 + 16 + (8 * 32 + 32) + (32 * 8 + 8) + 8) + 16 + 90,
        ),
        # bottom 13→8→4, two tables, 4 + 3 pairs → 8, head 8→2
        (
            "dlrm",
            {"tables": 2, "rows": 10, "embedding": 4, "layers": 2, "width": 8},
            (13 * 8 + 8) + (8 * 4 + 4) + 2 * 40 + (7 * 8 + 8) + 18,
        ),
        ("op_optimizer", {"tensors": 3, "elements": 7}, 21),
        ("op_linear", {"inputs": 4, "outputs": 6, "repeats": 2}, 4 + (24 + 6) + (24 + 4)),
    ],
)
def test_parameter_counts_worked_out_by_hand(name, given, count):
    assert parameters(name, given) == count


def test_fused_and_explicit_attention_compute_the_same():
    given = {"width": 32, "heads": 4, "hidden": 64, "layers": 2, "vocabulary": 100, "dropout": 0.0}
    for name in ("gpt", "transformer"):
        entry = zoo.get(name)
        ids = entry.example_inputs(given, 2)
        torch.manual_seed(0)
        fused = entry.build({**given, "attention": "sdpa"})
        torch.manual_seed(0)
        explicit = entry.build({**given, "attention": "explicit"})
        torch.testing.assert_close(fused(ids), explicit(ids), rtol=1e-4, atol=1e-5)


def test_written_out_activations_are_those_of_torch():
    from trainpilot.zoo.models.layers import activation

    x = torch.linspace(-4, 4, 101)
    torch.testing.assert_close(activation("gelu_tanh")(x), torch.nn.functional.gelu(x, approximate="tanh"))
    torch.testing.assert_close(activation("quick_gelu")(x), torch.nn.functional.gelu(x), rtol=0, atol=0.021)


@pytest.mark.parametrize("name", ["gpt", "rotary_gpt"])
@pytest.mark.parametrize("attention", ["sdpa", "explicit"])
def test_decoders_do_not_see_later_tokens(name, attention):
    entry = zoo.get(name)
    given = {"vocabulary": 100, "sequence": 16, "attention": attention}
    model = entry.build(given).eval()
    ids = entry.example_inputs(given, 1)
    changed = ids.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 100
    with torch.no_grad():
        before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_padding_does_not_reach_other_positions():
    given = {"padding_mask": True, "position": "relative", "pooling": "first", "sequence": 8, "vocabulary": 50}
    model = zoo.get("transformer").build(given).eval()
    ids = torch.tensor([[3, 4, 5, 6, 0, 0, 0, 0]])
    with torch.no_grad():
        scores = model(ids)
        model.encoder.embedding.tokens.weight[0] += 10.0
        torch.testing.assert_close(model(ids), scores)


def test_rotation_keeps_lengths_and_depends_on_the_position():
    from trainpilot.zoo.models.attention import rotate

    x = torch.randn(1, 2, 5, 8)
    turned = rotate(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0])
    # Scores depend on the distance alone: the same vector at positions (1, 2) and (3, 4) gives the same product.
    same = rotate(torch.ones(1, 1, 5, 8))[0, 0]
    torch.testing.assert_close(same[1] @ same[2], same[3] @ same[4])


def test_shifted_windows_see_neighbours_and_plain_ones_do_not():
    # one stage, so that only the shift of the second block joins windows
    given = {"stages": 1, "image_size": 16, "patch": 2, "window": 4, "image_channels": 1}
    for layers, joined in ((1, False), (2, True)):
        model = zoo.get("window_transformer").build({**given, "layers": layers}).eval()
        seen = []
        model.final_norm.register_forward_hook(lambda module, args, out: seen.append(args[0]))  # noqa: B023
        x = torch.zeros(1, 1, 16, 16)
        with torch.no_grad():
            model(x)
            x[..., 0, 0] = 5.0
            model(x)
        changed = (seen[0] - seen[1]).abs().amax(-1)[0] > 1e-6
        assert bool(changed[:4, :4].any())
        assert bool(changed[4:].any()) is joined


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("name", [n for n in zoo.names() if n.startswith("op_")])
def test_operators_stay_finite_and_free_of_subnormal_gradients(name, optimizer):
    given = {
        key: 16
        for key, setting in zoo.get(name).settings.items()
        if setting.kind == "int" and key not in ("repeats", "layers", "groups", "dilation", "parts")
    }
    given |= {"groups": 4} if name == "op_group_norm" else {}
    entry = zoo.get(name)
    torch.manual_seed(0)
    model = entry.build(given)
    inputs, targets = ModelInputs.of(entry.example_inputs(given, 4)).args, entry.example_targets(given, 4)
    optimizer = build_optimizer(optimizer, model)
    for _ in range(100):
        optimizer.zero_grad()
        loss = compute_loss(model(*inputs), targets, None)
        loss.backward()
        optimizer.step()
    assert math.isfinite(loss.detach())
    for parameter in model.parameters():
        size = parameter.grad.abs()
        # Arithmetic on subnormal numbers is many times slower and would spoil a measurement.
        assert not bool(((size > 0) & (size < torch.finfo(torch.float32).tiny)).any())


@pytest.mark.parametrize("name", ["small_cnn", "mlp", "lstm"])
def test_models_learn_digits(name):
    from trainpilot.zoo.data import adapt_images, batches, digits, settings_for_data

    data = digits()
    entry = zoo.get(name)
    given = settings_for_data(name, {}, data)
    torch.manual_seed(0)
    model = entry.build(given)
    optimizer = build_optimizer("adamw", model)
    x, x_val = (adapt_images(part, entry.input_shape(given)) for part in (data.x_train, data.x_val))
    for epoch in range(4):
        for inputs, labels in batches(x, data.y_train, 32, seed=epoch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(torch.from_numpy(inputs)), torch.from_numpy(labels)).backward()
            optimizer.step()
    with torch.no_grad():
        found = model.eval()(torch.from_numpy(x_val)).argmax(1).numpy()
    assert (found == data.y_val).mean() > 0.9
