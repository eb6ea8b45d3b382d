"""The seed of a run."""

from __future__ import annotations

import operator

from trainpilot.errors import UsageError

LARGEST_SEED = 2**63 - 1
"""What torch and numpy both take."""


def check_seed(seed: int) -> int:
    """Return the seed.

    Raises:
        UsageError: It is no whole number, negative, or too large.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number <= LARGEST_SEED:
        raise UsageError(f"seed must be a whole number from 0 to {LARGEST_SEED}, got {seed!r}")
    return number
