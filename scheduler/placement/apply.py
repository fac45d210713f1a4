"""Applies a placement to a choice space: every unit, or share of one, on its queue, in the order of the schedule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.errors import ModelError
from nnstretch.scheduler.lowering.candidates import single_choices
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.lowering.selection_problem import selection_problem
from nnstretch.scheduler.placement.contraction import Contraction, Grouping
from nnstretch.scheduler.placement.problem import Placement, Turn
from nnstretch.scheduler.placement.splitting import Division, Divisions, Origin, Split, split_graph
from nnstretch.scheduler.planner import ChoiceSpace
from nnstretch.scheduler.selection.problem import Problem


@dataclass(frozen=True)
class Applied:
    """A choice space that is restricted to a placement.

    Attributes:
        space: every unit, or share, has choices on its queue only; units are in the order of the placement.
        grouping: of the units, by positions in the placement's order.
        turns: the placement's order.
        splits: divisions of split layers, by name.
    """

    space: ChoiceSpace
    grouping: Grouping
    turns: tuple[Turn, ...]
    splits: Mapping[str, Division]

    def seconds(self, chosen: Sequence[Choice]) -> dict[Turn, float]:
        """Seconds of every part with these choices, including layout changes."""
        taken = self.grouping.seconds(self.space, chosen)
        return dict(zip(self.turns, map(float, taken), strict=True))


def apply(
    space: ChoiceSpace,
    contraction: Contraction,
    placement: Placement,
    divisions: Divisions,
    inside: Mapping[int, float],
) -> Applied:
    """Applies a placement.

    Args:
        space: of whole layers, which may be on any queue.
        contraction: of the space.
        placement: of the contraction's units.
        divisions: how units that are split are split.
        inside: queue -> time of layers in the network over their time alone; 1 if missing.

    Raises:
        ModelError: no routine computes a share on its queue.
    """
    units = contraction.alone()
    found = {units[unit]: divisions.division(unit, way) for unit, way in enumerate(placement.ways) if len(way) > 1}
    names = {space.graph.units[number].name: division for number, division in found.items()}
    split = split_graph(space.graph, found)
    turns = [_turn(contraction, placement, found, origin) for origin in split.origins]
    if found:
        space = replace(
            _split_space(space, split, turns, inside),
            splits={name: division.channels for name, division in names.items()},
        )
    place = {turn: position for position, turn in enumerate(placement.order)}
    group_of = [
        None if turn is None or origin.is_view else place[turn]
        for turn, origin in zip(turns, split.origins, strict=True)
    ]
    order = _grouping(contraction, placement, group_of).order(space.graph)
    queues = [None if turn is None else {turn[1]} for turn in turns]
    mine = _grouping(contraction, placement, [group_of[number] for number in order])
    return Applied(narrowed(space, queues, order), mine, placement.order, names)


def _turn(
    contraction: Contraction, placement: Placement, divisions: Mapping[int, Division], origin: Origin
) -> Turn | None:
    """The part that a unit of the split graph belongs to; None for views, which may be on any queue."""
    group = contraction.group_of[origin.unit]
    if group is None or (origin.unit in divisions and origin.share is None):
        return None
    way = placement.ways[group]
    return group, way[origin.share or 0].queue


def _grouping(contraction: Contraction, placement: Placement, group_of: Sequence[int | None]) -> Grouping:
    """Groups units by positions in the order; the caller is on queue 0."""
    begin, end = (placement.order.index((unit, 0)) for unit in (contraction.begin, contraction.end))
    return Grouping(tuple(group_of), begin, end, len(placement.order))


def _split_space(
    space: ChoiceSpace, split: Split, turns: Sequence[Turn | None], inside: Mapping[int, float]
) -> ChoiceSpace:
    """The space of a split graph: whole units keep their choices, shares get their own."""
    choices: list[list[Choice]] = []
    for unit, origin, turn in zip(split.graph.units, split.origins, turns, strict=True):
        queues = space.pool.queue_of if turn is None else (turn[1],)
        if origin.is_whole:
            found = [c for c in space.choices[origin.unit] if turn is None or c.queue in queues]
        else:
            found = single_choices(unit.layer, queues, space.pool, space.costs)
            found = [replace(c, seconds=inside.get(c.queue, 1.0) * (c.seconds or 0.0)) for c in found]
        if not found:
            raise ModelError(
                f"no routine computes layer {unit.name} ({unit.layer.op}) on the queue that it was given to"
            )
        choices.append(found)
    problem = selection_problem(split.graph, choices, space.pool, space.costs)
    return replace(space, graph=split.graph, choices=choices, problem=problem)


def narrowed(space: ChoiceSpace, queues: Sequence[Collection[int] | None], order: Sequence[int]) -> ChoiceSpace:
    """The space with units on some queues only (None: on all), in another topological order.

    Units that are left one processor count as placed on it.
    """
    kept = [
        [i for i, choice in enumerate(options) if allowed is None or choice.queue in allowed]
        for options, allowed in zip(space.choices, queues, strict=True)
    ]
    position = {number: place for place, number in enumerate(order)}
    problem = space.problem
    edges = {(position[u], position[v]): m[np.ix_(kept[u], kept[v])] for (u, v), m in problem.edges.items()}
    units = []
    for number in order:
        unit, allowed = space.graph.units[number], queues[number]
        if allowed is not None and len(allowed) == 1 and not unit.is_fallback:
            unit = replace(unit, placement=space.pool.queue_of.index(*allowed))
        units.append(unit)
    return replace(
        space,
        graph=replace(space.graph, units=tuple(units)),
        choices=[[space.choices[number][i] for i in kept[number]] for number in order],
        problem=Problem(
            tuple(problem.costs[number][kept[number]] for number in order),
            edges,
            seed=problem.seed,
            names=tuple(unit.name for unit in units),
        ),
    )
