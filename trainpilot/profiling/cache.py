"""Remembers profiles, so that asking again about the same workload costs next to nothing.

A workload is recognised by a stamp of everything in it that changes a training step: layers, shapes,
``requires_grad``, train mode, hyper-parameters, hooks, and the code of its functions with what they refer to. Weights
do not count, so a profile that depends on values of tensors is not remembered, nor is one of a workload that holds
something which cannot be looked into. Entries keep no model alive.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch

from trainpilot.profiling.result import WorkloadProfile
from trainpilot.profiling.stamps import Stamper, global_hooks
from trainpilot.profiling.trees import NoStampError
from trainpilot.workload import Workload

_MOST_ENTRIES = 128
_HASHED_PIECES = 256


@dataclasses.dataclass(frozen=True)
class CacheKey:
    """What a cached profile belongs to.

    Attributes:
        stamp: Equal for workloads whose profiles are equal.
        fingerprint: Hash of some of its pieces: all of them take longer to hash than to compare.
    """

    stamp: tuple[Hashable, ...]
    fingerprint: int = dataclasses.field(compare=False)

    @classmethod
    def of(cls, pieces: list[Any]) -> CacheKey:
        """Key of a stamp.

        Raises:
            TypeError: One of the pieces that were looked at cannot be hashed.
        """
        some = pieces[:: max(1, len(pieces) // _HASHED_PIECES)]
        return cls(tuple(pieces), hash((len(pieces), *some)))

    def __hash__(self) -> int:
        return self.fingerprint


class ProfileCache:
    """The most recently used profiles; safe to use from several threads."""

    def __init__(self, most_entries: int = _MOST_ENTRIES) -> None:
        self._most_entries = most_entries
        self._entries: OrderedDict[CacheKey, WorkloadProfile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> WorkloadProfile | None:
        """The profile stored under ``key``, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: CacheKey, profile: WorkloadProfile) -> None:
        """Store a profile; the least recently used one makes room.

        One that depends on values of tensors is not stored: a value may change without leaving a trace. Nor is one
        with a piece that has no hash: it might change without becoming another object.
        """
        if profile.data_dependent:
            return
        try:
            hash(key.stamp)
        except TypeError:
            return
        with self._lock:
            self._entries[key] = profile
            self._entries.move_to_end(key)
            while len(self._entries) > self._most_entries:
                self._entries.popitem(last=False)


def cache_key(workload: Workload) -> CacheKey | None:
    """Key of a workload, or None where it holds something that cannot be recognised again."""
    stamper = Stamper()
    try:
        for value in (workload.model, workload.loss, workload.optimizer, dict(workload.settings), global_hooks()):
            stamper.add(value)
        for batch in (workload.example_inputs, workload.targets):
            # What a function returns may depend on values that it holds.
            (stamper.add if callable(batch) else stamper.add_batch)(batch)
        if isinstance(workload.model, str):
            stamper.pieces.append(workload.model_hash)  # of the settings, or of the source file
        stamper.pieces += _circumstances(workload)
        return CacheKey.of(stamper.pieces)
    except (NoStampError, TypeError, RuntimeError):  # not visible, no hash, or changed meanwhile
        return None


def _circumstances(workload: Workload) -> tuple[Hashable, ...]:
    return (
        workload.batch_size,
        workload.dtype,
        workload.input_spec,
        workload.classes,
        workload.learning_rate,
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
    )
