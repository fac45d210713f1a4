"""Policies against worlds in which processors become slow, fail and recover."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import UsageError
from nnstretch.scheduler.runtime.adaptive.circuit_breaker import CircuitBreaker
from nnstretch.scheduler.runtime.adaptive.estimator import FEWEST, MOST, SPAN, Observation, Recent
from nnstretch.scheduler.runtime.adaptive.policies import (
    GAIN,
    PROBING,
    Adaptive,
    Deadline,
    Fastest,
    Policy,
    make_policy,
    parse_policy,
)
from tests.kits.boards.adaptive_world import THREE, World, facts, uses

SLOWNESS = st.fixed_dictionaries({name: st.sampled_from([1.0, 1.0, 1.3, 2.0, 3.0, 8.0]) for name in "CG"})


def adaptive() -> Adaptive:
    return Adaptive(THREE, Fastest(), uses(THREE))


def names(policy: Policy, world: World, runs: int) -> list[str]:
    return [choice.plan for choice in world.run(policy, runs) if not choice.probing]


@given(st.lists(SLOWNESS, min_size=1, max_size=6), st.sampled_from([0.0, 0.03]), st.integers(0, 99))
@settings(max_examples=25)
def test_whatever_happens_the_plan_becomes_one_of_the_fastest(
    phases: list[dict[str, float]], noise: float, seed: int
) -> None:
    """From long ago nothing is left: whatever was before, the last runs are near the best that there is."""
    world, policy = World(THREE, noise=noise, seed=seed), adaptive()
    for phase in phases:
        world.slowness = phase
        world.run(policy, 40)
    world.run(policy, 1_500)  # probes of what was very slow have to be earned
    last = [seconds for choice, seconds in world.attempts[-50:] if not choice.probing]
    assert sum(last) / len(last) <= world.best() / GAIN * (1.06 + noise)


@given(st.lists(SLOWNESS, min_size=1, max_size=8), st.integers(0, 99))
@settings(max_examples=25)
def test_attempts_with_slow_plans_cost_little(phases: list[dict[str, float]], seed: int) -> None:
    world, policy = World(THREE, noise=0.02, seed=seed), adaptive()
    for phase in phases:
        world.slowness = phase
        world.run(policy, 150)
    lost = 0.0
    for (_, before), (choice, seconds) in zip(world.attempts, world.attempts[1:], strict=False):
        if choice.probing:
            lost += max(0.0, seconds - before)
    # A plan may be slower when it is tried than it was when the attempt was earned: once for each change of the world.
    surprises = len(phases) * 8 * max(plan.seconds for plan in THREE)
    assert lost <= PROBING * 1.1 * sum(seconds for _, seconds in world.attempts) + surprises


@pytest.mark.parametrize(("slow", "fallback"), [("G", "C"), ("C", "G")])
def test_a_slowed_processor_is_noticed_within_a_few_runs_and_used_again_when_it_recovers(
    slow: str, fallback: str
) -> None:
    world, policy = World(THREE, noise=0.02), adaptive()
    assert set(names(policy, world, 100)) == {"both"}
    world.slowness = {slow: 4.0}
    seen = names(policy, world, 200)
    assert seen.index(fallback) <= 8
    assert set(seen[8:]) == {fallback}
    world.slowness = {}
    back = names(policy, world, 400)
    # At 9 ms a run and a loss of 10 ms for every attempt, one attempt in 56 runs is worth 2 % of the time.
    assert back.index("both") <= 90
    assert set(back[90:]) == {"both"}


@pytest.mark.parametrize("wrong", [0.6, 2.5])
@pytest.mark.parametrize("plan", ["both", "C", "G"])
def test_times_that_were_measured_on_a_busy_machine_are_found_out(plan: str, wrong: float) -> None:
    world = World(THREE, noise=0.02)
    wrong_facts = [replace(one, seconds=one.seconds * wrong) if one.name == plan else one for one in THREE]
    policy = Adaptive(wrong_facts, Fastest(), uses(THREE))
    world.run(policy, 2_500)
    assert names(policy, world, 100)[-1] == "both"


def test_traced_runs_are_rare_and_only_of_slow_plans_on_several_processors() -> None:
    world, policy = World(THREE, noise=0.02), adaptive()
    assert not any(choice.traced for choice in world.run(policy, 200))
    world.slowness = {"C": 1.3, "G": 1.3}  # the plan stays the fastest, and is explained
    chosen = world.run(policy, 300)
    assert {choice.plan for choice in chosen if not choice.probing} == {"both"}
    assert 1 <= sum(choice.traced for choice in chosen) <= 40


def test_one_of_two_slow_processors_recovers() -> None:
    """The plan for both is as slow as before, because of the other one: only traced runs tell that it is the wrong one now."""
    world, policy = World(THREE, slowness={"C": 2.0, "G": 3.0}, noise=0.02), adaptive()
    assert names(policy, world, 60)[-1] == "both"
    world.slowness = {"G": 3.0}
    assert names(policy, world, 100).index("C") <= 30


def test_a_single_slow_run_changes_nothing() -> None:
    world, policy = World(THREE), adaptive()
    world.run(policy, 50)
    for _ in range(10):
        world.slowness = {"C": 5.0}
        world.run(policy, 1)
        world.slowness = {}
        assert set(names(policy, world, 10)) == {"both"}


@given(
    st.lists(st.tuples(SLOWNESS, st.sampled_from(["", "", "C", "G", "CG"]), st.integers(1, 40)), max_size=12),
    st.sampled_from(["adaptive", "fixed", "deadline=8ms"]),
    st.booleans(),
)
@settings(max_examples=25)
def test_plans_that_fail_are_left_and_taken_again(
    phases: list[tuple[dict[str, float], str, int]], policy: str, named: bool
) -> None:
    """As long as a plan works, every run is answered, and hardly any is attempted with one that does not."""
    three = facts(both={"C": 5.0, "G": 4.8}, C={"C": 9.0}, G={"G": 9.5}, other={"D": 20.0})
    world = World(three, named=named)
    made = make_policy(parse_policy(policy), [plan.name for plan in three], three, uses(three))
    for slowness, broken, runs in phases:
        world.slowness, world.broken = slowness, set(broken)
        answered = world.run(made, runs)
        assert all(not set(broken) & set(plan.busy) for plan in three for c in answered if c.plan == plan.name)
    world.slowness, world.broken = {}, set()
    assert {choice.plan for choice in world.run(made, 2_500)[-5:]} == {"both"}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("policy", ["adaptive", "fixed"])
def test_failed_attempts_become_rare(policy: str, named: bool) -> None:
    """A lost processor is asked for at most once in a while; if it is not known to be that, for every plan that has it."""
    world = World(THREE, broken={"G"}, named=named)
    made = make_policy(parse_policy(policy), [plan.name for plan in THREE], THREE, uses(THREE))
    assert {choice.plan for choice in world.run(made, 2_000)} == {"C"}
    assert 2 <= len(world.failures) <= (12 if named else 24)
    world.broken = set()
    assert "both" in {choice.plan for choice in world.run(made, 2_000)}


@pytest.mark.parametrize("policy", ["adaptive", "fixed", "deadline=20ms"])
def test_plans_without_the_lost_processor_come_first(policy: str) -> None:
    """Also where a plan with it would be faster, or is named first."""
    plans = facts(both={"C": 5.0, "G": 4.8}, G={"G": 6.0}, also={"D": 5.5, "G": 5.5}, C={"C": 19.0})
    world = World(plans, broken={"G"})
    made = make_policy(parse_policy(policy), [plan.name for plan in plans], plans, uses(plans))
    assert [choice.plan for choice in world.run(made, 5)] == ["C"] * 5
    assert len(world.failures) <= 1
    # If these fail, too, the others are tried all the same, since it may be back.
    world.broken = {"C"}
    assert "G" in next(plan.busy for plan in plans if plan.name == world.run(made)[0].plan)
    world.broken = set()
    assert set(names(made, world, 3_000)[-5:]) == ({"G"} if policy.startswith("deadline") else {"both"})


def test_that_a_processor_works_says_nothing_of_another() -> None:
    three, uses_of = ["both", "C", "G"], uses(THREE)
    breaker = CircuitBreaker(uses_of)
    breaker.failed("both", 1e-3, ["G"])
    assert breaker.usable(three, ()) == ["C"]
    breaker.failed("C", 1e-3, ["C"])
    breaker.ran("C", 1e-3)
    assert breaker.usable(three, ()) == ["C"]
    assert [breaker.failed_at(plan) for plan in three] == ["G", "", "G"]
    breaker.ran("both", 1e-3)
    assert breaker.usable(three, ()) == three
    breaker.failed("G", 1e-3)  # for a reason of its own
    assert breaker.usable(three, ()) == ["both", "C"]


def test_when_everything_fails_every_run_tries_every_plan() -> None:
    three = [*THREE]
    policy = adaptive()
    for _ in range(5):
        failed: frozenset[str] = frozenset()
        while len(failed) < len(three):
            plan = policy.choose(failed).plan
            assert plan not in failed
            policy.observe(Observation(plan, 0.001, failed=True))
            failed |= {plan}
    assert World(three).run(policy, 300)[-1].plan == "both"


def test_a_deadline_takes_the_fewest_processors_that_meet_it() -> None:
    for limit, plan in ((0.02, "C"), (0.012, "C"), (0.0095, "both"), (0.004, "both")):
        world, policy = World(THREE), Adaptive(THREE, Deadline(limit), uses(THREE))
        assert set(names(policy, world, 30)) == {plan}
    world, policy = World(THREE), Adaptive(THREE, Deadline(0.02), uses(THREE))
    world.run(policy, 20)
    for slowness, plan in (({"C": 4.0}, "G"), ({"C": 2.5, "G": 4.0}, "both"), ({"C": 9.0, "G": 6.0}, "both")):
        world.slowness = slowness
        assert names(policy, world, 300)[-1] == plan


def test_recent_runs() -> None:
    recent = Recent()
    assert recent.slowness == 1.0
    for seconds in (0.010, 0.050, 0.011, 0.012, 0.013):
        recent.add(seconds, 0.010)
    assert recent.slowness == pytest.approx(1.15)  # without the one of 50 ms
    assert recent.is_full
    for _ in range(FEWEST):
        recent.add(0.020, 0.010)
    assert recent.slowness == pytest.approx(2.0)
    short = Recent()
    for number in range(1_000):
        short.add(0.0005 + 0.003 * (number % 4 == 0), 0.0005)
        assert len(short) <= MOST
    assert sum(0.0005 + 0.003 * (n % 4 == 0) for n in range(len(short))) >= SPAN
    assert short.slowness == pytest.approx(
        2.5, rel=0.2
    )  # one in four is stopped for 3 ms: less than half of them, but it counts


@pytest.mark.parametrize(
    "text", ["", "slow", "deadline", "deadline=", "deadline=0", "deadline=soon", "adaptive=1", "fixed=2"]
)
def test_policies_that_do_not_exist(text: str) -> None:
    with pytest.raises(UsageError):
        parse_policy(text)


def test_policies_as_they_are_written() -> None:
    assert [parse_policy(text) for text in ("fixed", "adaptive", "deadline=12ms", "deadline=0.5s")] == [
        "fixed",
        "adaptive",
        pytest.approx(0.012),
        pytest.approx(0.5),
    ]
