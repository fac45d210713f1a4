"""The options of studies, and messages that name them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnstretch.cli.options import option_field
from nnstretch.errors import NNStretchError, StoppedError
from nnstretch.sweeps.samplers import SAMPLERS

if TYPE_CHECKING:
    from nnstretch.sweeps.workers.worker import SweepBudget

PANEL = "Study"
_ARGUMENT = re.compile(r"`(dtypes|image_sizes|resume|sampler|storage|study|timeout|trials)(?:=True)?`")


@dataclass(frozen=True)
class StudyRequest:
    """Options of the commands that run a study of Optuna.

    Attributes:
        trials: of the study, earlier ones included.
        timeout: seconds after which no trial begins; None: no limit.
        storage: a journal file, or the URL of a database or proxy.
        study: its name in the storage; None: after the model.
        resume: whether a study of this name goes on.
        sampler: its name.
    """

    trials: int = option_field(
        "--trials -n N", "Trials of the study, earlier ones included.", default=100, minimum=1, panel=PANEL
    )
    timeout: float | None = option_field(
        "--timeout --time-limit SECONDS", "Begin no further trial after this time.", minimum=0, panel=PANEL
    )
    storage: str = option_field(
        "--storage FILE|URL",
        "A journal file, a database (postgresql://…), or grpc://HOST:PORT of Optuna's proxy.",
        default="sweep.journal",
        panel=PANEL,
    )
    study: str | None = option_field("--study NAME", "Its name in the storage.", shown="MODEL", panel=PANEL)
    resume: bool = option_field("--resume", "Go on with the study of this name.", default=False, panel=PANEL)
    sampler: str = option_field("--sampler NAME", f"{', '.join(SAMPLERS)}.", default="tpe", panel=PANEL)

    @property
    def budget(self) -> SweepBudget:
        """When the study ends."""
        from nnstretch.sweeps.workers.worker import SweepBudget

        return SweepBudget(self.trials, math.inf if self.timeout is None else self.timeout)

    def name(self, subject: str) -> str:
        """The study's name: the one that was given, or one after its subject."""
        return self.study or re.sub(r"[^\w.-]+", "-", subject)


@contextmanager
def options_named() -> Iterator[None]:
    """Lets errors name options of the command where they name arguments of `nnstretch.sweep`: --resume for `resume=True`."""
    try:
        yield
    except StoppedError:
        raise
    except NNStretchError as error:
        said = _ARGUMENT.sub(lambda found: f"--{found[1].replace('_', '-')}", str(error))
        if said == str(error):
            raise
        raise type(error)(said) from error
