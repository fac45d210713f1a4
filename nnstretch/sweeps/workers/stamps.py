"""What a study and its trials were made with: versions, CPU, engine and drivers of every process that worked on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch.compiler.environment import environment
from nnstretch.sweeps.measures.results import digest

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

ENVIRONMENT = "environment"
"""Attribute of a study: what the process that created it was made of; `environment.NAME`: what other processes were.
Attribute of a trial: NAME for its worker."""


def stamp_study(study: Study) -> None:
    """Stores what this process is made of."""
    study.set_user_attr(ENVIRONMENT, environment())


def stamp_trial(study: Study, trial: Trial, known: set[str]) -> None:
    """Stores what this process is made of, once per study, and its name with the trial.

    Args:
        study: of the trial.
        trial: that runs.
        known: names that this process has stored; a new one is added.
    """
    found = environment()
    name = digest(found)[:8]
    if name not in known:
        study.set_user_attr(f"{ENVIRONMENT}.{name}", found)
        known.add(name)
    trial.set_user_attr(ENVIRONMENT, name)
