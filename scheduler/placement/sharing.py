"""Networks shared out on several processors, in the best mixture of types.

The int8 layers of a quantised network may have choices in int8 and in floats (`nnstretch.scheduler.selection.hybrid`).
Selection minimises the sum of all seconds, and placement is a heuristic, so neither proves that a mixture is the fastest on
several processors. So the network is also shared out with all layers in int8, and with all in floats, and the fastest of the
three is taken: in simulated time, or, among those that are predicted to be nearly as fast, in runs. A hybrid is never predicted
to be much slower than the network in one type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from nnstretch.errors import ModelError, SelectionError
from nnstretch.scheduler.placement.joint import Refine, completed, is_placed, placed, simulated_seconds
from nnstretch.scheduler.planner import ChoiceSpace
from nnstretch.scheduler.selection.hybrid import TYPES, in_type, is_mixed
from nnstretch.scheduler.simulation.timing import InterferenceModel

MIXED = "hybrid"
"""Name of the mixture of types among predictions by type."""

Runs = Callable[[ChoiceSpace], Sequence[float]]
"""Seconds of several runs of the best plan of a space that was shared out."""

NEAR = 1.03
"""Predicted seconds over the least predicted up to which runs decide."""
_TURNS = 3
"""In which the plans run, one after another, so that a passing disturbance meets all of them."""


def unrefined(single: ChoiceSpace) -> ChoiceSpace:
    """The space of one processor itself."""
    return single


def shared_out(
    space: ChoiceSpace,
    interference: InterferenceModel,
    refine: Refine = unrefined,
    *,
    keep_types: bool = False,
    runs: Runs | None = None,
) -> ChoiceSpace:
    """The space of several processors with every layer on one of them, or divided between several.

    Args:
        space: of several processors; a design may have placed its layers.
        interference: between the queues of the space.
        refine: corrects the costs of the spaces of single processors.
        keep_types: keep the choices of all types, for selections that limit the accuracy; then nothing is compared.
        runs: runs the plans in one type and in several that are predicted to be nearly as fast; predictions decide if None.

    Returns:
        The space of the fastest plan; of a mixture of types with the predicted seconds in each type
        (`ChoiceSpace.type_seconds`).
    """
    if keep_types or not is_mixed(space):
        return _shared_out(space, interference, refine)
    spaces = {dtype: one for dtype in TYPES if (one := _in_one_type(space, dtype, interference, refine)) is not None}
    spaces[MIXED] = _shared_out(space, interference, refine)
    seconds = {name: _seconds(one, interference) for name, one in spaces.items()}
    near = [name for name in reversed(spaces) if seconds[name] <= NEAR * min(seconds.values())]
    best = min(near, key=seconds.__getitem__) if runs is None else _fastest({name: spaces[name] for name in near}, runs)
    return replace(spaces[best], type_seconds={**seconds, MIXED: seconds[best]})


def _fastest(spaces: Mapping[str, ChoiceSpace], runs: Runs) -> str:
    """The name of the space whose plan has the least median of several turns of runs; the first of several."""
    if len(spaces) == 1:
        return next(iter(spaces))
    taken: dict[str, list[float]] = {name: [] for name in spaces}
    for _ in range(_TURNS):
        for name, space in spaces.items():
            taken[name] += runs(space)
    return min(taken, key=lambda name: median(taken[name]))


def _shared_out(space: ChoiceSpace, interference: InterferenceModel, refine: Refine) -> ChoiceSpace:
    return completed(space, interference) if is_placed(space) else placed(space, interference, refine)


def _in_one_type(space: ChoiceSpace, dtype: str, interference: InterferenceModel, refine: Refine) -> ChoiceSpace | None:
    """The space shared out with int8 layers in one type; None if the processors cannot compute it so."""
    try:
        return _shared_out(in_type(space, dtype), interference, refine)
    except (ModelError, SelectionError):
        return None


def _seconds(space: ChoiceSpace, interference: InterferenceModel) -> float:
    """Predicted seconds of a run of the fastest plan of a space that was shared out."""
    return space.placement.seconds if space.placement is not None else simulated_seconds(space, interference)


def type_milliseconds(space: ChoiceSpace) -> Mapping[str, float]:
    """Predicted milliseconds of a run by type, where types were compared."""
    return {name: 1e3 * seconds for name, seconds in space.type_seconds.items()}
