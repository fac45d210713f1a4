"""The cores of a training while others work beside it.

Threads of a training wait for each other hundreds of times per step, and each time for whatever runs beside them. On two busy
cores, beside a build of the engine, a step of a ResNet-18 on 16 images of 64×64 takes 233 ms and 261 ms of CPU time by two
threads, and 190 ms by one, which also leaves the build a core: it ends in 49 s instead of 56.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Share = Callable[[int], int]
"""The threads that a training may use now, of those that it begins with."""


def all_threads(whole: int) -> int:
    """The share of a training that runs alone."""
    return whole


def beside(taken: Callable[[int], int]) -> Share:
    """The threads that something else leaves, until it has ended.

    Args:
        taken: how many of a number of threads it takes: not all, unless there is one; 0 when it has ended.
    """
    ended = False

    def share(whole: int) -> int:
        nonlocal ended
        ended = ended or whole == 1 or not taken(whole)
        return whole if ended else whole - taken(whole)

    return share


@contextmanager
def sharing_cores(share: Share) -> Iterator[Callable[[], None]]:
    """Lets torch use its share of threads in a block.

    Yields:
        A call between steps, which follows a share that has changed.
    """
    import torch

    whole = last = torch.get_num_threads()

    def look() -> None:
        nonlocal last
        if (now := share(whole)) != last:
            torch.set_num_threads(now)
            last = now

    look()
    try:
        yield look
    finally:
        torch.set_num_threads(whole)
