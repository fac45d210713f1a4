"""Throughput of a branched network and its alternatives: what is predicted, ranked and said."""

import json
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from nnstretch.bench.design_throughput import DesignThroughput, StreamedWay, ThroughputGoal, with_fewer_streams
from nnstretch.bench.rates import Rate
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.report.documents.readers import read_document
from nnstretch.report.tables.design_throughput import design_throughput_table, gain_text
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.runtime.arrangement import Arrangement, ReplicaGroup
from tests.kits.graphs.graphs import RandomNetwork

CORES = sorted(os.sched_getaffinity(0))
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")


@cache
def compiled(processors: int) -> Compiled:
    """A plan on one processor, or on two that both compute."""
    names = f"cpu:{CORES[0]},cpu:{CORES[-1]}" if processors > 1 else f"cpu:{CORES[0]}"
    network = RandomNetwork(
        11 if processors > 1 else 7, processors=processors if processors > 1 else 0, nodes=12, size=6
    )
    return plan_model(network.graph(), build_processors(names), tune=False)


def group(*stages: float, streams: int = 1) -> ReplicaGroup:
    """A group whose queues take these milliseconds, one after another."""
    made = compiled(len(stages))
    steps = list(made.plan.steps)
    for queue, total in enumerate(stages):
        mine = [i for s in made.plan.subgraphs if s.queue == queue for i in range(s.first, s.first + s.count)]
        for i in mine:
            steps[i] = replace(steps[i], cost_ms=total / len(mine))
    return ReplicaGroup(replace(made, plan=replace(made.plan, steps=tuple(steps))), streams, 1e-3 * sum(stages))


def simulated(stages: Sequence[float], streams: int) -> tuple[float, float]:
    """Inputs per millisecond, and milliseconds of an input, of stages that inputs pass in order, `streams` at a time."""
    free = [0.0] * len(stages)
    begins: list[float] = []
    ends: list[float] = []
    for number in range(200):
        now = ends[number - streams] if number >= streams else 0.0
        begins.append(now)
        for stage, took in enumerate(stages):
            now = free[stage] = max(now, free[stage]) + took
        ends.append(now)
    return 100 / (ends[-1] - ends[99]), ends[-1] - begins[-1]


def way(network: str, how: str, per_second: float, ms: float, groups: Sequence[ReplicaGroup] = ()) -> StreamedWay:
    arrangement = Arrangement(how, tuple(groups)) if groups else None
    return StreamedWay(network, Rate(how, per_second, 0.01, arrangement, latency_ms=ms))


@two_cores
def test_the_predicted_best_way_is_that_of_simulated_inputs_in_every_made_up_case() -> None:
    generator = random.Random(5)
    won = set()
    for _ in range(300):
        made: list[tuple[StreamedWay, float, float]] = []
        for network in ("original", "control", "branched"):
            parts = [(generator.uniform(1, 4),), (generator.uniform(1, 4),)]
            both = (generator.uniform(0.3, 2), generator.uniform(0.3, 2))
            for name, stages, streams in (
                ("apart", parts, 1),
                ("apart, only the fastest", [min(parts)], 1),
                ("together", [both], generator.choice((2, 3))),
                ("together, one at a time", [both], 1),
            ):
                alone = [simulated(some, streams) for some in stages]
                groups = [group(*some, streams=streams) for some in stages]
                rate, latency = sum(one for one, _ in alone), max(one for _, one in alone)
                made.append((way(network, name, 1.0, 1.0, groups), rate, latency))
        limit = generator.choice((None, generator.uniform(0.5, 6)))
        goal = ThroughputGoal(3, limit)
        within = [one for one in made if limit is None or one[2] <= limit]
        wanted = max(within, key=lambda one: one[1])[0] if within else None
        assert goal.predicted_best([one for one, _, _ in made]) is wanted
        won.add(wanted and wanted.rate.how)
    assert len(won) == 5  # every kind of way, and none


@two_cores
def test_ways_with_fewer_inputs_in_flight_are_compared_once() -> None:
    alone, other, both = group(2.0, streams=2), group(3.0, streams=2), group(1.0, 1.0, streams=4)
    slowed = replace(alone, contention_factor=1.2)
    found = list(with_fewer_streams([Arrangement("apart", (other, slowed)), Arrangement("together", (both,))]))
    assert [(one.name, [g.streams for g in one.groups]) for one in found] == [
        ("apart", [2, 2]),
        ("apart, one each", [1, 1]),
        ("apart, only the fastest", [1]),
        ("together", [4]),
        ("together, one at a time", [1]),
    ]
    assert found[2].groups[0].latency == 2e-3
    assert found[2].groups[0].contention_factor == 1.0
    single = Arrangement("apart", (group(2.0),))
    assert list(with_fewer_streams([single])) == [single]


@two_cores
def test_branches_are_compared_with_everything_that_does_not_use_them(tmp_path: Path) -> None:
    """Whole copies of the branched network are an alternative, and what misses the limit does not count."""
    apart, together = (group(3.0), group(3.0)), (group(1.0, 1.0),)
    ways = (
        way("original", "apart", 600.0, 3.2, apart),
        way("branched", "apart", 800.0, 3.0, apart),
        way("branched", "together", 500.0, 2.0, together),
        way("control", "ONNX Runtime, one at a time", 200.0, 2.5),
    )

    def found(limit: float | None) -> DesignThroughput:
        return DesignThroughput("m", 1, ThroughputGoal(2, limit), ways, "", 1e-6)

    for limit, gain, said in (
        (None, 500 / 800, "0.62× the best alternative in images per second: branched, apart"),
        (3.1, 500 / 800, "0.62× the best alternative in images per second within 3.100 ms: branched, apart"),
        (2.6, 500 / 200, "2.50× the best alternative in images per second within 2.600 ms: control, ONNX Runtime"),
        (2.2, None, "Only branches give images within 2.200 ms: 500.0 a second"),
        (1.0, None, "Nothing answers within 1.000 ms; the shortest latency is 2.000 ms: branched, together"),
    ):
        one = found(limit)
        assert one.gain == (None if gain is None else pytest.approx(gain))
        assert gain_text(one).startswith(said)
        assert str(design_throughput_table(one).caption).startswith(said)
        answer = one.to_json()
        assert answer["over_best_alternative"] == (None if gain is None else pytest.approx(gain, rel=1e-3))
        within = [limit is None or ms <= limit for ms in (3.2, 3.0, 2.0, 2.5)]
        assert [row["meets_limit"] for row in answer["results"]] == within
        path = tmp_path / "answer.json"
        path.write_text(json.dumps(answer))
        document = read_document(str(path))
        assert document.figures["× the best alternative"] == answer["over_best_alternative"]
        assert document.sections[0].table is not None
        assert len(document.sections[0].table.rows) == len(ways)
    slow = replace(found(2.6), ways=(ways[0], ways[3], replace(ways[2], rate=replace(ways[2].rate, latency_ms=9.0))))
    assert gain_text(slow).startswith(
        "The branches miss the limit; the best alternative within 2.600 ms is control, ONNX"
    )
