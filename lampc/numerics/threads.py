"""Spread the lanes of a kernel over threads; kernels release the interpreter lock, and lanes do not depend on each other."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

_MIN_SHARE_NS = 100_000.0
"""Less work than this per thread costs more to hand over than it saves."""

_pool: ThreadPoolExecutor | None = None
_pool_size = 0
_count: int | None = None


def set_threads(count: int | None) -> None:
    """Use `count` threads from now on; None: as many as this process may use processors."""
    global _count
    _count = count


def thread_count() -> int:
    """How many threads share a kernel's lanes."""
    if _count is not None:
        return max(1, _count)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(run: Callable[[int, int], None], n: int, lane_ns: float) -> None:
    """Call run(first, last) so that all of 0..n is covered; `lane_ns` is the cost of a lane, roughly, in nanoseconds."""
    shares = max(1, min(thread_count(), n, int(n * lane_ns / _MIN_SHARE_NS)))
    if shares == 1:
        run(0, n)
        return
    pool = _helpers(thread_count() - 1)
    cuts = [n * share // shares for share in range(shares + 1)]
    others = [pool.submit(run, *cut) for cut in pairwise(cuts[1:])]
    run(cuts[0], cuts[1])
    for other in others:
        other.result()


def _helpers(count: int) -> ThreadPoolExecutor:
    """At least `count` threads beside the caller's own; they stay for the next call."""
    global _pool, _pool_size
    if _pool is None or _pool_size < count:
        if _pool is not None:
            _pool.shutdown(wait=False)
        _pool, _pool_size = ThreadPoolExecutor(count, "lampc-kernels"), count
    return _pool


def _forget_pool() -> None:
    global _pool
    _pool = None


# Threads do not survive a fork; the child starts its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
