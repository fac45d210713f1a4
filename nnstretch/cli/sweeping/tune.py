"""`nnstretch sweep tune`: routine parameters of one layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nnstretch.cli.console import Reporter
from nnstretch.cli.sources import Source
from nnstretch.errors import UsageError
from nnstretch.report.tables.text import plain_table
from nnstretch.sweeps.routines import RoutineSpace, measuring
from nnstretch.sweeps.samplers import find_sampler
from nnstretch.sweeps.study import StudySpec, feasible_front, states
from nnstretch.sweeps.worker import StudyWorker, SweepBudget

if TYPE_CHECKING:
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
    """

    source: Source
    layer: str | None
    study: StudySpec
    budget: SweepBudget
    sampler: str
    seed: int

    def run(self, report: Reporter) -> None:
        """Runs the sweep, and compares the best setting with the best of those that tuning considers at first."""
        from nnstretch.compiler.costs import open_profiler
        from nnstretch.compiler.processors import build_processors

        layer = self._layer()
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
        }
        table = plain_table("layer", "routine", "parameters", ">ms", ">short list ms")
        settings = ", ".join(f"{name} {value}" for name, value in answer["parameters"].items())
        shown = "" if default_ms is None else f"{default_ms:.4g}"
        table.add_row(layer.name, answer["routine"], settings, f"{best.values[0]:.4g}", shown)
        report.show(table)
        report.finish(answer)

    def _layer(self) -> Layer:
        """The layer to tune.

        Raises:
            UsageError: the model has none of this name.
        """
        from nnstretch.graph.layers import layers
        from nnstretch.passes import optimize

        found = {node.layer.name: node.layer for node in layers(optimize(self.source.load()))}
        if self.layer is None:
            return max(found.values(), key=lambda layer: layer.macs)
        if self.layer not in found:
            raise UsageError(
                f"--layer {self.layer}: the model has no such layer; it has {', '.join(list(found)[:8])} …"
            )
        return found[self.layer]
