"""Random generators of Python and numpy: the global ones, and those that a model holds of its own."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from typing import Any


def is_generator(value: Any) -> bool:
    """True for what keeps the state of a random generator of Python or numpy.

    Generators of numpy draw from a bit generator, which keeps it. That of the operating system keeps none.
    """
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.random.BitGenerator)


def random_state(generators: Iterable[Any] = ()) -> tuple[Any, ...]:
    """State of the global generators of Python and numpy and of others; equal as long as nothing is drawn."""
    states = [random.getstate(), *map(_state, generators)]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states.append(_comparable(numpy.random.get_state(legacy=False)))
    return tuple(states)


def continue_from(generators: Iterable[Any], others: Iterable[Any]) -> None:
    """Let each generator go on where its counterpart is."""
    for generator, other in zip(generators, others, strict=True):
        if isinstance(generator, random.Random):
            generator.setstate(other.getstate())
        else:
            generator.state = other.state


def _state(generator: Any) -> Any:
    return generator.getstate() if isinstance(generator, random.Random) else _comparable(generator.state)


def _comparable(state: Any) -> Any:
    """Dicts and arrays of numpy, which have no plain comparison, as tuples."""
    if isinstance(state, dict):
        return tuple((name, _comparable(value)) for name, value in state.items())
    return state.tobytes() if hasattr(state, "tobytes") else state
