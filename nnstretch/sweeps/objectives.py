"""What a sweep optimises: objectives by name, and the fidelity from which on each is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from nnstretch.errors import UsageError
from nnstretch.support.words import counted

Direction = Literal["minimize", "maximize"]
"""What becomes of a value, in Optuna's words."""


class Fidelity(IntEnum):
    """How thoroughly a design is evaluated. Every step costs more than the one before, and uses its results."""

    PREDICTED = 0
    """Latency and memory are predicted from measured layers."""
    MEASURED = 1
    """The network with inherited weights is planned and run."""
    DISTILLED = 2
    """Its segments learn the feature maps of the original, and the accuracy is that on validation images."""
    FINETUNED = 3
    """It is trained for a few epochs."""
    TRAINED = 4
    """It is trained for all epochs of the recipe."""

    @property
    def label(self) -> str:
        """Its name in options, attributes of trials and files."""
        return self.name.lower()


FIDELITIES: Mapping[str, Fidelity] = {fidelity.label: fidelity for fidelity in Fidelity}
"""Fidelities by name."""


@dataclass(frozen=True)
class Objective:
    """A value that a sweep minimises or maximises.

    Attributes:
        name: in `--objectives` and in results.
        unit: of its values.
        maximised: more is better.
        known_from: the first fidelity that has it.
        help: what it is.
    """

    name: str
    unit: str
    maximised: bool
    known_from: Fidelity
    help: str

    @property
    def direction(self) -> Direction:
        """Whether it is minimised or maximised, in Optuna's words."""
        return "maximize" if self.maximised else "minimize"


OBJECTIVES: Mapping[str, Objective] = {
    one.name: one
    for one in (
        Objective("latency", "ms", False, Fidelity.PREDICTED, "predicted, then median of measured runs"),
        Objective("p90", "ms", False, Fidelity.MEASURED, "90th percentile of measured runs"),
        Objective("accuracy", "%", True, Fidelity.DISTILLED, "on validation images"),
        Objective("macs", "M", True, Fidelity.PREDICTED, "of convolutions and dense layers: capacity without data"),
        Objective("memory", "MiB", False, Fidelity.PREDICTED, "weights and the peak of a plan's tensors"),
        Objective("params", "M", False, Fidelity.PREDICTED, "learnable scalars"),
        Objective("energy", "mJ", False, Fidelity.MEASURED, "per run, by powercap or the battery of a target"),
    )
}
"""Objectives by name."""

REDUCTION = 3
"""Default of successive halving: one trial in three goes on to the next fidelity."""

Values = Mapping[str, float]
"""Values by the names of objectives."""


def objectives_help() -> str:
    """All objectives with what they are, for `--help`."""
    return "; ".join(f"{one.name} ({one.help})" for one in OBJECTIVES.values())


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Objectives by name, separated by commas.

    Raises:
        UsageError: one is unknown or named twice.
    """
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in OBJECTIVES]
    if unknown:
        raise UsageError(f"--objectives {text}: {unknown[0]!r} is none; give some of {', '.join(OBJECTIVES)}")
    if len(set(names)) < len(names):
        raise UsageError(f"--objectives {text} names one twice; give each once")
    return tuple(OBJECTIVES[name] for name in names)


def fidelity_of(objectives: Sequence[Objective], wanted: str | None) -> Fidelity:
    """The fidelity of a study's values: the one wanted, by default the first that knows all objectives.

    Raises:
        UsageError: `wanted` is unknown, or does not know an objective.
    """
    least = max(objective.known_from for objective in objectives)
    if wanted is None:
        return least
    if wanted not in FIDELITIES:
        raise UsageError(f"--fidelity {wanted} is unknown; give one of {', '.join(FIDELITIES)}")
    if FIDELITIES[wanted] < least:
        late = next(one.name for one in objectives if one.known_from > FIDELITIES[wanted])
        raise UsageError(
            f"--fidelity {wanted} does not know {late}; give {least.label} or more, or leave {late} out of --objectives"
        )
    return FIDELITIES[wanted]


def checked_values(found: Any, count: int) -> tuple[float, ...]:
    """The values of a trial, if they are as many finite numbers as there are objectives.

    Raises:
        UsageError: they are not.
    """
    values = found if isinstance(found, Sequence) and not isinstance(found, str) else (found,)
    if len(values) != count:
        raise UsageError(
            f"the objective returned {counted(len(values), 'value')}; the study has {count}: return one for each"
        )
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the objective returned {found!r}; return a number for each direction") from error
    if not all(map(math.isfinite, numbers)):
        raise UsageError(f"the objective returned {found!r}; return finite numbers")
    return numbers
