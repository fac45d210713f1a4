"""Where `nnstretch sweep` measures: this machine, or targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from nnstretch.api.options import CompileOptions, StretchOptions
from nnstretch.cli.console import Reporter
from nnstretch.cli.options import names_of_several
from nnstretch.cli.targets.tuning import OpenTarget, opened_target
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.compiler.targets.processors import kind_of
from nnstretch.errors import UsageError
from nnstretch.sweeps.measures.place import HERE, Place


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
def opened_place(report: Reporter, target: str, processors: str) -> Iterator[OpenPlace]:
    """A machine that measures within the block.

    Args:
        report: shows the progress.
        target: its name; "" for this machine.
        processors: as the user wrote them. On a target, the default stands for its clusters of cores.

    Raises:
        UsageError: the processors are not understood, or fewer than two.
        DeviceError: a processor or the target cannot be used.
    """
    if not target:
        yield OpenPlace(build_processors(processors), HERE, is_here=True)
        return
    with _opened(report, target, processors) as opened:
        names_of_several([processor.name for processor in opened.processors.named], "a branching")
        yield OpenPlace(opened.processors, Place(target, opened.do), opened.device.is_here)


def _opened(report: Reporter, target: str, processors: str) -> AbstractContextManager[OpenTarget]:
    is_default = processors == StretchOptions.processors
    return opened_target(report, CompileOptions(processors, target=target), clusters=is_default)


def check_targets(targets: Sequence[str], processors: Sequence[str]) -> None:
    """Refuses targets and processors that do not go together, before any is opened.

    Args:
        targets: as the user wrote them.
        processors: as the user wrote them.

    Raises:
        UsageError: a target is named twice, or processors are simulated.
    """
    twice = next((target for target in targets if targets.count(target) > 1), None)
    if twice is not None:
        raise UsageError(f"--target {twice} is given twice; name each device once")
    simulated = next((text for text in processors if "sim:" in text), None)
    if targets and simulated is not None:
        raise UsageError(f"--processors {simulated}: simulated processors are on no target; leave out --target")


def check_one_kind(report: Reporter, targets: Sequence[str], processors: str) -> None:
    """Refuses targets whose measurements are not comparable: those of one study are devices of one kind.

    Raises:
        UsageError: two targets differ in their CPU, or in the cores of a processor.
        DeviceError: one cannot be used.
    """
    kinds: dict[str, list[str]] = {}
    for target in targets:
        with _opened(report, target, processors) as opened:
            kinds[target] = [f"{p.name} of {kind_of(p.fingerprint)}" for p in opened.processors.named]
    first, *others = targets
    for other in others:
        if kinds[other] != kinds[first]:
            one, two = next(pair for pair in zip(kinds[first], kinds[other], strict=False) if pair[0] != pair[1])
            raise UsageError(
                f"{first} has {one}, {other} has {two}: latencies of different devices do not compare; give each kind of "
                "device a study of its own (--study)"
            )
