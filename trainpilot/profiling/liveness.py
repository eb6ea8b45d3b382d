"""Which memory is alive when: follows the storages of a run from operator to operator.

Works on fake tensors as on real ones, because a storage is freed at the same moment in both.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainpilot.profiling.traffic import tensors_in
from trainpilot.profiling.workspace import kept_bytes, saved_workspace_bytes, workspace_bytes

if TYPE_CHECKING:
    from trainpilot.profiling.tracer import Cost


@dataclass(frozen=True)
class Peaks:
    """Largest sums of a run, in bytes.

    Attributes:
        kept_bytes: All storages that were asked for by ``Liveness.peaks`` (gradients).
        others_bytes: Most that was alive at one moment among all others.
        workspace_bytes: Largest workspace of one operator.
        total_bytes: Most that was alive at one moment, workspace included.
        end_bytes: Alive at the end.
    """

    kept_bytes: int
    others_bytes: int
    workspace_bytes: int
    total_bytes: int
    end_bytes: int


class Liveness:
    """Records allocations and frees of a run, beyond the storages that were there before it."""

    def __init__(self) -> None:
        self._serials: dict[int, int] = {}  # storage -> number of its allocation
        self._references: dict[int, weakref.ref[Any]] = {}
        self._sizes: list[int] = []
        # In order: n >= 0 is the allocation of storage n, ~n its end; (bytes,) is a workspace.
        self._events: list[int | tuple[int]] = []
        self._sums: set[int] = set()

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take the storages of ``tensors`` (weights, buffers) as not belonging to the run."""
        for tensor in tensors:
            self._register(tensor, ignored=True)

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take the storages of ``tensors`` (inputs) as allocated now."""
        for tensor in tensors:
            self._register(tensor)

    def note(self, cost: Cost, args: Sequence[Any], out: Any, backward: bool = False) -> None:
        """Take what an operator returned; storages that are known already (views, in-place) add nothing."""
        if isinstance(out, torch.Tensor):
            if backward and cost.kind.base == "add" and not cost.kind.mutated:
                self._sums.add(len(self._sizes))
            self._register(out, kept_bytes(cost.kind.base, args))
        elif out is not None:
            # Of a recurrent layer, an output without elements stands for the workspace; on real tensors it is there.
            recurrent = cost.kind.base == "mkldnn_rnn_layer"
            for tensor in tensors_in((out,)):
                self._register(tensor, saved_workspace_bytes(args) if recurrent and not tensor.numel() else 0)
        workspace = workspace_bytes(cost.kind, cost.sizes, args)
        if workspace:
            self._events.append((workspace,))

    def peaks(self, kept: Iterable[torch.Tensor] = ()) -> Peaks:
        """Replay the run; ``kept`` are tensors alive now whose storages are summed apart."""
        serials = {
            self._serials.get(tensor.untyped_storage()._cdata) for tensor in kept if tensor.layout == torch.strided
        }
        live = others = peak = peak_others = peak_workspace = 0
        for event in self._events_of_plain_tensors():
            workspace = 0
            if isinstance(event, tuple):
                workspace = event[0]
                peak_workspace = max(peak_workspace, workspace)
            else:
                serial = event if event >= 0 else ~event
                change = self._sizes[serial] if event >= 0 else -self._sizes[serial]
                live += change
                if serial not in serials:
                    others += change
            peak = max(peak, live + workspace)
            peak_others = max(peak_others, others)
        kept_bytes = sum(self._sizes[serial] for serial in serials if serial is not None)
        return Peaks(kept_bytes, peak_others, peak_workspace, peak, live)

    def _events_of_plain_tensors(self) -> list[int | tuple[int]]:
        """The events, with gradients added up in place.

        Autograd adds the third and later gradients of one tensor to the sum of the first two in place, but not under
        a dispatch mode: there each sum is a new one, and the old one is freed directly afterwards. Swapped, the two
        cancel.
        """
        events = list(self._events)
        for index, (event, following) in enumerate(itertools.pairwise(self._events)):
            if isinstance(event, int) and isinstance(following, int) and {event, ~following} <= self._sums:
                events[index], events[index + 1] = following, event
        return events

    def _register(self, tensor: torch.Tensor, extra_bytes: int = 0, ignored: bool = False) -> None:
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        handle = storage._cdata
        if handle in self._serials:
            return
        serial = len(self._sizes)
        self._sizes.append(0 if ignored else storage.nbytes() + extra_bytes)
        self._events.append(serial)

        def freed(_: Any) -> None:
            del self._serials[handle]
            del self._references[handle]
            self._events.append(~serial)

        self._serials[handle] = serial
        self._references[handle] = weakref.ref(storage, freed)
