from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trainpilot.backends.torch_device.global_state import GlobalState


def _draws() -> list[float]:
    return [torch.rand(1).item(), float(np.random.rand()), random.random()]


def test_what_was_drawn_in_between_is_undone() -> None:
    state = GlobalState("cpu")
    expected = _draws()
    state.restore()
    state.seed()
    first = _draws()
    torch.set_num_threads(torch.get_num_threads() + 1)
    state.restore()
    assert _draws() == expected
    state.seed()
    assert _draws() == first
    state.restore()


def test_only_the_own_device_is_seeded_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    device = SimpleNamespace(
        get_rng_state=lambda: "as it was",
        set_rng_state=lambda state: calls.append(("restored", state)),
        manual_seed=lambda seed: calls.append(("seeded", seed)),
    )
    monkeypatch.setattr(torch, "xpu", device)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: calls.append(("cuda", seed)))
    state = GlobalState("xpu")
    state.seed()
    state.restore()
    assert calls == [("seeded", 0), ("restored", "as it was")]
