"""The rule cascade answers as the founding documents say."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainpilot.rules import CASCADE, decide


def profile(has_conv: bool, has_rnn: bool) -> dict[str, object]:
    return {
        "params": 50_000,
        "layers": 3,
        "has_conv": has_conv,
        "has_rnn": has_rnn,
        "depth": 5,
        "avg_layer_size": 1000.0,
    }


@pytest.mark.parametrize(
    ("ane", "rnn", "conv", "busy", "backend", "confidence"),
    [
        (False, False, True, 0.1, "cpu", 1.0),
        (False, True, True, 0.9, "cpu", 1.0),
        (True, True, False, 0.1, "cpu", 0.95),
        (True, True, True, 0.1, "cpu", 0.95),
        (True, False, True, 0.3, "ane", 0.85),
        (True, False, True, 0.0, "ane", 0.85),
        (True, False, True, 0.49999, "ane", 0.85),
        (True, False, True, 0.5, "cpu", 0.8),
        (True, False, True, 1.0, "cpu", 0.8),
        (True, False, False, 0.1, "cpu", 0.8),
    ],
)
def test_cascade_gives_documented_confidences(ane, rnn, conv, busy, backend, confidence):
    rule = decide(profile(conv, rnn), ane_available=ane, cpu_utilization=busy)
    assert (rule.backend, rule.confidence) == (backend, confidence)


def test_cascade_is_data_in_the_documented_order():
    assert [(rule.backend, rule.confidence) for rule in CASCADE] == [
        ("cpu", 1.0),
        ("cpu", 0.95),
        ("ane", 0.85),
        ("cpu", 0.8),
    ]
    assert all(rule.reason for rule in CASCADE)


@given(st.floats(0, 1))
def test_unavailable_engine_is_never_chosen(busy):
    for conv, rnn in itertools.product((True, False), repeat=2):
        rule = decide(profile(conv, rnn), ane_available=False, cpu_utilization=busy)
        assert (rule.backend, rule.confidence) == ("cpu", 1.0)
