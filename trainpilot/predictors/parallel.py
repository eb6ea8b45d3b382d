"""Fitting several models at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from trainpilot.hardware import usable_cores

_Result = TypeVar("_Result")


def side_by_side(function: Callable[..., _Result], *arguments: Iterable[Any], n_jobs: int | None) -> list[_Result]:
    """What ``map`` gives, some calls at a time; each has one BLAS thread, so that the bits do not depend on ``n_jobs``.

    Args:
        function: What is called.
        arguments: Its arguments, call by call.
        n_jobs: Calls at a time; default: the usable cores.
    """
    with ThreadPoolExecutor(n_jobs or usable_cores()) as pool, threadpool_limits(1, user_api="blas"):
        return list(pool.map(function, *arguments))
