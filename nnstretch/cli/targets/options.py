"""Options of commands that measure on targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nnstretch.cli.options import option
from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from nnstretch.devices.targets.results import BenchOptions

_PANEL = "On targets"

Targets = Annotated[
    list[str] | None,
    option(
        "--target TARGET",
        "A machine to measure on, by a runner that needs no Python: ssh:[USER@]HOST[:PORT], adb[:SERIAL], qemu:aarch64[:CPU], "
        "local. The option may be repeated; targets are measured at the same time.",
        panel=_PANEL,
        shown="local, without the runner",
    ),
]
OneAfterAnother = Annotated[
    list[str] | None,
    option(
        "--target TARGET",
        "Another machine, by a runner that needs no Python: ssh:[USER@]HOST[:PORT], adb[:SERIAL], qemu:aarch64[:CPU]. "
        "The option may be repeated; targets come one after the other.",
        shown="local",
    ),
]
Keep = Annotated[
    bool, option("--keep", "Leave the pushed files on the targets; the next run with --keep uses them.", panel=_PANEL)
]
Minutes = Annotated[
    float | None,
    option(
        "--minutes M",
        "Run each model back to back for M minutes: latency, clock and temperature over time.",
        panel=_PANEL,
    ),
]
CoolDown = Annotated[float | None, option("--cool-down SECONDS", "Wait between models.", minimum=0, panel=_PANEL)]
Hottest = Annotated[
    float | None,
    option("--hottest CELSIUS", "Pause while a sensor of the CPU is hotter.", panel=_PANEL),
]
StopWhenHot = Annotated[
    bool, option("--stop-when-hot", "End the measurement at --hottest instead of pausing.", panel=_PANEL)
]
Patience = Annotated[
    float,
    option(
        "--patience SECONDS",
        "Seconds beyond the measuring time after which a runner counts as hung and is ended.",
        minimum=1,
        panel=_PANEL,
    ),
]
BenchmarkTool = Annotated[
    Path | None,
    option(
        "--benchmark-model FILE",
        "TFLite's own benchmark_model for the targets: it times the models as TFLite files, too, after ours.",
        panel=_PANEL,
    ),
]
PATIENCE = 300.0


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

    minutes: float | None
    cool_down: float | None
    hottest: float | None
    stop_when_hot: bool
    keep: bool
    benchmark_model: Path | None = None

    def uses_runner(self, targets: Sequence[str]) -> bool:
        """Whether targets are measured by the runner: this machine alone is, if one of these options is given.

        Raises:
            UsageError: one of them is given, but no target.
        """
        given = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items()}
        if not targets:
            check_unused(given, "measurements without --target; name the machine, such as --target local")
        return any(target != "local" for target in targets) or (bool(targets) and any(given.values()))

    def options(self, seconds: float, patience: float, seed: int) -> BenchOptions:
        """How the runner measures.

        Args:
            seconds: measuring time per model.
            patience: further seconds after which it counts as hung.
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
            patience=patience,
        )
