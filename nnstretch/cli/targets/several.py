"""A command that does the same work for one target after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.cli.console import Reporter
from nnstretch.errors import NNStretchError, StoppedError

Work = Callable[[Reporter, str], int]
"""Does the work for a target and returns an exit status."""


def for_each_target(report: Reporter, targets: Sequence[str], work: Work) -> int:
    """Does the work for every target; one that fails does not keep it from the others.

    The answer for one target is that of the work; for several it is `{"targets": […]}`, with the target in each of them, and
    the error of those that failed.

    Returns:
        The largest exit status; 1 if a target failed.

    Raises:
        NNStretchError: the only target failed, or all of them did; the first error.
    """
    unique = list(dict.fromkeys(targets))
    if len(unique) == 1:
        return work(report, unique[0])
    answers: list[Mapping[str, Any]] = []
    errors: list[NNStretchError] = []
    status = 0
    for target in unique:
        report.show(f"{target}:")
        own: list[Mapping[str, Any]] = []
        try:
            status = max(status, work(report.part(own), target))
        except StoppedError:
            raise
        except NNStretchError as error:
            errors.append(error)
            report.note(f"error: {error}")
            own = [{"error": str(error)}]
        answers += [{"target": target, **answer} for answer in own]
    if len(errors) == len(unique):
        raise errors[0]
    report.finish({"targets": answers})
    return max(status, int(bool(errors)))


def path_for_target(path: Path, target: str, targets: Sequence[str]) -> Path:
    """Where a command writes for a target: the path itself for the only one, else its name with the target's appended."""
    if len(dict.fromkeys(targets)) == 1:
        return path
    called = re.sub(r"[^\w.]+", "-", target).strip("-")
    return path.with_name(f"{path.stem}-{called}{path.suffix}")
