"""Zoo and Hugging Face models: every matrix product, convolution and attention against formulas on module shapes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import trainpilot as tp
from trainpilot.profiling import profile

from .hook_counter import HookCounter

BATCH = 2


@dataclass(frozen=True)
class Products:
    """Pairs of products that belong to no module: attention scores, and their product with the values.

    Each product of one pair has ``rows`` x ``columns`` results of ``width`` multiply-adds, over batch and heads.
    """

    rows: int
    columns: int
    width: int
    fused: bool
    layers: int = 1

    @property
    def forward(self) -> int:
        return self.layers * 2 * 2 * BATCH * self.rows * self.columns * self.width

    @property
    def backward(self) -> int:
        """Two products for each one; the fused kernel recomputes the scores, one more."""
        return self.forward // 2 * (5 if self.fused else 4)


def check(workload: tp.Workload, attention: tuple[Products, ...] = (), other: Counter[str] | None = None) -> None:
    """Compare the trace with hooks on the real model, by phase and by class of operator."""
    p = profile(workload)
    assert not p.data_dependent
    assert p.uncounted_ops == {}
    resolved = workload.resolve()
    counter = HookCounter(resolved.model)
    inputs = resolved.make_inputs(BATCH)
    resolved.model(*inputs.args, **inputs.kwargs)
    other = other or Counter()
    forward = sum(counter.forward.values()) + sum(a.forward for a in attention) + other["forward"]
    backward = sum(counter.backward.values()) + sum(a.backward for a in attention) + other["backward"]
    assert p.forward_flops == forward
    assert p.backward_flops == backward
    by_class = {
        name: sum(g.flops for g in p.op_groups if g.op_class == name and g.phase == "forward")
        for name in ("conv", "depthwise_conv", "attention")
    }
    assert by_class["conv"] + by_class["depthwise_conv"] == counter.forward["conv"]
    assert by_class["attention"] == sum(a.forward for a in attention if a.fused)


# Dropout inside attention rules the fused kernel out, as do masks that the model adds itself.
ZOO: dict[str, tuple[Products, ...]] = {
    "large_mlp": (),
    "mixer": (),
    "small_cnn": (),
    "vgg": (),
    "resnet": (),
    "densenet": (),
    "mobilenet": (),
    "convnext": (),
    "unet": (),
    "generator": (),
    "tcn": (),
    "lstm": (),
    "lstm_lm": (),
    "gru": (),
    "rnn": (),
    "text_cnn": (),
    "transformer": (Products(64, 64, 128, fused=False, layers=4),),
    "gpt": (Products(64, 64, 128, fused=False, layers=4),),
    "rotary_gpt": (Products(64, 64, 128, fused=True, layers=4),),
    "vit": (Products(65, 65, 128, fused=True, layers=4),),
    "seq2seq": (Products(64, 64, 128, fused=False, layers=9),),
}


@pytest.mark.parametrize("name", ZOO)
def test_zoo_model(name: str) -> None:
    check(tp.Workload(name, batch_size=BATCH), ZOO[name])


def test_recommendation_model_with_pairwise_products() -> None:
    vectors, width = 9, 32
    product = 2 * BATCH * vectors * vectors * width
    check(tp.Workload("dlrm", batch_size=BATCH), other=Counter(forward=product, backward=2 * product))


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
NO_DROPOUT = {"attention_probs_dropout_prob": 0.0}
LENGTH = 16


def ids() -> torch.Tensor:
    return torch.randint(0, 100, (BATCH, LENGTH))


def language(_: int) -> dict[str, torch.Tensor]:
    tokens = ids()
    return {"input_ids": tokens, "labels": tokens}


def classification(_: int) -> dict[str, torch.Tensor]:
    return {"input_ids": ids(), "labels": torch.randint(0, 2, (BATCH,))}


def images(_: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": torch.randint(0, 5, (BATCH,))}


def hugging_face(model: str, config: str, **options: Any) -> Callable[[], Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

    transformers.logging.set_verbosity_error()
    settings = getattr(transformers, config)(**options)
    return lambda: getattr(transformers, model)(settings)


ATTENTION = Products(LENGTH, LENGTH, 32, fused=False, layers=2)
FUSED = Products(LENGTH, LENGTH, 32, fused=True, layers=2)

HUGGING_FACE: dict[str, Any] = {
    "bert_eager": (
        "BertForSequenceClassification",
        "BertConfig",
        {"vocab_size": 100, "attn_implementation": "eager", **SMALL},
        classification,
        (ATTENTION,),
    ),
    "bert_sdpa": (
        "BertForSequenceClassification",
        "BertConfig",
        {"vocab_size": 100, "attn_implementation": "sdpa", **NO_DROPOUT, **SMALL},
        classification,
        (FUSED,),
    ),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "attention_dropout": 0.0},
        classification,
        (FUSED,),
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "attn_pdrop": 0.0},
        language,
        (FUSED,),
    ),
    "llama_eager": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"vocab_size": 100, "num_key_value_heads": 2, "attn_implementation": "eager", **SMALL},
        language,
        (ATTENTION,),
    ),
    "llama_sdpa": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"vocab_size": 100, "num_key_value_heads": 2, **SMALL},
        language,
        (FUSED,),
    ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {"image_size": 32, "patch_size": 8, "num_labels": 5, **SMALL},
        images,
        (Products(17, 17, 32, fused=True, layers=2),),
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 100,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "attn_implementation": "eager",
        },
        language,
        (Products(LENGTH, LENGTH, 32, fused=False, layers=6),),
    ),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {
            "embedding_size": 16,
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "layer_type": "basic",
            "num_labels": 5,
        },
        images,
        (),
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "num_labels": 5},
        images,
        (),
    ),
}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face_model(name: str) -> None:
    pytest.importorskip("transformers")
    model, config, options, inputs, attention = HUGGING_FACE[name]
    build = hugging_face(model, config, **options)
    check(tp.Workload(build(), example_inputs=inputs, batch_size=BATCH), attention)
