"""`nnstretch sweep tune`: routine parameters of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nnstretch.cli.console import Reporter
from nnstretch.cli.models.sources import Source
from nnstretch.errors import UsageError
from nnstretch.report.tables.text import plain_table
from nnstretch.scheduler.lowering.candidates import is_native
from nnstretch.scheduler.lowering.units import unit_graph
from nnstretch.scheduler.plan.schema import queue_pool
from nnstretch.sweeps.parameter_searches import (
    Found,
    SearchedLayer,
    coordinate_descent,
    learned_search,
    study_found,
)
from nnstretch.sweeps.routines import RoutineSpace, measuring
from nnstretch.sweeps.samplers import find_sampler
from nnstretch.sweeps.study import StudySpec, feasible_front, states
from nnstretch.sweeps.workers.worker import StudyWorker, SweepBudget

if TYPE_CHECKING:
    import onnx_ir as ir
    from optuna import Study
    from rich.table import Table

    from nnstretch.graph.layer import Layer


@dataclass(frozen=True)
class TuneJob:
    """A sweep of one layer's routines as the command line describes it.

    Attributes:
        source: the model, and the processor in its options.
        layer: its name; None: the layer with the most MACs.
        study: without what it is about.
        budget: of the study.
        sampler: its name.
        seed: of all random numbers.
        compare: whether the searches of `tune` get as many measurements, for comparison.
    """

    source: Source
    layer: str | None
    study: StudySpec
    budget: SweepBudget
    sampler: str
    seed: int
    compare: bool

    def run(self, report: Reporter) -> None:
        """Runs the sweep, and compares the best setting with the short lists' and other searches' best."""
        from nnstretch.compiler.costs import open_profiler
        from nnstretch.compiler.processors import build_processors
        from nnstretch.passes import optimize

        graph = optimize(self.source.load())
        layer = self._layer(graph)
        usable = build_processors(self.source.options)
        space = RoutineSpace(usable.named[0], layer)
        about = {"processor": space.processor.fingerprint, "workload": layer.workload}
        study = replace(self.study, about=about).open()
        with report.progress("Sweeping") as advance, open_profiler(usable) as costs:
            usual = [s for s in costs.compare(space.processor, layer, space.usual()) if s is not None]
            if not study.get_trials(deepcopy=False):
                for routine in space.routines.values():
                    first = next(one for one in space.usual() if one.routine is routine)
                    study.enqueue_trial(space.parameters(first))
            make, evaluate = find_sampler(self.sampler), measuring(space, costs)
            StudyWorker(study, space.distributions, evaluate, self.budget, make, self.seed, progress=advance).run()
            searches = [_of_study(f"optuna {self.sampler}", study, space)]
            if self.compare:
                pool = queue_pool(usable.named, usable.host)
                units = unit_graph(graph, is_native(pool))
                searched = SearchedLayer(space.processor, layer, units, pool, costs, searches[0].measurements)
                searches.append(coordinate_descent(searched))
                try:
                    searches.append(learned_search(searched, self.seed))
                except ModuleNotFoundError:
                    report.note("no learned search: it needs xgboost; pip install 'nnstretch[tune]'")
        front = feasible_front(study)
        if not front:
            raise UsageError(
                f"no routine for {layer.name} works on {space.processor.name}; give another --layer or processor"
            )
        best, default_ms = front[0], 1e3 * min(usual) if usual else None
        answer: dict[str, Any] = {
            "layer": layer.name,
            "processor": space.processor.name,
            "routine": best.params["routine"],
            "parameters": best.user_attrs["parameters"],
            "ms": best.values[0],
            "short_list_ms": default_ms,
            "trials": states(study),
            "searches": [found.row() for found in searches],
        }
        report.show(_table(answer))
        report.finish(answer)

    def _layer(self, graph: ir.Model) -> Layer:
        """The layer to tune.

        Raises:
            UsageError: the model has none of this name.
        """
        from nnstretch.graph.layers import layers

        found = {node.layer.name: node.layer for node in layers(graph)}
        if self.layer is None:
            return max(found.values(), key=lambda layer: layer.macs)
        if self.layer not in found:
            raise UsageError(
                f"--layer {self.layer}: the model has no such layer; it has {', '.join(list(found)[:8])} …"
            )
        return found[self.layer]


def _of_study(name: str, study: Study, space: RoutineSpace) -> Found:
    """What a study has measured, in the terms of the other searches."""
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in {"COMPLETE", "PRUNED"}]
    found = [(space.candidate(trial.params), trial.values[0] if trial.values else None) for trial in trials]
    return study_found(name, found)


def _table(answer: Mapping[str, Any]) -> Table:
    """A row per search, and one for the settings that tuning considers at first."""
    table = plain_table("search", "routine", "parameters", ">ms", ">measurements", title=answer["layer"])
    if answer["short_list_ms"] is not None:
        table.add_row("short lists", "", "", f"{answer['short_list_ms']:.4g}", "")
    for one in answer["searches"]:
        settings = ", ".join(f"{name} {value}" for name, value in one["parameters"].items())
        milliseconds = "" if one["ms"] is None else f"{one['ms']:.4g}"
        table.add_row(one["search"], one["routine"] or "", settings, milliseconds, str(one["measurements"]))
    return table
