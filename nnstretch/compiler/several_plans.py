"""From a model to a session with several plans, each for its own processors."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.devices.base.spec import parse_processors
from nnstretch.errors import UsageError
from nnstretch.graph.placement import PLACEMENT_KEY
from nnstretch.scheduler.measurement.profiler import TOLERANCE
from nnstretch.scheduler.plan.packaging import with_shared_constants
from nnstretch.scheduler.runtime.adaptive.policies import parse_policy
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.support.progress import Progress


def compile_plans(
    model: ir.Model,
    plans: Sequence[str],
    *,
    policy: str = "adaptive",
    threads: int | None = None,
    engines: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    tune: bool = True,
    progress: Progress | None = None,
) -> AdaptiveSession:
    """A session with several plans for a graph.

    The processors of a design are those of the first plan with the most processors. In other plans, a layer stays on its
    processor if the plan has it, and may run on any otherwise.

    Args:
        model: an unoptimised graph.
        plans: the processors of each, as `build_processors` takes them.
        policy: as `AdaptiveSession` takes it.
        threads: most cores of the first CPU of every plan that has one.
        engines: as `build_processors` takes them, for plans with a CPU.
        tolerance: as `build_processors` takes it.
        tune: measure routines; else choose by estimates.
        progress: called while routines are measured.

    Raises:
        UsageError: no plan, two plans for the same processors, or an unknown policy.
        DeviceError: a processor does not exist or does not work.
    """
    parse_policy(policy)
    opened = [_open_plan(text, threads, engines, tolerance) for text in plans]
    names = [tuple(p.name for p in processors.named) for processors in opened]
    if not names or len(set(names)) != len(names):
        raise UsageError(
            f"plans {';'.join(plans)!r} are none or name the same processors twice; write one list for each plan"
        )
    designed = max(names, key=len)
    compiled = {
        ",".join(mine): plan_model(_placed_on(model, designed, mine), processors, tune=tune, progress=progress)
        for mine, processors in zip(names, opened, strict=True)
    }
    shared = dict(zip(compiled, with_shared_constants(list(compiled.values())), strict=True))
    return AdaptiveSession(shared, policy)


def _open_plan(text: str, threads: int | None, engines: Sequence[str], tolerance: float) -> Processors:
    has_cpu = any(spec.kind == "cpu" for spec in parse_processors(text))
    return build_processors(text, threads if has_cpu else None, engines if has_cpu else (), tolerance)


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
