"""Cases of a comparison: models × processors × threads, and the length of each measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nnstretch.bench.comparison.subject import check_exists
from nnstretch.bench.timing import TimingOptions
from nnstretch.devices.base.spec import parse_counts, parse_processors, usable_cores
from nnstretch.errors import UsageError
from nnstretch.report.tables.text import threads_text
from nnstretch.support.words import counted

DEFAULT_MODELS = (
    *("resnet18", "resnet50", "mobilenetv2", "squeezenet1_1", "googlenet"),
    *("regnet_x_1_6gf", "efficientnet_lite4", "densenet121"),
)
"""Zoo names that stand for all kinds of kernels: dense, 1x1, depthwise and grouped convolutions, concats, pools, sums."""


@dataclass(frozen=True)
class RegressionOptions:
    """The measurement of every case.

    Attributes:
        pairs: pairs of processes, each of which tunes again.
        timing: rounds and turns.
        keep_cache: folder for the caches of the commits, to be used again; None for temporary ones.
    """

    pairs: int = 3
    timing: TimingOptions = field(default_factory=lambda: TimingOptions(rounds=10, turn=0.2))
    keep_cache: Path | None = None

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise UsageError(f"--pairs {self.pairs}: give 1 or more")
        if self.timing.rounds < 2:
            raise UsageError(f"--rounds {self.timing.rounds}: give 2 or more")
        if not 0 < self.timing.turn < math.inf:
            raise UsageError(f"--seconds {self.timing.turn}: give a number above 0")


class Case(NamedTuple):
    """What is compared. `threads` is None where no CPU is among the processors."""

    model: str
    processors: str
    threads: int | None

    def __str__(self) -> str:
        threads = "" if self.threads is None else f", {threads_text(self.threads)}"
        return f"{Path(self.model).name} on {self.processors}{threads}"


def parse_threads(text: str) -> tuple[int, ...]:
    """Numbers of threads as in `1,2`, each once.

    Raises:
        UsageError: something else, or more threads than this process has cores.
    """
    counts, cores = parse_counts(text), len(usable_cores())
    if not counts:
        raise UsageError(f"--threads {text}: give numbers above 0, such as 1,2")
    if max(counts) > cores:
        raise UsageError(f"--threads {text}: this process has {counted(cores, 'core')}")
    return counts


def find_cases(models: Sequence[str], processors: Sequence[str], threads: Sequence[int]) -> list[Case]:
    """All cases, model by model, each once.

    Args:
        models: as users write them; `all` is the whole zoo, none are `DEFAULT_MODELS`.
        processors: sets of processors, as users write them.
        threads: numbers of cores of the first CPU of a set.

    Raises:
        UsageError: processors are malformed, or a model is a package.
        NNStretchError: there is no such model.
    """
    wanted = list(dict.fromkeys(models or DEFAULT_MODELS))
    if "all" in wanted:
        from nnstretch.zoo import names

        wanted = list(dict.fromkeys([*names(), *(model for model in wanted if model != "all")]))
    for model in wanted:
        check_exists(model)
        if model.endswith(".nns"):
            raise UsageError(f"{model} is a package, whose plan is used as it is; give the model that it was made of")
    ways: dict[tuple[str, int | None], None] = {}
    for text in processors:
        cpu = next((spec for spec in parse_processors(text) if spec.kind == "cpu"), None)
        for count in threads:
            # More threads than the CPU has cores would repeat a case.
            ways[text, None if cpu is None else min(count, len(cpu.cores))] = None
    return [Case(model, text, count) for model in wanted for text, count in ways]
