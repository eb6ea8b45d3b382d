from __future__ import annotations

import subprocess
import sys

import pytest

from trainpilot import backends
from trainpilot.backends import backend_names, candidate_backends, get_backend
from trainpilot.errors import UnknownNameError


def test_names() -> None:
    assert backend_names() == ("cpu", "cuda", "mps", "xpu", "ane", "simulated")
    assert all(get_backend(name).name == name for name in backend_names())


def test_the_same_object_each_time() -> None:
    assert get_backend("cpu") is get_backend("cpu")


def test_candidates_are_real() -> None:
    assert [backend.name for backend in candidate_backends()] == ["cpu", "cuda", "mps", "xpu", "ane"]
    assert get_backend("simulated").simulated


def test_an_unknown_name_is_answered_with_the_valid_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown backend 'cudda': did you mean cuda") as caught:
        get_backend("cudda")
    assert caught.value.valid == backend_names()


def test_exported_names() -> None:
    assert all(hasattr(backends, name) for name in backends.__all__)


def test_probing_what_is_not_there_loads_no_torch() -> None:
    code = (
        "import sys; from trainpilot.backends import candidate_backends\n"
        "found = {b.name: (b.probe(), b.info()) for b in candidate_backends() if b.name != 'cpu'}\n"
        "gone = {name for name, (usability, _) in found.items() if not usability.available}\n"
        "print(sorted(gone), 'torch' in sys.modules, 'xgboost' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False False")
