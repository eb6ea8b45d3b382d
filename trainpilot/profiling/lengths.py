"""Tells lengths of sequences from other values in a run on real tensors.

A packed sequence is laid out by the lengths of its members, so a recurrent layer reads them. They are known as shapes
are where they are written down in the model or were given with the input; lengths that the model computes are values
like any others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from trainpilot.profiling.operators import OpKind
from trainpilot.profiling.traffic import tensors_in
from trainpilot.workload import ModelInputs, packed_sequences, tensor_leaves

PACKING = "_pack_padded_sequence"
# Where operators take lengths of sequences, which are all that the shapes of their results depend on.
_LENGTHS: Mapping[str, tuple[int, ...]] = {PACKING: (1,), "_ctc_loss": (2, 3)}
# Pass lengths on as they are, or in another order.
_PASSING = frozenset(
    ("_to_copy", "clone", "detach", "alias", "view", "sort", "select", "slice", "index_select", "flip")
)
# What reads values without dispatching an operator.
_READERS = frozenset((torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__))


def depends_on_values(kind: OpKind, args: Sequence[Any]) -> bool:
    """True if the shape of the result, or a result that is a number, depends on values of tensors."""
    if kind.base == "index":  # by positions it does not
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1:2]))
    return not kind.stable


class SequenceLengths:
    """Lengths of sequences among the tensors of a run.

    Args:
        inputs: What the model is called with.
        targets: What the loss is given.

    Attributes:
        given: Lengths were taken from a tensor of the inputs or targets.
    """

    def __init__(self, inputs: ModelInputs, targets: Any = None) -> None:
        self.given = False
        # A tensor of the inputs may hold labels as well as lengths: it is one of lengths once it is taken for them.
        self._candidates: Any = WeakTensorKeyDictionary()
        self._known: Any = WeakTensorKeyDictionary()
        for leaf in (*tensor_leaves(inputs), *tensor_leaves(targets)):
            if leaf.ndim == 1 and not leaf.is_floating_point() and not leaf.is_complex() and leaf.dtype != torch.bool:
                self._candidates[leaf] = True
        for packed in packed_sequences(inputs):
            self._known[packed.batch_sizes] = True

    def read_values(self, kind: OpKind, args: Sequence[Any], out: Any) -> bool:
        """Note a dispatched operator; True if what it does depends on values that are no known lengths."""
        places = _LENGTHS.get(kind.base)
        if places is not None:
            lengths = list(tensors_in(args[place] for place in places))
            self.given |= any(tensor in self._candidates for tensor in lengths)
            known = all(tensor in self._known or tensor in self._candidates for tensor in lengths)
            if known and kind.base == PACKING:
                self._known[out[1]] = True
            return not known
        if kind.base == "lift_fresh":  # a constant of Python
            self._known[out] = True
        elif kind.base in _PASSING:
            for kept in (self._known, self._candidates):
                if args[0] in kept:
                    kept.update((result, True) for result in tensors_in((out,)))
        for place in kind.mutated if kind.base != "lift_fresh" else ():
            if place < len(args) and isinstance(args[place], torch.Tensor):  # no longer what it was
                self._known.pop(args[place], None)
                self._candidates.pop(args[place], None)
        return depends_on_values(kind, args) and not all(tensor in self._known for tensor in tensors_in(args))

    def watched(self, tensor: torch.Tensor) -> bool:
        """True for known lengths."""
        return tensor in self._known


class ValueReads(TorchFunctionMode):
    """Notices values that are read without an operator.

    Args:
        lengths: Values that may be read.

    Attributes:
        found: Others were read.
    """

    def __init__(self, lengths: SequenceLengths) -> None:
        super().__init__()
        self._lengths = lengths
        self.found = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the function and remember what it is."""
        if func in _READERS and not self._lengths.watched(args[0]):
            self.found = True
        return func(*args, **(kwargs or {}))
