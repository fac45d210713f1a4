"""Where a worker measures designs: this machine, or a target that may be lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nnstretch.devices.targets.base import TargetError
from nnstretch.errors import DeviceError, first_line

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
                f"{first_line(error)}; the study keeps its trials: mend that, and go on with --resume"
            ) from error


HERE = Place()
"""This machine."""
