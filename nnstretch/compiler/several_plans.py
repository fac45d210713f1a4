"""From a model to a session with several plans: one plan after another, or several inputs at a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import onnx_ir as ir

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.devices.base.spec import ProcessorSpec, parse_processors
from nnstretch.errors import UsageError
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.scheduler.measurement.interference import contention_factors
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.packaging import with_shared_constants
from nnstretch.scheduler.runtime.adaptive.policies import parse_policy
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.scheduler.runtime.arrangement import Arrangement, ReplicaGroup, relocated, working
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.stream_session import StreamSession
from nnstretch.scheduler.simulation.costs import one_soc
from nnstretch.scheduler.simulation.timing import NoInterference, simulate
from nnstretch.support.progress import Progress

_DEFAULTS = CompileOptions()


def compile_plans(
    model: ir.Model, plans: Sequence[str], policy: str = "adaptive", options: CompileOptions = _DEFAULTS
) -> AdaptiveSession:
    """A session with several plans for a graph.

    The processors of a design are those of the first plan with the most processors. In other plans, a layer stays on its
    processor if the plan has it, and may run on any otherwise.

    Args:
        model: an unoptimised graph.
        plans: the processors of each.
        policy: as `AdaptiveSession` takes it.
        options: all but the processors; threads and engines are for plans with a CPU.

    Raises:
        UsageError: no plan, two plans for the same processors, or an unknown policy.
        DeviceError: a processor does not exist or does not work.
    """
    parse_policy(policy)
    opened = [_open_plan(text, options) for text in plans]
    names = [tuple(p.name for p in processors.named) for processors in opened]
    if not names or len(set(names)) != len(names):
        raise UsageError(
            f"plans {';'.join(plans)!r} are none or name the same processors twice; write one list for each plan"
        )
    designed = max(names, key=len)
    compiled = {
        ",".join(mine): plan_model(
            _placed_on(model, designed, mine), processors, tune=options.tune, progress=options.progress
        )
        for mine, processors in zip(names, opened, strict=True)
    }
    shared = dict(zip(compiled, with_shared_constants(list(compiled.values())), strict=True))
    return AdaptiveSession(shared, policy)


def _open_plan(text: str, options: CompileOptions) -> Processors:
    own = replace(options, plans=None, processors=text)
    has_cpu = any(spec.kind == "cpu" for spec in parse_processors(text))
    return build_processors(own if has_cpu else replace(own, threads=None, engines=()))


def _placed_on(model: ir.Model, designed: Sequence[str], processors: Sequence[str]) -> ir.Model:
    """A graph whose nodes are placed on the processors that a plan shares with the design."""
    result = model.clone()
    for node in result.graph.all_nodes():
        text = node.metadata_props.get(PLACEMENT_KEY, "")
        if not text.isdigit() or int(text) >= len(designed):
            continue  # for the planner to use or refuse
        del node.metadata_props[PLACEMENT_KEY]
        if designed[int(text)] in processors:
            node.metadata_props[PLACEMENT_KEY] = str(processors.index(designed[int(text)]))
    return result


_MOST_MEASURED = 16
"""Largest number of processors in a plan (NNS_MAX_QUEUES); contention of more is not measured."""


def load_streams(path: str | Path, streams: int, *, trusted_sources: bool = False) -> StreamSession:
    """A session for a package, with `streams` inputs in flight.

    Args:
        path: the package.
        streams: number of inputs in flight.
        trusted_sources: refuse OpenCL sources that differ from the installed ones, and libraries of delegates.

    Raises:
        UsageError: fewer than one stream.
        FileError: the package cannot be read.
        PackageError: the package is damaged or too new, or has sources that are not trusted.
    """
    _check(streams)
    with PlanSession.load(path, trusted_sources=trusted_sources) as session:
        group = ReplicaGroup(session.compiled, streams, sources=session.sources)
    return StreamSession(Arrangement("as the package has it", (group,)))


def arrangements(
    model: ir.Model, processors: Processors, streams: int, *, tune: bool = True, progress: Progress | None = None
) -> list[Arrangement]:
    """Arrangements of processors for several inputs at a time, with predictions if routines are measured.

    Args:
        model: an unoptimised graph.
        processors: the processors to arrange.
        streams: largest number of inputs in flight.
        tune: measure routines unless the profile store knows them.
        progress: called while routines are measured.

    Raises:
        UsageError: fewer than one stream, or simulated processors.
        NNStretchError: a processor cannot run the network.
    """
    _check(streams)
    if one_soc(processors.named) is not None:
        raise UsageError(
            f"{', '.join(p.name for p in processors.named)} are simulated; streams need processors that are here"
        )
    bench = _Planning(model, processors, tune, progress)
    specs = [processor.spec for processor in processors.named]
    ways = [bench.apart(name, parts) for name, parts in _partings(specs, streams).items()]
    if len(specs) > 1 and (together := bench.together()) is not None:
        ways.append(together)
    return [way.with_streams(streams) for way in ways]


def _check(streams: int) -> None:
    if streams < 1:
        raise UsageError(f"streams is {streams}; it must be at least 1")


def _partings(specs: Sequence[ProcessorSpec], streams: int) -> dict[str, list[ProcessorSpec]]:
    """Name -> processors of groups with one processor each: with the cores of CPUs divided, and undivided."""
    cpus = sum(spec.kind == "cpu" for spec in specs)
    groups = max(1, (streams - len(specs) + cpus) // cpus) if cpus else 1
    divided = [part for spec in specs for part in _divided(spec, groups)]
    whole = "apart" if len(specs) > 1 else "whole"
    return ({"divided": divided} if len(divided) > len(specs) else {}) | {whole: list(specs)}


def _divided(spec: ProcessorSpec, groups: int) -> list[ProcessorSpec]:
    """Equal cores of a CPU in groups whose sizes differ by at most one; unequal cores stay together."""
    groups = min(groups, len(spec.cores))
    if spec.kind != "cpu" or spec.ratios or groups < 2:
        return [spec]
    ends = [len(spec.cores) * number // groups for number in range(groups + 1)]
    return [replace(spec, cores=spec.cores[a:b], shares=False) for a, b in pairwise(ends)]


@dataclass
class _Planning:
    """Plans of arrangements, each made once."""

    model: ir.Model
    processors: Processors
    tune: bool
    progress: Progress | None
    plans: dict[tuple[object, ...], Compiled] = field(default_factory=dict)

    def apart(self, name: str, parts: Sequence[ProcessorSpec]) -> Arrangement:
        """A group for every processor."""
        factors = self._contention_factors([str(part) for part in parts])
        groups = [
            replace(self._replica_group(self._alone(part)), contention_factor=factor)
            for part, factor in zip(parts, factors, strict=True)
        ]
        return Arrangement(name, tuple(groups))

    def together(self) -> Arrangement | None:
        """One group of all processors; None if its plan uses only one."""
        compiled = plan_model(self.model.clone(), self.processors, tune=self.tune, progress=self.progress)
        if len(working(compiled.plan)) < 2:
            return None
        contention_factor = max(self._contention_factors([p.name for p in self.processors.named]))
        return Arrangement("together", (replace(self._replica_group(compiled), contention_factor=contention_factor),))

    def _replica_group(self, compiled: Compiled) -> ReplicaGroup:
        """A group with its predicted latency, if its routines were measured."""
        if not self.tune or compiled.plan.predicted_ms is None:
            return ReplicaGroup(compiled)
        return ReplicaGroup(compiled, latency=simulate(compiled.plan, NoInterference()).total * 1e-9)

    def _alone(self, spec: ProcessorSpec) -> Compiled:
        """The best plan for one processor; equal CPUs share a plan and its weights."""
        key = (spec.kind, spec.ratios, len(spec.cores)) if spec.kind == "cpu" else (str(spec),)
        if key not in self.plans:
            opened = self._open(str(spec))
            self.plans[key] = plan_model(_unplaced(self.model), opened, tune=self.tune, progress=self.progress)
        found = self.plans[key]
        return relocated(found, str(spec), spec.cores) if spec.kind == "cpu" and len(found.plan.queues) == 1 else found

    def _open(self, names: str) -> Processors:
        options = self.processors.options
        engines = options.engines if names.startswith("cpu") else ()
        return build_processors(replace(options, processors=names, threads=None, engines=engines))

    def _contention_factors(self, names: Sequence[str]) -> Sequence[float]:
        """Contention factor of each while all work."""
        if not self.tune or not 1 < len(names) <= _MOST_MEASURED:
            return [1.0] * len(names)
        with closing(ProfileStore()) as store:
            opened = self._open(",".join(names))
            return contention_factors(opened.named, opened.host, range(len(names)), store)


def _unplaced(model: ir.Model) -> ir.Model:
    """A graph without placement."""
    copy = model.clone()
    for node in copy.graph:
        node.metadata_props.pop(PLACEMENT_KEY, None)
    return copy
