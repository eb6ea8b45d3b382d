"""Global state that a trace may move, put back afterwards, also when something raises."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def tracing_state() -> Iterator[None]:
    """Everything that a trace needs and must leave as it was: random generators, compiler stance, validation.

    Functions compiled by ``torch.compile`` run as they were written. Distributions do not check their arguments,
    because that reads values although nothing depends on them.
    """
    with ExitStack() as stack:
        stack.enter_context(preserved_random_state())
        stack.enter_context(_unchecked_distributions())
        stack.enter_context(_silent_fake_tensors())
        # Importing the compiler takes seconds; where nobody did, nothing is compiled.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    checked = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(checked)


@contextmanager
def _silent_fake_tensors() -> Iterator[None]:
    # An operator without a shape rule is logged with its traceback before it raises; here it has a way out.
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Keep the random generators of torch (all devices in use), numpy and Python where they are."""
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    cuda_in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = list(range(torch.cuda.device_count())) if cuda_in_use else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)
