"""Models named by a file or module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from trainpilot.errors import ModelError, UsageError
from trainpilot.workload import Workload

GOOD = """
import torch
from torch import nn

def build(width=4):
    return nn.Linear(3, width)

def example_inputs(batch_size):
    return torch.ones(batch_size, 3)

def example_targets(batch_size):
    return torch.zeros(batch_size, 4)

def loss(outputs, targets):
    return (outputs - targets).abs().mean()
"""


def write(folder: Path, text: str) -> str:
    path = folder / "own.py"
    path.write_text(text, encoding="utf-8")
    return f"{path}:build"


def test_file_gives_model_inputs_targets_and_loss(tmp_path: Path) -> None:
    path_before = list(sys.path)
    resolved = Workload(write(tmp_path, GOOD), settings={"width": 4}).resolve()
    assert isinstance(resolved.model, torch.nn.Linear)
    assert resolved.owned
    assert resolved.make_inputs(5).args[0].shape == (5, 3)
    assert resolved.make_targets is not None
    assert resolved.make_targets(5).shape == (5, 4)
    assert resolved.loss is not None
    assert resolved.loss(torch.ones(2), torch.zeros(2)).item() == 1.0
    assert sys.path == path_before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def other(): pass", "has no function 'build'; it has other"),
        ("raise RuntimeError('broken\\non two lines')", "importing .* raised RuntimeError: broken on two lines"),
        ("def build(: pass", "raised SyntaxError"),
        ("build = 3", "has no function 'build'"),
        ("def build(): return 42\ndef example_inputs(n): return None", "must return a torch.nn.Module, got int"),
        ("def build(): 1 / 0\ndef example_inputs(n): return None", "the builder raised ZeroDivisionError"),
        ("import torch\ndef build(): return torch.nn.Linear(1, 1)", "no inputs are known: give example_inputs"),
        ("example_inputs = 3\ndef build(): pass", "example_inputs in .* must be a function"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        Workload(write(tmp_path, text)).resolve()
    assert "\n" not in str(caught.value)


def test_inputs_that_raise_are_reported_with_the_batch_size(tmp_path: Path) -> None:
    text = "import torch\ndef build(): return torch.nn.Linear(1, 1)\ndef example_inputs(n): return torch.zeros(-n)"
    resolved = Workload(write(tmp_path, text)).resolve()
    with pytest.raises(ModelError, match=r"example_inputs\(3\) raised RuntimeError"):
        resolved.make_inputs(3)


def test_missing_files_and_malformed_references(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        Workload(f"{tmp_path / 'missing.py'}:build").resolve()
    with pytest.raises(UsageError, match="path/file.py:build"):
        Workload(str(tmp_path / "own.py")).resolve()
    with pytest.raises(ModelError, match="importing no_such_package_xyz raised ModuleNotFoundError"):
        Workload("no_such_package_xyz:build").resolve()
