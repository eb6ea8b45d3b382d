"""Transformers on tokens, images and audio."""

from __future__ import annotations

from trainpilot.zoo.catalog import common
from trainpilot.zoo.entry import Input, ModelEntry, Setting, Settings, choice, flag, integer

_TIED = flag(True, "the output layer shares the weights of the embedding")


def _rotary_contradiction(settings: Settings) -> str | None:
    if settings.get("position", "rotary") == "rotary" and (settings["width"] // settings["heads"]) % 2:
        return f"rotary positions need an even head size, got width {settings['width']} for {settings['heads']} heads"
    return None


def _encoder_contradiction(settings: Settings) -> str | None:
    return common.heads_contradiction(settings) or _rotary_contradiction(settings)


def _masked_lm_contradiction(settings: Settings) -> str | None:
    return common.language_contradiction(settings) or _rotary_contradiction(settings)


def _encoder_settings() -> dict[str, Setting]:
    return {
        **common.text(64, 10_000),
        **common.transformer(layers=4, width=128, heads=4, hidden=512),
        "activation": common.activation("gelu"),
        "norm_first": flag(False, common.NORM_FIRST.help),
        "attention": common.ATTENTION,
        "fused_qkv": common.FUSED_QKV,
        "position": choice("learned", ("learned", "rotary", "relative"), "how positions enter"),
        "padding_mask": flag(False, "token 0 is padding that no position attends to"),
    }


_TRANSFORMER = ModelEntry(
    name="transformer",
    family="transformer",
    description="Transformer encoder that classifies a text (BERT-like)",
    builder="trainpilot.zoo.models.transformer:TransformerClassifier",
    inputs=common.TEXT_INPUT,
    contradiction=_encoder_contradiction,
    settings={
        **_encoder_settings(),
        "pooling": choice("first", ("first", "mean"), "what is classified: the first position or the mean"),
        "dropout": common.dropout(0.1),
        "classes": common.classes(2),
    },
)

_MASKED_LM = ModelEntry(
    name="masked_lm",
    family="transformer",
    description="Transformer encoder that predicts a token at every position (BERT-like pre-training)",
    builder="trainpilot.zoo.models.transformer:MaskedLanguageModel",
    inputs=common.TEXT_INPUT,
    target=common.NEXT_TOKEN,
    contradiction=_masked_lm_contradiction,
    settings={**_encoder_settings(), "tied": _TIED, "dropout": common.dropout(0.1)},
)

_GPT = ModelEntry(
    name="gpt",
    family="gpt",
    description="Decoder-only transformer with learned positions (GPT-2-like)",
    builder="trainpilot.zoo.models.gpt:gpt",
    inputs=common.TEXT_INPUT,
    target=common.NEXT_TOKEN,
    contradiction=common.language_contradiction,
    settings={
        **common.text(64, 10_000),
        **common.transformer(layers=4, width=128, heads=4, hidden=512),
        "activation": common.activation("gelu"),
        "norm_first": common.NORM_FIRST,
        "attention": common.ATTENTION,
        "fused_qkv": flag(True, common.FUSED_QKV.help),
        "bias": common.bias(),
        "tied": _TIED,
        "dropout": common.dropout(0.1),
    },
)


def _rotary_gpt_contradiction(settings: Settings) -> str | None:
    heads, kv_heads = settings["heads"], settings["kv_heads"]
    if heads % kv_heads:
        return f"{heads} heads cannot share {kv_heads} kv_heads evenly"
    return common.language_contradiction(settings) or _rotary_contradiction(settings)


_ROTARY_GPT = ModelEntry(
    name="rotary_gpt",
    family="gpt",
    description="Decoder-only transformer with rotary positions, RMS norm and gated feed-forward (Llama-like)",
    builder="trainpilot.zoo.models.gpt:rotary_gpt",
    inputs=common.TEXT_INPUT,
    target=common.NEXT_TOKEN,
    contradiction=_rotary_gpt_contradiction,
    settings={
        **common.text(64, 10_000),
        **common.transformer(layers=4, width=128, heads=4, hidden=352),
        "kv_heads": integer(2, 1, 128, "heads of keys and values; must divide the heads"),
        "activation": common.activation("silu"),
        "gated": flag(True, "the activation gates a second projection"),
        "norm": choice("rms", ("rms", "layer"), "root-mean-square or layer normalisation"),
        "attention": common.ATTENTION,
        "bias": common.bias(False),
        "tied": flag(False, _TIED.help),
    },
)

_SEQ2SEQ = ModelEntry(
    name="seq2seq",
    family="seq2seq",
    description="Encoder-decoder transformer (translation, T5- or BART-like)",
    builder="trainpilot.zoo.models.seq2seq:Seq2Seq",
    inputs=(Input(lambda s: (s["source"],), ids="vocabulary"), Input(common.sequence_shape, ids="vocabulary")),
    target=common.NEXT_TOKEN,
    contradiction=common.language_contradiction,
    settings={
        "source": integer(64, 8, 4096, "tokens of the source text"),
        **common.text(64, 10_000),
        **common.transformer(layers=3, width=128, heads=4, hidden=512),
        "activation": common.activation("relu"),
        "norm": choice("layer", ("rms", "layer"), "root-mean-square or layer normalisation"),
        "norm_first": common.NORM_FIRST,
        "attention": common.ATTENTION,
        "bias": common.bias(),
        "tied": _TIED,
        "dropout": common.dropout(0.1),
    },
)


def _vit_contradiction(settings: Settings) -> str | None:
    return common.patch_contradiction(settings) or common.heads_contradiction(settings)


_VIT = ModelEntry(
    name="vit",
    family="vit",
    description="Vision transformer on image patches",
    builder="trainpilot.zoo.models.vit:ViT",
    inputs=common.IMAGE_INPUT,
    has_conv=True,
    contradiction=_vit_contradiction,
    settings={
        **common.image(32),
        "patch": integer(4, 1, 64, "height and width of a patch; must divide the image"),
        **common.transformer(layers=4, width=128, heads=4, hidden=512),
        "activation": common.activation("gelu"),
        "norm_first": common.NORM_FIRST,
        "attention": common.ATTENTION,
        "fused_qkv": common.FUSED_QKV,
        "pooling": choice("class_token", ("class_token", "mean"), "what is classified"),
        "dropout": common.dropout(),
        "classes": common.classes(),
    },
)


def _window_contradiction(settings: Settings) -> str | None:
    problem = _vit_contradiction(settings)
    if problem is not None:
        return problem
    side, window = settings["image_size"] // settings["patch"], settings["window"]
    for stage in range(settings["stages"]):
        if stage > 0 and side % 2:
            return f"stage {stage} has {side} patches a side, which cannot be halved: use fewer stages"
        side = side // 2 if stage > 0 else side
        if side > window and side % window:
            return f"stage {stage + 1} has {side} patches a side, which is not divisible by window {window}"
    return None


_WINDOW_TRANSFORMER = ModelEntry(
    name="window_transformer",
    family="window_transformer",
    description="Vision transformer with attention in shifted windows (Swin-like)",
    builder="trainpilot.zoo.models.swin:WindowTransformer",
    inputs=common.IMAGE_INPUT,
    has_conv=True,
    contradiction=_window_contradiction,
    settings={
        **common.image(32),
        "patch": integer(2, 1, 16, "height and width of a patch; must divide the image"),
        "window": integer(4, 2, 16, "patches a side of a window"),
        "stages": integer(2, 1, 4, "stages; width and heads double and the sides are halved between them"),
        "layers": integer(2, 1, 18, "transformer blocks of each stage"),
        "width": integer(64, 16, 512, "size of the vectors of the first stage"),
        "heads": integer(2, 1, 32, "attention heads of the first stage; must divide the width"),
        "attention": common.ATTENTION,
        "dropout": common.dropout(),
        "classes": common.classes(),
    },
)


def _audio_contradiction(settings: Settings) -> str | None:
    width, groups = settings["width"], settings["position_groups"]
    if width % groups:
        return f"width {width} is not divisible by {groups} position_groups"
    return common.heads_contradiction(settings)


_AUDIO_TRANSFORMER = ModelEntry(
    name="audio_transformer",
    family="audio",
    description="Strided one-dimensional convolutions and a transformer encoder (speech models)",
    builder="trainpilot.zoo.models.audio:AudioTransformer",
    inputs=common.SERIES_INPUT,
    has_conv=True,
    contradiction=_audio_contradiction,
    settings={
        **common.series(256, 80),
        "convolutions": integer(2, 1, 8, "front-end convolutions; each halves the length"),
        "position_kernel": integer(15, 1, 128, "steps that the convolution for positions sees"),
        "position_groups": integer(8, 1, 64, "its groups; must divide the width"),
        **common.transformer(layers=3, width=128, heads=4, hidden=512),
        "norm_first": common.NORM_FIRST,
        "attention": common.ATTENTION,
        "dropout": common.dropout(0.1),
        "classes": common.classes(),
    },
)

ENTRIES = (
    _TRANSFORMER,
    _MASKED_LM,
    _GPT,
    _ROTARY_GPT,
    _SEQ2SEQ,
    _VIT,
    _WINDOW_TRANSFORMER,
    _AUDIO_TRANSFORMER,
)
