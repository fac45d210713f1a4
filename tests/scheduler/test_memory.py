"""The arena planner: tensors that are needed at the same time never overlap, others share."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.scheduler.memory import Tenant, plan_arena
from nnstretch.scheduler.order import HappensBefore
from nnstretch.scheduler.plan import ALIGNMENT, PlanSubgraph


@st.composite
def schedules(draw: st.DrawFn) -> tuple[HappensBefore, int]:
    """Random sub-graphs on up to three lanes with random waits."""
    subgraphs: list[PlanSubgraph] = []
    first = 0
    for i in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 3))
        waits = tuple(draw(st.sets(st.integers(0, i - 1)))) if i else ()
        subgraphs.append(PlanSubgraph(draw(st.integers(0, 2)), first, count, waits))
        first += count
    return HappensBefore(subgraphs), first


@given(schedule=schedules(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_no_overlap_unless_ordered(schedule: tuple[HappensBefore, int], data: st.DataObject) -> None:
    order, steps = schedule
    users = st.lists(st.integers(0, steps - 1), min_size=1, max_size=3, unique=True).map(tuple)
    tenants = data.draw(st.lists(st.builds(Tenant, st.integers(1, 500), users), max_size=8))
    offsets, size = plan_arena(tenants, order.steps)
    for i, one in enumerate(tenants):
        assert offsets[i] % ALIGNMENT == 0
        assert offsets[i] + one.bytes <= size
        for j, other in enumerate(tenants[:i]):
            apart = offsets[i] + one.bytes <= offsets[j] or offsets[j] + other.bytes <= offsets[i]
            one_first = all(order.steps(a, b) for a in one.steps for b in other.steps)
            other_first = all(order.steps(b, a) for a in one.steps for b in other.steps)
            assert apart or one_first or other_first


def test_a_chain_needs_two_tensors() -> None:
    order = HappensBefore([PlanSubgraph(0, 0, 10)])
    tenants = [Tenant(1024, (i, i + 1)) for i in range(9)]
    assert plan_arena(tenants, order.steps)[1] == 2048


def test_lanes_that_run_at_once_do_not_share() -> None:
    order = HappensBefore([PlanSubgraph(0, 0, 2), PlanSubgraph(1, 2, 2)])
    tenants = [Tenant(1024, (0, 1)), Tenant(1024, (2, 3))]
    assert plan_arena(tenants, order.steps)[1] == 2048
