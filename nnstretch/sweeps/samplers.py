"""Samplers by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nnstretch.errors import MissingExtraError, UsageError

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
    try:
        import optunahub
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "the sampler auto is OptunaHub's AutoSampler, which is not installed; pip install optunahub, or give another "
            "--sampler"
        ) from error
    sampler: BaseSampler = optunahub.load_module("samplers/auto_sampler").AutoSampler(seed=seed)
    return sampler


SAMPLERS: Mapping[str, MakeSampler] = {
    "tpe": _tpe,
    "nsga2": _nsga2,
    "nsga3": _nsga3,
    "gp": _gp,
    "random": _random,
    "auto": _auto,
}
"""Samplers by name; a new one is a function and a line here."""


def find_sampler(name: str) -> MakeSampler:
    """The sampler of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in SAMPLERS:
        raise UsageError(f"--sampler {name} is unknown; give one of {', '.join(SAMPLERS)}")
    return SAMPLERS[name]


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
