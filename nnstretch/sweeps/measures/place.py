"""Where a worker measures designs: this machine, or a target that may be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nnstretch.api.options import CompileOptions, StretchOptions
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.compiler.targets.opened import open_target_processors
from nnstretch.devices.targets.base import TargetError
from nnstretch.errors import DeviceError, first_line
from nnstretch.support.progress import Progress, silent

_Answer = TypeVar("_Answer")


class LostMachineError(DeviceError):
    """A worker cannot measure any more. Its trial is queued again, and the worker ends."""


class RunThere(Protocol):
    """Does some work that measures on a target; a signal ends what runs there."""

    def __call__(self, work: Callable[[], _Answer]) -> _Answer:
        """Returns what the work returns. Raises as it does."""


def _run_here(work: Callable[[], _Answer]) -> _Answer:
    return work()


@dataclass(frozen=True)
class Place:
    """The machine that measures.

    Attributes:
        target: its name; "" for this machine.
        run: does work there.
    """

    target: str = ""
    run: RunThere = _run_here

    def measure(self, work: Callable[[], _Answer]) -> _Answer:
        """Does some work that measures.

        Raises:
            LostMachineError: the target cannot be used any more.
            NNStretchError: the work failed for another reason.
        """
        try:
            return self.run(work)
        except TargetError as error:
            raise LostMachineError(
                f"{first_line(error)}; the study keeps its trials: mend that, and go on with `resume=True`"
            ) from error


HERE = Place()
"""This machine."""


@dataclass(frozen=True)
class OpenPlace:
    """A machine that measures, with its processors.

    Attributes:
        processors: one per branch.
        place: where they are.
        is_here: whether measured programs run on cores of this machine.
    """

    processors: Processors
    place: Place
    is_here: bool


@contextmanager
def open_place(target: str, processors: str, progress: Progress = silent) -> Iterator[OpenPlace]:
    """A machine that measures within the block.

    Args:
        target: its name; "" for this machine.
        processors: as the user wrote them. On a target, the default stands for its clusters of cores.
        progress: called while a target is prepared.

    Raises:
        UsageError: the target or its processors are not understood.
        DeviceError: a processor or the target cannot be used.
    """
    if not target:
        yield OpenPlace(build_processors(processors), HERE, is_here=True)
        return
    options, is_default = CompileOptions(processors, target=target), processors == StretchOptions.processors
    with open_target_processors(options, clusters=is_default, progress=progress) as opened:
        yield OpenPlace(opened.processors, Place(target, opened.do), opened.device.is_here)
