"""The rule cascade: where to train when no predictor has data.

The rules and their confidences are those of the project's founding documents. They read nothing but two facts of
the hardware and two of the model, so they answer at once and on any machine; they know nothing of sizes, so every
answer that has measured or predicted times behind it is better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BUSY_CPU_UTILIZATION = 0.5
"""From this share on, 0 to 1, the CPU counts as busy (founding documents)."""


@dataclass(frozen=True)
class RuleInput:
    """What the rules look at.

    Attributes:
        ane_available: The Apple Neural Engine can be used.
        cpu_utilization: Busy share of the CPU, 0 to 1.
        has_conv: The model convolves.
        has_rnn: The model is recurrent.
    """

    ane_available: bool
    cpu_utilization: float
    has_conv: bool
    has_rnn: bool


@dataclass(frozen=True)
class Rule:
    """One rule of the cascade.

    Attributes:
        name: Short name.
        applies: Whether the rule answers.
        backend: Its answer.
        confidence: How sure the founding documents are of it, 0 to 1.
        reason: The rule in words.
    """

    name: str
    applies: Callable[[RuleInput], bool]
    backend: str
    confidence: float
    reason: str


CASCADE = (
    Rule("ane_unavailable", lambda seen: not seen.ane_available, "cpu", 1.0, "the Neural Engine is not available"),
    Rule("recurrent", lambda seen: seen.has_rnn, "cpu", 0.95, "the model is recurrent"),
    Rule(
        "convolutional",
        lambda seen: seen.has_conv and seen.cpu_utilization < BUSY_CPU_UTILIZATION,
        "ane",
        0.85,
        f"the model convolves and the CPU is busy below {BUSY_CPU_UTILIZATION}",
    ),
    Rule("default", lambda _: True, "cpu", 0.8, "no rule speaks for the Neural Engine"),
)
"""The rules in order; the first that applies answers."""


def decide(profile: Mapping[str, Any], *, ane_available: bool, cpu_utilization: float) -> Rule:
    """Return the first rule of the cascade that applies.

    Args:
        profile: Profile of the workload; only ``has_conv`` and ``has_rnn`` are read.
        ane_available: The Apple Neural Engine can be used.
        cpu_utilization: Busy share of the CPU, 0 to 1.
    """
    seen = RuleInput(
        ane_available=ane_available,
        cpu_utilization=cpu_utilization,
        has_conv=bool(profile["has_conv"]),
        has_rnn=bool(profile["has_rnn"]),
    )
    return next(rule for rule in CASCADE if rule.applies(seen))
