"""Error of the predictor on real Hugging Face models, which no predictor is ever fitted or tuned on.

    python benchmarks/real_models.py [--predictor FOLDER] [--measurements FILE] [--threads 1 --threads 2] [--json]

Every model is built from its configuration with random weights. Each is measured live: two rounds, the second after
the first of all others, by the protocol of the harness, with nothing else running. With ``--measurements`` the times
are kept in that file, and read from it if it exists, so that another predictor can be judged on the same times.
Then the predictor answers from the trace alone; beside it stand its additive part and calibration figures alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import trainpilot as tp
from trainpilot.backends import ExecutionSettings, get_backend
from trainpilot.benchmarking import TimingLimits, measure_steps
from trainpilot.benchmarking.control import control_workload
from trainpilot.predictors import load_predictor
from trainpilot.predictors.crossfit import errors_of
from trainpilot.predictors.shipped import reference_folder

BACKEND = "cpu"
ROUNDS = 2
LIMITS = TimingLimits(target_s=0.8, warmup_s=0.3, max_s=6.0)
Inputs = Callable[[int], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class RealModel:
    """One Hugging Face model.

    Attributes:
        model: Name of its class.
        config: Name of its configuration's class.
        options: What differs from the configuration's defaults.
        inputs: Keyword arguments for a batch size; with labels, so that the output has a loss.
        batch_size: Samples per step.
    """

    model: str
    config: str
    options: dict[str, Any]
    inputs: Inputs
    batch_size: int

    def workload(self) -> tp.Workload:
        """The training step of the model."""
        import transformers

        transformers.logging.set_verbosity_error()
        torch.manual_seed(0)
        built = getattr(transformers, self.model)(getattr(transformers, self.config)(**self.options))
        return tp.Workload(built.train(), example_inputs=self.inputs, batch_size=self.batch_size)


VOCABULARY = 8000
CLASSES = 10


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (batch, length))


def text_classes(length: int) -> Inputs:
    """Token ids and a class."""
    return lambda batch: {"input_ids": _ids(batch, length), "labels": torch.randint(2, (batch,))}


def token_labels(length: int) -> Inputs:
    """Token ids and a label for each."""
    return lambda batch: {"input_ids": _ids(batch, length), "labels": _ids(batch, length)}


def sequence_pairs(source: int, target: int) -> Inputs:
    """Source tokens and target tokens."""
    return lambda batch: {"input_ids": _ids(batch, source), "labels": _ids(batch, target)}


def image_classes(size: int) -> Inputs:
    """Images and a class."""
    return lambda batch: {
        "pixel_values": torch.randn(batch, 3, size, size),
        "labels": torch.randint(CLASSES, (batch,)),
    }


def image_masks(size: int) -> Inputs:
    """Images and a class for each pixel."""
    return lambda batch: {
        "pixel_values": torch.randn(batch, 3, size, size),
        "labels": torch.randint(CLASSES, (batch, size, size)),
    }


def speech_classes(samples: int) -> Inputs:
    """Waveforms and a class."""
    return lambda batch: {"input_values": torch.randn(batch, samples), "labels": torch.randint(2, (batch,))}


def speech_to_text(mel: int, frames: int, target: int) -> Inputs:
    """Spectrograms and target tokens."""
    return lambda batch: {"input_features": torch.randn(batch, mel, frames), "labels": _ids(batch, target)}


def _encoder(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }


def _decoder(width: int, layers: int, heads: int, keys: int) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "intermediate_size": 3 * width,
        "use_cache": False,
    }


def _vision(width: int, layers: int, heads: int, size: int, patch: int) -> dict[str, Any]:
    return {
        "image_size": size,
        "patch_size": patch,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "num_labels": CLASSES,
    }


_PAIRS = {"encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "encoder_layers": 3, "decoder_layers": 3}
_PAIR_HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}

MODELS: dict[str, RealModel] = {
    "bert": RealModel("BertForSequenceClassification", "BertConfig", _encoder(256, 6, 4), text_classes(128), 8),
    "bert_small": RealModel("BertForMaskedLM", "BertConfig", _encoder(128, 4, 2), token_labels(64), 16),
    "distilbert": RealModel(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": VOCABULARY, "dim": 384, "n_layers": 4, "n_heads": 6, "hidden_dim": 1536},
        text_classes(64),
        8,
    ),
    "roberta": RealModel("RobertaForMaskedLM", "RobertaConfig", _encoder(192, 4, 6), token_labels(96), 8),
    "albert": RealModel(
        "AlbertForSequenceClassification",
        "AlbertConfig",
        {"embedding_size": 64, **_encoder(256, 6, 4)},
        text_classes(128),
        4,
    ),
    "electra": RealModel(
        "ElectraForSequenceClassification",
        "ElectraConfig",
        {"embedding_size": 128, **_encoder(256, 4, 4)},
        text_classes(64),
        16,
    ),
    "deberta": RealModel(
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], **_encoder(192, 3, 4)},
        text_classes(64),
        8,
    ),
    "fnet": RealModel(
        "FNetForSequenceClassification",
        "FNetConfig",
        {k: v for k, v in _encoder(256, 4, 4).items() if k != "num_attention_heads"},
        text_classes(128),
        8,
    ),
    "gpt2": RealModel(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 256, "n_layer": 6, "n_head": 4, "use_cache": False},
        token_labels(128),
        4,
    ),
    "gpt2_long": RealModel(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 4, "n_head": 4, "use_cache": False},
        token_labels(512),
        2,
    ),
    "gpt_neox": RealModel(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", {**_encoder(256, 4, 4), "use_cache": False}, token_labels(96), 4
    ),
    "opt": RealModel(
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 256,
            "word_embed_proj_dim": 256,
            "ffn_dim": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "use_cache": False,
        },
        token_labels(64),
        8,
    ),
    "bloom": RealModel(
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 192, "n_layer": 4, "n_head": 6, "use_cache": False},
        token_labels(64),
        8,
    ),
    "llama": RealModel("LlamaForCausalLM", "LlamaConfig", _decoder(256, 4, 8, 4), token_labels(128), 4),
    "mistral": RealModel("MistralForCausalLM", "MistralConfig", _decoder(192, 6, 6, 2), token_labels(64), 8),
    "qwen2": RealModel("Qwen2ForCausalLM", "Qwen2Config", _decoder(320, 3, 5, 5), token_labels(64), 4),
    "phi": RealModel("PhiForCausalLM", "PhiConfig", _decoder(256, 4, 4, 4), token_labels(64), 4),
    "gemma": RealModel(
        "GemmaForCausalLM", "GemmaConfig", {"head_dim": 64, **_decoder(256, 3, 4, 1)}, token_labels(64), 4
    ),
    "t5": RealModel(
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": 192,
            "d_kv": 32,
            "d_ff": 768,
            "num_layers": 3,
            "num_heads": 6,
            "decoder_start_token_id": 0,
        },
        sequence_pairs(64, 32),
        8,
    ),
    "bart": RealModel(
        "BartForConditionalGeneration",
        "BartConfig",
        {"vocab_size": VOCABULARY, "d_model": 192, **_PAIRS, **_PAIR_HEADS},
        sequence_pairs(64, 32),
        8,
    ),
    "marian": RealModel(
        "MarianMTModel",
        "MarianConfig",
        {
            "vocab_size": VOCABULARY,
            "d_model": 256,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
            **_PAIRS,
            **_PAIR_HEADS,
        },
        sequence_pairs(48, 48),
        4,
    ),
    "vit": RealModel("ViTForImageClassification", "ViTConfig", _vision(192, 6, 3, 64, 8), image_classes(64), 8),
    "vit_large_patch": RealModel(
        "ViTForImageClassification", "ViTConfig", _vision(384, 4, 6, 128, 16), image_classes(128), 4
    ),
    "deit": RealModel("DeiTForImageClassification", "DeiTConfig", _vision(128, 6, 4, 48, 8), image_classes(48), 16),
    "beit": RealModel("BeitForImageClassification", "BeitConfig", _vision(192, 4, 4, 64, 8), image_classes(64), 8),
    "swin": RealModel(
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 64,
            "patch_size": 2,
            "embed_dim": 48,
            "depths": [2, 2, 2],
            "num_heads": [3, 6, 12],
            "window_size": 4,
            "num_labels": CLASSES,
        },
        image_classes(64),
        4,
    ),
    "convnext": RealModel(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [48, 96, 192, 384], "depths": [2, 2, 4, 2], "num_labels": CLASSES},
        image_classes(96),
        4,
    ),
    "resnet": RealModel(
        "ResNetForImageClassification",
        "ResNetConfig",
        {
            "embedding_size": 32,
            "hidden_sizes": [64, 128, 256, 512],
            "depths": [2, 2, 3, 2],
            "layer_type": "bottleneck",
            "num_labels": CLASSES,
        },
        image_classes(96),
        8,
    ),
    "resnet_basic": RealModel(
        "ResNetForImageClassification",
        "ResNetConfig",
        {
            "embedding_size": 64,
            "hidden_sizes": [64, 128, 256, 512],
            "depths": [2, 2, 2, 2],
            "layer_type": "basic",
            "num_labels": CLASSES,
        },
        image_classes(112),
        4,
    ),
    "regnet": RealModel(
        "RegNetForImageClassification",
        "RegNetConfig",
        {
            "embedding_size": 32,
            "hidden_sizes": [48, 96, 192, 384],
            "depths": [1, 2, 4, 1],
            "groups_width": 24,
            "num_labels": CLASSES,
        },
        image_classes(96),
        8,
    ),
    "mobilenet_v2": RealModel(
        "MobileNetV2ForImageClassification", "MobileNetV2Config", {"num_labels": CLASSES}, image_classes(96), 4
    ),
    "segformer": RealModel(
        "SegformerForSemanticSegmentation", "SegformerConfig", {"num_labels": CLASSES}, image_masks(128), 2
    ),
    "wav2vec2": RealModel(
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        {
            "hidden_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 256,
            "conv_dim": [64] * 7,
            "num_conv_pos_embeddings": 32,
            "num_conv_pos_embedding_groups": 8,
            "mask_time_prob": 0.0,
            "layerdrop": 0.0,
        },
        speech_classes(16_000),
        2,
    ),
    "whisper": RealModel(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": VOCABULARY,
            "d_model": 128,
            "num_mel_bins": 40,
            "max_source_positions": 150,
            "pad_token_id": 0,
            "decoder_start_token_id": 1,
            **_PAIRS,
            **_PAIR_HEADS,
        },
        speech_to_text(40, 300, 24),
        4,
    ),
}


def measure(models: dict[str, RealModel], threads: list[int]) -> dict[str, Any]:
    """Time one step of each model at each number of threads, in two rounds; the label is the median of both."""
    rounds: dict[str, list[tuple[float, float]]] = {}
    peaks: dict[str, int | None] = {}
    backend = get_backend(BACKEND)
    for round_ in range(ROUNDS):
        for name, model in models.items():
            for count in threads:
                print(f"round {round_ + 1}: {name}, {count} threads", file=sys.stderr)
                with backend.prepare(model.workload(), ExecutionSettings(threads=count)) as session:
                    control = control_workload(count)
                    timing = measure_steps(session.step, session.synchronize, limits=LIMITS, control=control)
                    peaks[f"{name}/{count}"] = session.peak_memory_bytes()
                assert timing.step_time_s is not None, timing.invalid
                assert timing.control_time_s is not None
                rounds.setdefault(f"{name}/{count}", []).append((timing.step_time_s, timing.control_time_s))
    return {
        name: {
            "rounds_s": [step for step, _ in found],
            "controls_s": [control for _, control in found],
            "peak_memory_bytes": peaks[name],
        }
        for name, found in rounds.items()
    }


def label(found: dict[str, Any], usual_s: float | None) -> tuple[float, list[float]]:
    """The measured step time and that of each round, under the conditions that the predictor's labels are those of."""
    rounds = [
        step if usual_s is None else step * usual_s / control
        for step, control in zip(found["rounds_s"], found["controls_s"], strict=True)
    ]
    return float(np.median(rounds)), rounds


def judge(models: dict[str, RealModel], measured: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Predict each measured step from its trace and compare."""
    predictor = load_predictor(folder)
    rows: list[dict[str, Any]] = []
    for name, model in models.items():
        workload = model.workload()
        profile = tp.profile(workload)
        for key in (key for key in measured if key.rsplit("/", 1)[0] == name):
            settings = ExecutionSettings(threads=int(key.rsplit("/", 1)[1]))
            found = tp.predict(workload, BACKEND, settings=settings, profile=profile, predictor=predictor)
            step = found.step_time_s
            assert step is not None
            machine_id = predictor.contexts[0].machine_id
            usual_s = predictor.provenance.controls.get(f"{machine_id}/{settings.threads}")
            measured_s, rounds_s = label(measured[key], usual_s)
            rows.append(
                {
                    "model": name,
                    "threads": settings.threads,
                    "measured_s": measured_s,
                    "rounds_s": rounds_s,
                    "trainpilot": step.value,
                    "low_s": step.low,
                    "high_s": step.high,
                    "in_range": found.in_range,
                    **alternatives(predictor, profile, settings),
                }
            )
    return {"schema": 1, "predictor": str(folder), **summary(rows), "rows": rows}


def alternatives(predictor: Any, profile: Any, settings: ExecutionSettings) -> dict[str, float]:
    """The additive part of the predictor alone, and calibration figures alone, in s."""
    from trainpilot.predictors.analytic import calibrated_step_time_s
    from trainpilot.predictors.table import Context, table_of_profile

    machine_id = predictor.contexts[0].machine_id
    assert settings.threads is not None
    context = Context(machine_id, BACKEND, settings.threads, settings.dtype, settings.memory_format)
    table = table_of_profile(profile, context)
    calibration = get_backend(BACKEND).calibration(settings)
    found = {"additive": float(predictor.step.additive_total(table)[0])}
    if calibration is not None:
        found["calibration_alone"] = float(calibrated_step_time_s(table, calibration)[0])
    return found


def errors(predicted: list[float], measured: list[float]) -> dict[str, float]:
    """``errors_of`` and the largest error, ``max_ape``."""
    logs = np.log(np.array(measured) / np.array(predicted))
    return {**errors_of(logs), "max_ape": float(np.abs(np.expm1(-logs)).max(initial=0.0))}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors by method and number of threads, and the coverage of the intervals."""
    found: dict[str, Any] = {}
    for threads in sorted({row["threads"] for row in rows}):
        mine = [row for row in rows if row["threads"] == threads]
        methods = [name for name in ("trainpilot", "additive", "calibration_alone") if all(name in row for row in mine)]
        bounded = [row for row in mine if row["low_s"] is not None]
        again = np.array([abs(row["rounds_s"][0] / row["rounds_s"][-1] - 1) for row in mine])
        found[f"{threads} threads"] = {
            "models": len(mine),
            "label_noise": float(again.mean()),
            "methods": {
                name: errors([row[name] for row in mine], [row["measured_s"] for row in mine]) for name in methods
            },
            "coverage": float(np.mean([row["low_s"] <= row["measured_s"] <= row["high_s"] for row in bounded]))
            if bounded
            else None,
            "with_interval": len(bounded),
        }
    return {"by_threads": found}


def main() -> None:
    """Measure, predict, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predictor", type=Path, help="folder of a predictor; default: the one that is shipped")
    parser.add_argument("--measurements", type=Path, help="file of times: read if it exists, else written")
    parser.add_argument("--threads", type=int, action="append", help="CPU threads; repeatable; default: 1 and all")
    parser.add_argument("--only", action="append", help="name of a model; repeatable")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    models = {name: model for name, model in MODELS.items() if not options.only or name in options.only}
    if options.measurements is not None and options.measurements.exists():
        measured = json.loads(options.measurements.read_text(encoding="utf-8"))
    else:
        from trainpilot.hardware import usable_cores

        measured = measure(models, options.threads or sorted({1, usable_cores()}))
        if options.measurements is not None:
            options.measurements.write_text(json.dumps(measured, indent=1), encoding="utf-8")
    result = judge(models, measured, options.predictor or reference_folder(BACKEND))
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for row in result["rows"]:
        error = row["trainpilot"] / row["measured_s"] - 1
        print(f"{row['model']:18} {row['threads']} threads {row['measured_s'] * 1e3:9.2f} ms {error:+7.1%}", end="")
        print("" if row["in_range"] else "  out of range")
    for threads, found in result["by_threads"].items():
        print(f"{threads}: {found['models']} models, measured again {found['label_noise']:.1%}")
        for name, metrics in found["methods"].items():
            print(
                f"  {name:18} mean {metrics['mape']:.1%} median {metrics['median_ape']:.1%} "
                f"largest {metrics['max_ape']:.1%}"
            )
        if found["coverage"] is not None:
            print(f"  intervals cover {found['coverage']:.0%} of {found['with_interval']}")


if __name__ == "__main__":
    main()
