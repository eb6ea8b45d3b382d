"""Memory that operators hold and that no tensor of the trace shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainpilot.profiling.operators import OpKind


def workspace_bytes(kind: OpKind, sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    """Bytes that an operator allocates while it runs and frees before it returns."""
    return 0


def extra_output_bytes(kind: OpKind, sizes: Mapping[str, int], args: Sequence[Any]) -> Mapping[int, int]:
    """Bytes by output position that the real output has beyond the fake one."""
    return {}
