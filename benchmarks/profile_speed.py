"""How fast a profile is, and what it takes: the trace of a large model, a very large one, and a repeated question.

Run ``python benchmarks/profile_speed.py``; prints one JSON document. Each figure comes with the limit it is held to.
Everything that is compared is measured in the same run; the very large model runs in a child process, so that its
peak memory is its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import trainpilot as tp

MOST_TRACE_S = 0.6
MOST_TRACE_SHARE = 0.2
MOST_CACHED_S = 1e-3
MOST_LARGE_S = 5.0
MOST_LARGE_BYTES = 600 * 10**6
_calls = itertools.count()


class Bottleneck(nn.Module):
    """Residual block of three convolutions (He et al. 2015)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the block to its input."""
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet50() -> nn.Module:
    """25.6 million parameters, images of 224 x 224."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(blocks):
            layers.append(Bottleneck(channels, width, stride if index == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class LlamaBlock(nn.Module):
    """Pre-norm block with a gated feed-forward part (Touvron et al. 2023), without rotation of the queries."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then transform each position."""
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def llama() -> nn.Module:
    """6.7 billion parameters."""
    width, blocks = 4096, 32
    return nn.Sequential(
        nn.Embedding(32_000, width),
        *(LlamaBlock(width, 32, 11_008) for _ in range(blocks)),
        nn.RMSNorm(width),
        nn.Linear(width, 32_000, bias=False),
    )


def seconds(function: Callable[[], object], repetitions: int) -> list[float]:
    """Wall time of each of several calls."""
    taken = []
    for _ in range(repetitions):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return taken


def traced_anew(model: nn.Module, **options: Any) -> tp.WorkloadProfile:
    """Profile past the cache: a loss with another default makes a new workload."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor, _call: int = next(_calls)) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets)

    return tp.profile(tp.Workload(model, loss=loss, **options))


def measure_resnet(batch_size: int, repetitions: int) -> dict[str, Any]:
    """Trace, repeated question, and one real step of a ResNet-50, in one run."""
    model, x = resnet50(), torch.randn(batch_size, 3, 224, 224)
    targets = torch.randint(0, 1000, (batch_size,))
    options = {"example_inputs": x, "targets": targets}
    traced_anew(model, **options)
    trace = seconds(lambda: traced_anew(model, **options), repetitions)
    workload = tp.Workload(model, **options)
    profile = tp.profile(workload)
    cached = seconds(lambda: tp.profile(workload), 100)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), targets).backward()
        optimizer.step()

    step()
    steps = seconds(step, 2)
    return {
        "params": profile.params,
        "batch_size": batch_size,
        "trace_s": statistics.median(trace),
        "trace_s_all": trace,
        "cached_s": statistics.median(cached),
        "step_s": min(steps),
        "trace_share_of_step": statistics.median(trace) / min(steps),
        "threads": torch.get_num_threads(),
    }


def measure_llama() -> dict[str, Any]:
    """Profile of a builder of a 6.7-billion-parameter model, import of torch included in the memory."""
    start = time.perf_counter()
    profile = profile_llama()
    taken = time.perf_counter() - start
    return {
        "params": profile.params,
        "forward_flops": profile.forward_flops,
        "profile_s": taken,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024),
    }


def profile_llama() -> tp.WorkloadProfile:
    """One sequence of 128 tokens."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    tokens = torch.randint(0, 32_000, (1, 128))
    return tp.profile(
        tp.Workload(llama, example_inputs=lambda _: tokens, targets=lambda _: tokens, loss=loss, batch_size=1)
    )


def main() -> int:
    """Measure, print, and exit with 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--only-large", action="store_true", help="only the 6.7-billion-parameter model, in this process"
    )
    arguments = parser.parse_args()
    if arguments.only_large:
        print(json.dumps(measure_llama()))
        return 0
    # First, because a child starts with the peak memory of its parent.
    child = subprocess.run([sys.executable, __file__, "--only-large"], check=True, capture_output=True, text=True)
    large = json.loads(child.stdout.splitlines()[-1])
    resnet = measure_resnet(arguments.batch_size, arguments.repetitions)
    figures = {
        "resnet50_trace_s": (resnet["trace_s"], MOST_TRACE_S),
        "resnet50_trace_share_of_step": (resnet["trace_share_of_step"], MOST_TRACE_SHARE),
        "repeated_profile_s": (resnet["cached_s"], MOST_CACHED_S),
        "llama_profile_s": (large["profile_s"], MOST_LARGE_S),
        "llama_peak_rss_bytes": (large["peak_rss_bytes"], MOST_LARGE_BYTES),
    }
    print(
        json.dumps(
            {
                "figures": {
                    name: {"value": value, "limit": limit, "ok": value <= limit}
                    for name, (value, limit) in figures.items()
                },
                "resnet50": resnet,
                "llama": large,
                "torch": torch.__version__,
            },
            indent=2,
        )
    )
    return 0 if all(value <= limit for value, limit in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
