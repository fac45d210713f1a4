"""Where `nnstretch sweep` measures: this machine, or targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from nnstretch.cli.console import Reporter
from nnstretch.cli.options import names_of_several
from nnstretch.compiler.targets.processors import kind_of
from nnstretch.errors import UsageError
from nnstretch.sweeps.measures.place import OpenPlace, open_place


@contextmanager
def opened_place(report: Reporter, target: str, processors: str) -> Iterator[OpenPlace]:
    """A machine that measures within the block, with progress while it is prepared.

    Args and errors are those of `open_place`; fewer than two processors are refused.
    """
    with ExitStack() as stack:
        with report.progress("Preparing") as advance:
            place = stack.enter_context(open_place(target, processors, advance))
        if target:
            names_of_several([processor.name for processor in place.processors.named], "a branching")
        yield place


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
        with opened_place(report, target, processors) as opened:
            kinds[target] = [f"{p.name} of {kind_of(p.fingerprint)}" for p in opened.processors.named]
    first, *others = targets
    for other in others:
        if kinds[other] != kinds[first]:
            one, two = next(pair for pair in zip(kinds[first], kinds[other], strict=False) if pair[0] != pair[1])
            raise UsageError(
                f"{first} has {one}, {other} has {two}: latencies of different devices do not compare; give each kind of "
                "device a study of its own (--study)"
            )
