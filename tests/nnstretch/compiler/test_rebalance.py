"""Rebalancing by real runs on a CPU core and PoCL, of plans that are made by equal costs of both: outputs stay right."""

import os

import numpy as np
import onnx_ir as ir
import pytest

from nnstretch.bench.timing import TimingOptions
from nnstretch.compiler.processors import build_processors
from nnstretch.compiler.rebalance import SessionRuns
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.run_factors import RunFactors
from nnstretch.scheduler.placement.rebalancing import NamedInterference, placed_by_runs, rebalanced
from nnstretch.scheduler.plan.rebalanced import computing_processors
from nnstretch.scheduler.planner import choice_space
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.simulation.concurrent import waiting_seconds
from nnstretch.scheduler.simulation.timing import NoInterference
from tests.kits.made_up_costs import Work
from tests.scheduler.placement.test_rebalancing import paths

CORES = sorted(os.sched_getaffinity(0))
C, G = f"cpu:{CORES[0]}", f"opencl:0@{CORES[-1]}"
X = np.random.default_rng(1).standard_normal((1, 8, 8, 8)).astype(np.float32)

pytestmark = [
    pytest.mark.opencl,
    pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores"),
]


def test_a_rebalanced_plan_computes_the_same() -> None:
    model = paths((3, 3, 5))
    found = build_processors(f"{C},{G}")
    space = choice_space(optimize(model.clone()), found.named, found.host, Work())
    first = placed_by_runs(space, NoInterference(), {}, RunFactors())
    assert len(computing_processors(first.plan)) == 2
    with SessionRuns(timing=TimingOptions(rounds=5, turn=0.01)) as runs:
        answer = rebalanced(
            first,
            lambda factors: placed_by_runs(space, NoInterference(), {}, factors),
            runs,
            lambda plan: NamedInterference(NoInterference(), space.pool, plan),
        )
        times = runs.step_times(first)
        assert times.spans.shape == (*times.seconds.shape, 2) and times.seconds.shape[1] == len(first.plan.steps)
        assert (times.seconds >= 0).all() and (times.spans[..., 1] >= times.spans[..., 0]).all()
        assert all(0 <= waiting_seconds(first.plan, spans) <= 2 * spans.max() for spans in times.spans)
    report = answer.rebalancing
    assert report is not None and report.before > 0 and report.ratio <= 1
    assert (report.interval is None) == (answer.plan is first.plan)
    with PlanSession(answer) as session:
        (computed,) = session.run(None, {"x": X})
    (wanted,) = run_proto(ir.to_proto(model), {"x": X})
    assert relative_error(computed, wanted) < 1e-4


def test_a_queue_that_only_moves_data_does_not_compute() -> None:
    """One processor computes all layers, and the other one changes layouts at most."""
    found = build_processors(f"{C},{G}")
    space = choice_space(optimize(paths((3,))), found.named, found.host, Work())
    slow = RunFactors({(C, "node_0"): 1.0, (G, "node_0"): 50.0}, {(C, "node_0"): 1.0, (G, "node_0"): 1.0})
    plan = placed_by_runs(space, NoInterference(), {}, slow).plan
    assert computing_processors(plan) == (C,)
