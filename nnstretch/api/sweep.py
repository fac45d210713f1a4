"""`nnstretch.sweep`: designs of a module explored by Optuna, for objectives of the caller's or predicted ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from nnstretch.api.options import StretchOptions
from nnstretch.branching.design.design import Design
from nnstretch.errors import UsageError
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.support.extras import extras_named
from nnstretch.support.image_size import ImageSize
from nnstretch.support.progress import Progress, silent
from nnstretch.sweeps.designs import DesignSweep, SweepResult, SweepSpec, evaluation_by
from nnstretch.sweeps.measures.place import open_place
from nnstretch.sweeps.objectives import Direction
from nnstretch.sweeps.samplers import find_sampler
from nnstretch.sweeps.space import forms_of
from nnstretch.sweeps.workers.worker import SweepBudget

Objective = Callable[..., "float | Sequence[float]"]
"""From a design, and its type if the caller gives types, to its value, or to one value per direction."""


def _latency_and_macs(design: Design) -> tuple[float, float]:
    assert design.predicted_ms is not None
    return design.predicted_ms, design.macs / 1e6


@extras_named()
def sweep(
    module: torch.nn.Module,
    example_input: torch.Tensor,
    processors: str = StretchOptions.processors,
    objective: Objective | None = None,
    *,
    directions: Sequence[Direction] = ("minimize",),
    trials: int = 100,
    timeout: float | None = None,
    storage: str | Path = "sweep.journal",
    study: str = "sweep",
    resume: bool = False,
    sampler: str = "tpe",
    seed: int = 0,
    warm_start: int = 8,
    options: StretchOptions | None = None,
    merges: Sequence[str] = (),
    image_sizes: Sequence[ImageSize] = (),
    dtypes: Sequence[str] = (),
    target: str = "",
    progress: Progress | None = None,
) -> SweepResult:
    """Explores the designs of a module, and returns those that no other one dominates.

    Several processes that call it with the same storage, study and `resume=True` share the study.

    Args:
        module: any module that can be traced; it is not changed.
        example_input: one input of the shape to run at, N,C,H,W.
        processors: one branch is made for each.
        objective: called with designs that are within the limits; by default the predicted latency in milliseconds (to be
            minimised) and millions of MACs (to be maximised). If `dtypes` is given, the second argument is the design's type.
            What it raises fails that design alone.
        directions: `minimize` or `maximize` for every value of the objective.
        trials: of the study, earlier ones included.
        timeout: seconds after which no further design is tried; None: no limit.
        storage: a journal file, or the URL of a database.
        study: its name in the storage.
        resume: go on with the study of this name.
        sampler: tpe, nsga2, nsga3, gp, random or auto.
        seed: of all random numbers.
        warm_start: designs of the analytic search's front that come first.
        options: limits, merge mode and measurements; the other fields are not used.
        merges: merge modes to choose from, as `concat` and `add`; by default that of `options`.
        image_sizes: sides of the images to choose from in pixels, or heights and widths; by default that of `example_input`.
        dtypes: types to choose from: float32, int8; by default float32. Latencies of int8 designs are predicted from measured
            int8 layers; whoever uses such a design quantises it after its training.
        target: machine whose measurements latencies are predicted from, as `--target` takes it; this one by default. There,
            the default of `processors` stands for all clusters of cores.
        progress: called as progress(done, total, what).

    Returns:
        The front, and Optuna's study.

    Raises:
        NNStretchError: what was found, what was wanted, and what to do.
    """
    find_sampler(sampler)
    _check_types(module, example_input, objective)
    _check_directions(directions)
    chosen = options or StretchOptions()
    names, wanted = _goals(directions if objective else None)
    spec = SweepSpec(
        forms=forms_of(merges or (chosen.merge,), image_sizes, dtypes or (DEFAULT_DTYPE,)),
        limits=chosen.search_limits(),
        names=names,
        directions=wanted,
        budget=SweepBudget(trials, math.inf if timeout is None else timeout),
        storage=str(storage),
        study=study,
        resume=resume,
        sampler=sampler,
        seed=seed,
        warm=warm_start,
        learned=chosen.learned,
    )
    with open_place(target, processors, progress or silent) as opened:
        designs = DesignSweep(module, example_input, opened.processors, spec, progress or silent)
        return opened.place.measure(lambda: _explored(designs, objective, typed=bool(dtypes)))


def _goals(directions: Sequence[Direction] | None) -> tuple[tuple[str, ...], tuple[Direction, ...]]:
    """Names and directions of the values of a caller's objective; None: of the predicted ones."""
    if directions is None:
        return ("latency", "macs"), ("minimize", "maximize")
    return tuple(f"value {number}" for number in range(len(directions))), tuple(directions)


def _explored(designs: DesignSweep, objective: Objective | None, *, typed: bool) -> SweepResult:
    """Opens or continues the study and runs it to its end."""
    begun = designs.open()
    designs.warm_start(begun)
    if objective is None:
        designs.run(begun, evaluation_by(designs, _latency_and_macs))
    else:
        designs.run(begun, evaluation_by(designs, objective, typed=typed), guarded=True)
    return designs.result(begun)


def _check_types(module: object, example_input: object, objective: object) -> None:
    """Refuses arguments of a wrong kind.

    Raises:
        UsageError: names the argument, and what to give.
    """
    for name, given, wanted in (("module", module, torch.nn.Module), ("example_input", example_input, torch.Tensor)):
        if not isinstance(given, wanted):
            raise UsageError(f"{name} is of type {type(given).__name__}; give a torch {wanted.__name__}")
    if objective is not None and not callable(objective):
        raise UsageError(f"objective is of type {type(objective).__name__}; give a function of a design")


def _check_directions(directions: Sequence[str]) -> None:
    """Refuses directions that do not exist, and none at all.

    Raises:
        UsageError: names what to give.
    """
    unknown = [direction for direction in directions if direction not in {"minimize", "maximize"}]
    if unknown or not directions:
        raise UsageError(f"directions are {', '.join(directions) or 'none'}; give minimize or maximize for every value")
