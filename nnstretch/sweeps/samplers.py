"""Samplers by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from nnstretch.errors import FileError, MissingExtraError, UsageError, first_line

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

MakeSampler = Callable[[int], "BaseSampler"]
"""From a seed to a sampler."""


def _tpe(seed: int) -> BaseSampler:
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed)


def _nsga2(seed: int) -> BaseSampler:
    from optuna.samplers import NSGAIISampler

    return NSGAIISampler(seed=seed)


def _nsga3(seed: int) -> BaseSampler:
    from optuna.samplers import NSGAIIISampler

    return NSGAIIISampler(seed=seed)


def _gp(seed: int) -> BaseSampler:
    from optuna.samplers import GPSampler

    return GPSampler(seed=seed, deterministic_objective=True)


def _random(seed: int) -> BaseSampler:
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)


def _auto(seed: int) -> BaseSampler:
    sampler: BaseSampler = _auto_sampler()(seed=seed)
    return sampler


@cache
def _auto_sampler() -> Any:
    """The class AutoSampler. OptunaHub downloads it if it is not in its cache, so it is loaded once per process.

    Raises:
        MissingExtraError: optunahub, or a library that the sampler needs, is not installed.
        FileError: it cannot be downloaded.
    """
    advice = "or give another `sampler`"
    try:
        import optunahub

        return optunahub.load_module("samplers/auto_sampler").AutoSampler
    except ImportError as error:
        raise MissingExtraError(
            "the sampler auto is OptunaHub's AutoSampler, which needs optunahub, cmaes, scipy and torch; "
            f"pip install 'nnstretch[auto]', {advice}"
        ) from error
    except Exception as error:  # whatever git, GitHub's interface or the network raise
        raise FileError(
            f"cannot download the sampler auto from OptunaHub: {first_line(error)}; check the network, {advice}"
        ) from error


SAMPLERS: Mapping[str, MakeSampler] = {
    "tpe": _tpe,
    "nsga2": _nsga2,
    "nsga3": _nsga3,
    "gp": _gp,
    "random": _random,
    "auto": _auto,
}
"""Samplers by name; a new one is a function and a line here."""
FITTING = frozenset({"gp", "auto"})
"""Samplers that fit Gaussian processes with torch."""
OPENMP_THREADS = "OMP_NUM_THREADS"
"""Environment variable with the number of OpenMP's threads, which torch reads when it is loaded."""


def find_sampler(name: str) -> MakeSampler:
    """The sampler of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in SAMPLERS:
        raise UsageError(f"`sampler` {name} is unknown; give one of {', '.join(SAMPLERS)}")
    return SAMPLERS[name]


def limit_openmp(sampler: str) -> None:
    """Limits OpenMP to one thread for a sampler that fits Gaussian processes, unless the environment sets its threads.

    For sweeps that train nothing; must run before torch is loaded. Idle threads would wake on cores that are measured.
    """
    if sampler in FITTING:
        os.environ.setdefault(OPENMP_THREADS, "1")


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Lets torch, which fits Gaussian processes, use one thread: others would occupy cores that are measured."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
