"""Selectors: conformance (`tests.kits.selection.selector_conformance`), networks, and properties of each paper's search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import SelectionError, UsageError
from nnstretch.scheduler.selection import SELECTORS, default_selector, selector_class, selector_named
from nnstretch.scheduler.selection.baselines.dynamic_programming import Dprs, GlobalSearch
from nnstretch.scheduler.selection.baselines.q_learning import QLearning, schedule
from nnstretch.scheduler.selection.baselines.random_search import RandomSearch
from nnstretch.scheduler.selection.bounds import reparametrised
from nnstretch.scheduler.selection.constraints.limits import cheapest_within, check_limits
from nnstretch.scheduler.selection.exact.best_first import Dijkstra, a_star
from nnstretch.scheduler.selection.exact.elimination import Elimination
from nnstretch.scheduler.selection.explanation import compare
from nnstretch.scheduler.selection.problem import Problem, Selector
from tests.kits.selection import selector_conformance as conformance
from tests.kits.selection.selection_problems import best_cost, legal, legal_values, network, problems

EVERY = conformance.every()
EXACT = conformance.exact()
CRAMPED = conformance.cramped()


def named(selector: Selector) -> str:
    return selector.name


def test_every_selector_is_known_by_its_name() -> None:
    assert {s.name for s in EXACT} == {"elimination", "dprs", "global-search", "dijkstra", "a-star"}
    assert {s.name for s in CRAMPED} == {s.name for s in EXACT}
    assert next(iter(SELECTORS)) == default_selector().name == "elimination"
    assert [selector_class(name).name for name in SELECTORS] == list(SELECTORS)
    assert selector_named("pbqp").name == "pbqp"
    with pytest.raises(UsageError, match="no selector 'best'"):
        selector_named("best")


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_brute_force_at_once_is_brute_force_one_by_one(data: st.DataObject) -> None:
    problem = data.draw(problems(most=5, resources=data.draw(st.integers(0, 2))))
    every = itertools.product(*(range(size) for size in problem.sizes))
    wanted = [choices for choices in every if np.isfinite(problem.cost(choices)) and problem.keeps_limits(choices)]
    assert legal(problem) == wanted
    rows = [(problem.cost(choices), *(problem.amount(r, choices) for r in problem.amounts)) for choices in wanted]
    found = legal_values(problem, list(problem.amounts))
    np.testing.assert_allclose(found, np.array(rows).reshape(found.shape))
    assert best_cost(problem) == (pytest.approx(min(rows)[0]) if rows else None)


@given(problem=problems())
@settings(max_examples=500, deadline=None)
def test_exact_ones_find_the_optimum(problem: Problem) -> None:
    """All of them in one test: most of its time goes into problems and brute force."""
    conformance.check_optimum(problem, *EXACT)


@given(problem=problems())
@settings(max_examples=150, deadline=None)
def test_answers_are_legal_and_bounds_hold(problem: Problem) -> None:
    for selector in (*EVERY, *CRAMPED):
        conformance.check_answer(selector, problem)


@pytest.mark.parametrize("resources", [1, 2])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_limits_are_kept(resources: int, data: st.DataObject) -> None:
    problem = data.draw(problems(most=5, resources=resources))
    for selector in (*EVERY, *CRAMPED):
        conformance.check_answer(selector, problem)


def test_equal_seeds_give_equal_answers_in_another_process() -> None:
    conformance.check_same_in_another_process()


@pytest.mark.parametrize("resources", [1, 2, 3])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_exact_ones_are_exact_within_limits(resources: int, data: st.DataObject) -> None:
    problem = data.draw(problems(most=5, resources=resources))
    best = best_cost(problem)
    if best is None:
        return
    for selector in EXACT:
        answer = selector.select(problem)
        assert answer.optimal
        assert answer.cost == pytest.approx(best, rel=1e-9, abs=1e-12)


@given(problem=problems(most=5))
@settings(max_examples=60, deadline=None)
def test_searches_that_give_up_state_the_bound_that_they_began_with(problem: Problem) -> None:
    least = reparametrised(problem.costs, problem.edges).bound
    answer = a_star(problem, 1)
    if answer.choices is None:
        assert answer.bound is not None
        assert answer.bound >= least


def residual(nodes: int) -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(nodes - 1)] + [(i, i + 3) for i in range(0, nodes - 3, 3)]


def inception(blocks: int) -> list[tuple[int, int]]:
    """Blocks of four branches of one to three layers between joins, which read each other."""
    edges, join = [], 0
    for _ in range(blocks):
        node, ends = join, []
        for length in (1, 2, 3, 2):
            last = join
            for _ in range(length):
                node += 1
                edges.append((last, node))
                last = node
            ends.append(last)
        edges += [(end, node + 1) for end in ends]
        join = node + 1
    return edges


def detector(scales: int) -> list[tuple[int, int]]:
    """A chain of scales with two heads each and a final concat, as in SSD."""
    edges = [(i, i + 1) for i in range(scales - 1)]
    heads = [(i, scales + 2 * i + k) for i in range(scales) for k in (0, 1)]
    return edges + heads + [(head, 3 * scales) for _, head in heads]


@pytest.mark.parametrize(
    ("edges", "choices"),
    [(residual(500), 16), (inception(12), 16), (detector(12), 16)],
    ids=["residual", "inception", "detector"],
)
def test_networks_are_solved_and_proved(edges: list[tuple[int, int]], choices: int) -> None:
    nodes = max(v for _, v in edges) + 1
    problem = network(np.random.default_rng(0), edges, nodes, choices)
    answer = Elimination().select(problem)
    assert answer.optimal
    other = selector_named("pbqp").select(problem)
    assert other.cost >= answer.cost * (1 - 1e-9)
    assert other.cost * (1 - other.gap) <= answer.cost * (1 + 1e-9)


@pytest.mark.parametrize("layers", [58, 98])
def test_dense_networks_whose_layouts_are_few(layers: int) -> None:
    """Every layer reads all earlier ones; 16 routines of 3 layouts, and every layout change costs the same."""
    rng = np.random.default_rng(layers)
    layouts = rng.integers(0, 3, (layers, 16))
    edges = {
        (u, v): rng.random() * (layouts[u][:, None] != layouts[v][None, :]).astype(float)
        for u, v in itertools.combinations(range(layers), 2)
    }
    problem = Problem(tuple(rng.random(16) for _ in range(layers)), edges)
    answer = Elimination().select(problem)
    assert answer.optimal
    assert answer.cost == problem.cost(answer.choices)
    guessed = selector_named("pbqp").select(problem)
    assert answer.cost * (1 - 1e-9) <= guessed.cost <= answer.cost * 1.01


def test_what_is_too_wide_is_answered_with_a_gap() -> None:
    problem = network(np.random.default_rng(1), list(itertools.combinations(range(14), 2)), 14, 5)
    for selector in (Elimination(limit=1000), Dprs(limit=1000), GlobalSearch(limit=1000), Dijkstra(most=50)):
        answer = selector.select(problem)
        assert not answer.optimal
        assert 0 < answer.gap < 1


def test_penalties_are_what_the_two_direct_searches_differ_in() -> None:
    apart = Problem((np.array([1.0, 2.0]), np.array([2.0, 1.0])), {(0, 1): np.array([[0.0, 9.0], [9.0, 0.0]])})
    assert selector_named("greedy").select(apart).choices == (0, 1)
    assert selector_named("greedy-penalties").select(apart).cost == 3


def test_a_dead_end_is_left_again() -> None:
    forbidden = np.array([[np.inf, np.inf], [0.0, 0.0]])
    joint = Problem(
        (np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.zeros(2)),
        {(0, 2): np.array([[0.0, np.inf], [0.0, 0.0]]), (1, 2): np.array([[np.inf, 0.0], [0.0, 0.0]])},
    )
    assert selector_named("greedy").select(joint).cost == 1
    assert selector_named("greedy").select(Problem((np.zeros(2), np.zeros(2)), {(0, 1): forbidden})).choices[0] == 1


def test_epsilon_is_the_papers() -> None:
    epsilons = schedule(500)
    assert epsilons[:250] == [1.0] * 250
    for tenth in range(10):
        assert epsilons[250 + 25 * tenth : 275 + 25 * tenth] == pytest.approx([0.9 - 0.1 * tenth] * 25)


def test_learning_beats_chance() -> None:
    problem = network(np.random.default_rng(5), residual(40), 40, 6)
    learned, drawn = QLearning(episodes=600).select(problem), RandomSearch(episodes=600).select(problem)
    assert learned.cost < 0.8 * drawn.cost
    assert len(learned.curve) == 600
    assert learned.states == 600 * 40


@pytest.mark.parametrize("name", ["random", "q-learning"])
def test_seeds_decide_what_is_drawn(name: str) -> None:
    rng = np.random.default_rng(2)
    parts = network(rng, residual(30), 30, 5)
    curves = [selector_named(name).select(Problem(parts.costs, parts.edges, seed=s)).curve for s in (0, 1)]
    assert curves[0] != curves[1]


def test_all_on_one_problem() -> None:
    problem = network(np.random.default_rng(3), residual(12), 12, 3)
    rows = compare(problem, EVERY)
    assert [r.name for r in rows] == [s.name for s in EVERY]
    best = min(r.answer.cost for r in rows)
    assert all(r.answer.cost == pytest.approx(best) for r in rows if r.answer.optimal)
    drawn = next(r for r in rows if r.name == "random").answer
    assert [step for step, _ in drawn.curve][-1] == conformance.QUICK["episodes"]
    assert min(cost for _, cost in drawn.curve) == pytest.approx(drawn.cost)


@pytest.mark.parametrize("selector", EVERY, ids=named)
def test_nothing_to_choose(selector: Selector) -> None:
    assert selector.select(Problem((), {})).choices == ()
    assert selector.select(Problem((np.array([2.0]),), {})).cost == 2


def test_what_forbids_everything_is_named() -> None:
    names = ("stem", "pool", "head")
    zeros = (np.zeros(2), np.zeros(2), np.zeros(2))
    shut = Problem(zeros, {(0, 1): np.full((2, 2), np.inf)}, names=names)
    same, other = np.array([[0.0, np.inf], [np.inf, 0.0]]), np.array([[np.inf, 0.0], [0.0, np.inf]])
    cycle = Problem(zeros, {(0, 1): same, (1, 2): same, (0, 2): other}, names=names)
    sizes = (np.array([5.0, 7.0]),) * 3
    tight = Problem(zeros, {}, {"memory": sizes}, {"memory": 14.0}, names=names)
    for selector in EVERY:
        with pytest.raises(SelectionError, match="no choice of stem is compatible with one of pool"):
            selector.select(shut)
        with pytest.raises(SelectionError, match="forbid all choices of head with any earlier choices"):
            selector.select(cycle)
        with pytest.raises(SelectionError, match="memory is limited to 14 bytes, but every plan needs at least 15"):
            selector.select(tight)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (((np.array([]),), {}), "no list of choices"),
        (((np.array([np.nan]),), {}), "not a number"),
        (((np.array([-1.0]),), {}), "negative"),
        (((np.zeros(2), np.zeros(2)), {(1, 0): np.zeros((2, 2))}), "does not lead forward"),
        (((np.zeros(2), np.zeros(2)), {(0, 2): np.zeros((2, 2))}), "does not lead forward"),
        (((np.zeros(2), np.zeros(3)), {(0, 1): np.zeros((3, 2))}), "shape"),
        (((np.zeros(2), np.zeros(1)), {(0, 1): np.full((2, 1), np.nan)}), "not a number"),
        (((np.zeros(2),), {}, {"memory": ()}), "do not fit"),
        (((np.zeros(2),), {}, {"memory": (np.array([1, np.inf]),)}), "infinite"),
        (((np.zeros(2),), {}, {}, {"memory": 3.0}), "drop the limit"),
        (((np.zeros(2),), {}, {"memory": (np.zeros(2),)}, {"memory": np.nan}), "not a number"),
        (((np.zeros(2),), {}, {}, {}, 0, ("a", "b")), "2 names for 1 nodes"),
    ],
)
def test_malformed_problems_are_refused(parts: tuple[object, ...], message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        Problem(*parts)  # type: ignore[arg-type]


def test_brute_force_knows_limits() -> None:
    problem = Problem((np.array([1.0, 2.0]),), {}, {"memory": (np.array([9.0, 1.0]),)}, {"memory": 5.0})
    assert legal(problem) == [(1,)]


@pytest.mark.parametrize(("limit", "kept"), [(15.0, (0, 0, 0)), (21.0, (1, 1, 1)), (14.999, None)])
def test_a_limit_may_be_reached(limit: float, kept: tuple[int, ...] | None) -> None:
    sizes = (np.array([5.0, 7.0]),) * 3
    problem = Problem((np.array([1.0, 0.0]),) * 3, {}, {"memory": sizes}, {"memory": limit})
    if kept is not None:
        assert tuple(cheapest_within(problem)[0]) == kept
    for selector in EVERY:
        if kept is not None:
            assert selector.select(problem).choices == kept
        else:
            with pytest.raises(
                SelectionError, match=r"memory is limited to 14\.999 bytes, but every plan needs at least 15"
            ):
                selector.select(problem)


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [("memory", 9999.0, "9999 bytes;"), ("memory", 1e4, r"0\.01 MB;"), ("loss", 1e4, "10000;")],
)
def test_amounts_of_memory_are_in_megabytes_where_they_are_large(resource: str, amount: float, text: str) -> None:
    problem = Problem((np.zeros(1),), {}, {resource: (np.array([amount]),)}, {resource: 1.0})
    with pytest.raises(
        SelectionError, match=f"{resource} is limited to 1( byte)?, but every plan needs at least {text}"
    ):
        check_limits(problem)


def test_limits_hold_up_to_the_rounding_of_sums() -> None:
    """0.1 + 0.2 is a little more than 0.3, also where these are what nodes with one choice need."""
    costs = (np.ones(1), np.ones(1), np.array([2.0, 1.0]))
    edges = {(0, 1): np.zeros((1, 1)), (1, 2): np.zeros((1, 2))}
    amounts = {"memory": (np.array([0.1]), np.array([0.2]), np.array([0.0, 1.0]))}
    found = default_selector().select(Problem(costs, edges, amounts, {"memory": 0.3}))
    assert found.choices == (0, 0, 0)
