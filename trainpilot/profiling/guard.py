"""Global state that a trace may move, put back afterwards, also when something raises."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def tracing_state() -> Iterator[None]:
    """Everything that a trace needs and must leave as it was.

    Random generators, thread count, default dtype, garbage collection, environment variables and warning filters are
    put back. Autocast and anomaly detection of the caller are off meanwhile.

    Functions compiled by ``torch.compile`` run as they were written. Distributions do not check their arguments,
    because that reads values although nothing depends on them.
    """
    with ExitStack() as stack:
        stack.enter_context(preserved_random_state())
        stack.enter_context(_preserved_settings())
        stack.enter_context(_unchecked_distributions())
        stack.enter_context(_silent_fake_tensors())
        # The caller's autocast would reach the backward pass, and its search for NaNs reads every gradient.
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        # Importing the compiler takes seconds; where nobody did, nothing is compiled.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def preserved_gradients(roots: Iterable[torch.Tensor], known: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Keep the gradients of leaves that a backward pass from ``roots`` reaches and that are not ``known`` copies."""
    kept = [(leaf, leaf.grad) for leaf in _leaves(roots) if not known(leaf)]
    for leaf, _ in kept:
        leaf.grad = None  # else the new gradient is added in place
    try:
        yield
    finally:
        for leaf, grad in kept:
            leaf.grad = grad


def _leaves(roots: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    stack = [root.grad_fn for root in roots]
    seen: set[Any] = set()
    while stack:
        node: Any = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # accumulates the gradient of a leaf
            yield node.variable
        stack.extend(after for after, _ in node.next_functions)


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    checked = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(checked)


@contextmanager
def _preserved_settings() -> Iterator[None]:
    """Put back what a model or a builder may set, and what modules of PyTorch set when they are imported."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    collects, thresholds = gc.isenabled(), gc.get_threshold()
    environment = dict(os.environ)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        gc.set_threshold(*thresholds)
        (gc.enable if collects else gc.disable)()
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})


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
