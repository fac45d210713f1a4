"""Options of commands that measure on targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nnstretch.cli.options import option, option_field
from nnstretch.devices.targets.base import OTHER_MACHINES
from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from nnstretch.devices.targets.results import BenchOptions

_PANEL = "On targets"

Targets = Annotated[
    list[str] | None,
    option(
        "--target TARGET",
        f"A machine to measure on, by a runner that needs no Python: {OTHER_MACHINES}; or local, by the runner beside others "
        "or with an option below. The option may be repeated; targets are measured at the same time.",
        panel=_PANEL,
        shown="local, without the runner",
    ),
]
OneAfterAnother = Annotated[
    list[str] | None,
    option(
        "--target TARGET",
        f"Another machine, by a runner that needs no Python: {OTHER_MACHINES}. "
        "The option may be repeated; targets come one after the other.",
        shown="local",
    ),
]


def check_unused(given: Mapping[str, object], purpose: str) -> None:
    """Refuses options that were given and do not go with targets.

    Args:
        given: option -> its value; one that is None, False or empty was not given.
        purpose: where they do not go, as the end of a sentence.

    Raises:
        UsageError: one of them was given.
    """
    if used := [name for name, value in given.items() if value]:
        raise UsageError(f"{' and '.join(used)} {'do' if len(used) > 1 else 'does'} not go with {purpose}")


@dataclass(frozen=True)
class TargetTiming:
    """The options of `bench` that only targets take."""

    minutes: float | None = option_field(
        "--minutes M",
        "Run each model back to back for M minutes: latency, clock and temperature over time.",
        panel=_PANEL,
    )
    cool_down: float | None = option_field("--cool-down SECONDS", "Wait between models.", minimum=0, panel=_PANEL)
    hottest: float | None = option_field(
        "--hottest CELSIUS", "Pause while a sensor of the CPU is hotter.", panel=_PANEL
    )
    stop_when_hot: bool = option_field(
        "--stop-when-hot", "End the measurement at --hottest instead of pausing.", default=False, panel=_PANEL
    )
    patience: float = option_field(
        "--patience SECONDS",
        "Seconds beyond the measuring time after which a runner counts as hung and is ended.",
        default=300.0,
        minimum=1,
        panel=_PANEL,
    )
    benchmark_model: Path | None = option_field(
        "--benchmark-model FILE",
        "TFLite's own benchmark_model for the targets: it times the models as TFLite files, too, after ours.",
        panel=_PANEL,
    )
    litert_library: Path | None = option_field(
        "--litert-library FILE",
        "LiteRT's library (libLiteRt.so) for the targets, for models with LiteRT processors; accelerators' libraries beside it "
        "go with it.",
        panel=_PANEL,
        shown="the targets' own",
    )
    keep: bool = option_field(
        "--keep",
        "Leave the pushed files on the targets; the next run with --keep uses them.",
        default=False,
        panel=_PANEL,
    )

    def uses_runner(self, targets: Sequence[str]) -> bool:
        """Whether targets are measured by the runner: this machine alone is, if one of these options is given.

        Raises:
            UsageError: one of them is given, but no target.
        """
        given = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items() if name != "patience"}
        if not targets:
            check_unused(given, "measurements without --target; name the machine, such as --target local")
        return any(target != "local" for target in targets) or (bool(targets) and any(given.values()))

    def options(self, seconds: float, seed: int) -> BenchOptions:
        """How the runner measures.

        Args:
            seconds: measuring time per model.
            seed: of the inputs and of the order of turns.
        """
        from nnstretch.devices.targets.results import BenchOptions

        return BenchOptions(
            seconds=seconds,
            seed=seed,
            minutes=self.minutes,
            cool_down=self.cool_down,
            hottest=self.hottest,
            when_hot="stop" if self.stop_when_hot else "pause",
            patience=self.patience,
        )
