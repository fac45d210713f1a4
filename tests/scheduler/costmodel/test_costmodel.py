"""The learned cost model: features, trees, stored and predicted costs, and the search that they guide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.graph.layer import Layer, TensorType, fused_pair
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import Candidate, Estimates
from nnstretch.scheduler.costmodel.features import NAMES, Machine, columns, features, matrix
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.training_table import Sample
from nnstretch.scheduler.costmodel.trees import CostTrees, Point, count_stored, cross_validate, stored_samples
from nnstretch.scheduler.costmodel.workload import Workload, parse_workload
from nnstretch.scheduler.lowering.candidates import is_native
from nnstretch.scheduler.lowering.units import unit_graph, working_set
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.parameter_search.explorer import Exploration, Explorer, Schedule, SearchTask
from nnstretch.scheduler.parameter_search.thoroughness import all_settings, explore, remembered_settings
from nnstretch.scheduler.plan.schema import queue_pool
from tests.kits.graphs.graphs import RandomNetwork

pytest.importorskip("xgboost", reason="the cost model's trees are xgboost's")

MACHINE = Machine(2, 16)
DIRECT = "cpu:float32/direct"


def conv(channels: int, outputs: int, size: int, kernel: int = 1, groups: int = 1, bias: bool = True) -> Layer:
    weight = np.broadcast_to(np.float32(0.5), (outputs, channels // groups, kernel, kernel))
    constants = {1: weight} | ({2: weight[:, 0, 0, 0]} if bias else {})
    plane = TensorType((1, outputs, size, size))
    return Layer(
        "tested",
        "Conv",
        (TensorType((1, channels, size, size)), TensorType(weight.shape), TensorType((outputs,)) if bias else None),
        (plane,),
        MappingProxyType({"strides": (1, 1), "pads": (kernel // 2,) * 4, "dilations": (1, 1), "groups": groups}),
        constants=MappingProxyType(constants),
    )


def parsed(layer: Layer) -> Workload:
    found = parse_workload(layer.workload)
    assert found is not None
    return found


def setting(pixels: int, outputs: int, tiles: int) -> Parameters:
    return {"reg_n": pixels, "oc_bn": outputs, "tiles": tiles, "ic_bn": 1 << 20, "order": 0}


def truth(layer: Layer, parameters: Parameters) -> float:
    """A synthetic machine: wasted pixels cost as much as useful ones, large tiles are faster, memory adds time."""
    pixels = layer.outputs[0].shape[2] ** 2
    computed = -(-pixels // parameters["reg_n"]) * parameters["reg_n"] / pixels
    tile = parameters["reg_n"] * parameters["oc_bn"]
    moved = 4 * (layer.type_of(0).elements + layer.outputs[0].elements + layer.type_of(1).elements)
    return layer.macs * computed * (1 + 60 / tile) / 40e9 + moved / 15e9 + 1e-6


SETTINGS = [setting(p, o, t) for p in (4, 6, 9, 14, 28) for o in (16, 32, 48) for t in (1, 4, 16)]
LAYERS = [
    conv(channels, outputs, size, kernel)
    for channels in (16, 48, 96)
    for outputs in (32, 64)
    for size in (7, 14, 20)
    for kernel in (1, 3)
]


def samples(layers: Sequence[Layer], seed: int = 0, each: int = 8) -> list[Sample]:
    random = np.random.default_rng(seed)
    return [
        Sample(layer.workload, DIRECT, SETTINGS[i], truth(layer, SETTINGS[i]) * math.exp(random.normal(0, 0.01)))
        for layer in layers
        for i in random.permutation(len(SETTINGS))[:each]
    ]


# -- features --------------------------------------------------------------------------------------------------------


@given(
    channels=st.integers(1, 70), outputs=st.integers(1, 70), size=st.integers(1, 40), kernel=st.sampled_from([1, 3, 5])
)
def test_a_workload_is_read_as_the_layer_that_it_was(channels: int, outputs: int, size: int, kernel: int) -> None:
    first, second = conv(channels, outputs, size, kernel), conv(outputs, 8, size, bias=False)
    for layer in (first, second, fused_pair(first, second)):
        found = parsed(layer)
        assert (found.op, found.macs, found.weight_bytes) == (layer.op, layer.macs, layer.weight_bytes)
        assert found.read_bytes == 4 * sum(layer.type_of(i).elements for i in layer.activations)


@pytest.mark.parametrize("text", ["transfer float32[1]", "{", '{"op":"Conv"}', "[1]", '{"op":1,"inputs":["x"]}'])
def test_what_is_no_workload_is_passed_over(text: str) -> None:
    assert parse_workload(text) is None
    assert CostTrees.train([Sample(text, DIRECT, {}, 1.0)] * 100, MACHINE) is None


def test_features_say_what_tiles_waste_and_how_units_fall_to_threads() -> None:
    found = features(parsed(conv(20, 40, 10, 3)), DIRECT, setting(14, 32, 3), MACHINE, "warm")
    assert tuple(found)[: len(NAMES)] == NAMES
    assert found["pixel_waste"] == pytest.approx(112 / 100 - 1)  # 8 tiles of 14
    assert found["output_waste"] == pytest.approx(64 / 40 - 1)
    assert found["input_waste"] == pytest.approx(32 / 20 - 1)
    assert found["log_units"] == pytest.approx(math.log2(3 * 2))  # 8 tiles by 3, two panels
    assert found["idle"] == 0
    assert features(parsed(conv(20, 40, 10, 3)), DIRECT, setting(14, 48, 3), MACHINE, "warm")["idle"] == pytest.approx(
        1 / 4
    )
    assert found["log_macs"] == pytest.approx(math.log2(40 * 100 * 20 * 9))


def test_algorithms_that_multiply_less_are_known_to() -> None:
    layer = parsed(conv(64, 64, 8, 3))
    winograd = {"alpha": 6, "taps": 3, "tiles": 28, "vectors": 1, "block": 4, "panels": 4}
    plain = features(layer, DIRECT, setting(4, 16, 4), MACHINE, "warm")["log_products"]
    fewer = features(layer, "cpu:float32/winograd", winograd, MACHINE, "warm")["log_products"]
    assert plain - fewer == pytest.approx(2)  # F(4×4, 3×3): 36 products for 16 outputs of 9


def test_columns_have_an_order_of_their_own() -> None:
    one = features(parsed(conv(8, 8, 4)), DIRECT, {"b": 1, "a": 2}, MACHINE, "warm")
    other = features(parsed(conv(8, 8, 4)), "cpu:float32/other", {"c": 3}, MACHINE, "warm")
    assert columns([one, other]) == columns([other, one])
    table = dict(zip(columns([one, other]), matrix([one, other], columns([one, other])).T, strict=True))
    assert table["parameter a"][0] == 2
    assert np.isnan(table["parameter a"][1])
    assert table[f"routine {DIRECT}"].tolist() == [1, 0]


# -- trees -----------------------------------------------------------------------------------------------------------


def test_trees_predict_workloads_that_they_have_not_seen_and_state_their_error() -> None:
    seen, unseen = [x for i, x in enumerate(LAYERS) if i % 4], LAYERS[::4]
    trees = CostTrees.train(samples(seen, each=20), MACHINE)
    assert trees is not None
    asked = [(layer, setting) for layer in unseen for setting in SETTINGS]
    found = trees.predict([Point(layer.workload, DIRECT, setting, "warm") for layer, setting in asked])
    errors = np.abs(found / [truth(*pair) for pair in asked] - 1)
    assert np.median(errors) < 0.08
    stated = cross_validate(samples(seen, each=20), MACHINE)
    assert stated is not None
    assert stated.all == stated.operators["Conv"] == stated.routines[DIRECT]
    assert 0.3 < stated.all.median / np.median(errors) < 3


def test_trees_refuse_what_is_unlike_anything_measured() -> None:
    trees = CostTrees.train(samples(LAYERS), MACHINE)
    assert trees is not None
    candidates = [
        Point(LAYERS[0].workload, DIRECT, SETTINGS[0], "warm"),
        Point(conv(512, 512, 100, 3).workload, DIRECT, SETTINGS[0], "warm"),  # far larger than all
        Point(LAYERS[0].workload, "cpu:float32/unheard-of", SETTINGS[0], "warm"),
        Point("transfer float32[3]", DIRECT, {}, "warm"),
    ]
    assert np.isnan(trees.predict(candidates)).tolist() == [False, True, True, True]
    assert CostTrees.train(samples(LAYERS)[:10], MACHINE) is None
    few = CostTrees.train(samples(LAYERS[:3], each=30), MACHINE)
    assert few is not None
    assert np.isnan(few.predict(candidates)).all()


def pool(channels: int, size: int) -> Layer:
    image = TensorType((1, channels, size, size))
    return Layer("pool", "GlobalPool", (image,), (TensorType((1, channels, 1, 1)),), {"kind": "average"})


def test_what_multiplies_nothing_is_predicted_from_two_workloads(tmp_path: Path) -> None:
    """By its traffic, at the mean of their rates in the same cache state."""
    routine, per_byte = "cpu:float32/copies", 1e-9
    pools = [pool(64, 7), pool(128, 7)]

    def measured(layer: Layer, state: CacheState, factor: float) -> Sample:
        return Sample(layer.workload, routine, {}, factor * per_byte * 4 * layer.type_of(0).elements, state)

    known = [measured(layer, "l3", 1.0) for layer in pools] + [measured(pools[0], "memory", 3.0)]
    trees = CostTrees.train([*samples(LAYERS), *known], MACHINE)
    assert trees is not None
    path = tmp_path / "trees.json"
    trees.save(path)
    for one in (trees, CostTrees.load(path, MACHINE)):
        assert one is not None
        asked = [Point(pool(96, 7).workload, routine, {}, state) for state in ("l3", "memory", "warm")]
        near, far, unseen = one.predict([*asked])
        assert near == pytest.approx(per_byte * 4 * 96 * 49, rel=0.1)
        assert far == pytest.approx(3 * near, rel=0.1)
        assert near < unseen < far
        assert math.isnan(one.predict([Point(pool(512, 14).workload, routine, {}, "l3")])[0])
    single = CostTrees.train([*samples(LAYERS), known[0]], MACHINE)
    assert single is not None
    assert math.isnan(single.predict([Point(pools[1].workload, routine, {}, "l3")])[0])
    errors = cross_validate([*samples(LAYERS), *known], MACHINE)
    assert errors is not None


def test_trees_are_the_same_again_and_survive_a_file(tmp_path: Path) -> None:
    asked = [Point(layer.workload, DIRECT, SETTINGS[7], "warm") for layer in LAYERS]
    one, other = (CostTrees.train(samples(LAYERS), MACHINE, seed=3) for _ in range(2))
    assert one is not None
    assert other is not None
    expected = one.predict(asked)
    np.testing.assert_array_equal(expected, other.predict(asked))
    one.errors = cross_validate(samples(LAYERS), MACHINE)
    path = tmp_path / "trees.json"
    one.save(path)
    kept = CostTrees.load(path, MACHINE)
    assert kept is not None
    np.testing.assert_allclose(kept.predict(asked), expected, rtol=1e-6)
    assert (kept.errors, kept.samples) == (one.errors, one.samples)
    assert (kept.extents, kept.means) == (one.extents, one.means)
    assert CostTrees.load(path, Machine(4, 16)) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "",
        lambda text: text[: len(text) // 2],
        lambda _: "{}",
        lambda text: text.replace('\\"version\\":', '\\"version\\": 9'),
        lambda text: text.replace("nnstretch", "somebody"),
    ],
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, damage: Callable[[str], str]) -> None:
    trees = CostTrees.train(samples(LAYERS), MACHINE)
    assert trees is not None
    path = tmp_path / "trees.json"
    trees.save(path)
    changed = damage(path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    assert CostTrees.load(path, MACHINE) is None


# -- costs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def processor() -> CpuProcessor:
    return CpuProcessor(ProcessorSpec("cpu", cores=(0, 1)))


def direct(processor: CpuProcessor) -> Routine:
    (found,) = (r for r in processor.routines if str(r.descriptor) == DIRECT)
    return found


def fill(store: ProfileStore, processor: CpuProcessor, found: Sequence[Sample]) -> None:
    for s in found:
        found_now = Measurement(s.seconds, (s.seconds,), state=s.state)
        store.put(processor.fingerprint, s.workload, s.routine, s.parameters, found_now)


def test_costs_are_measured_ones_else_predicted_else_unknown(
    tmp_path: Path, processor: CpuProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, routine = ProfileStore(tmp_path / "p.sqlite"), direct(processor)
    fill(store, processor, samples(LAYERS[1:]))
    odd = 1.5 * truth(LAYERS[1], SETTINGS[3])
    store.put(processor.fingerprint, LAYERS[1].workload, DIRECT, SETTINGS[3], Measurement(odd, (odd,)))
    store.put(processor.fingerprint, LAYERS[2].workload, DIRECT, SETTINGS[3], Measurement(None, failure="wrong answer"))
    costs = LearnedCosts(store, Estimates(), folder=tmp_path / "trees").in_network(0)
    with monkeypatch.context() as patched:
        patched.setattr(LearnedCosts, "trees", lambda *_: pytest.fail("measured costs need no trees"))
        assert costs.seconds(processor, routine, LAYERS[1], SETTINGS[3]) == odd
        assert costs.seconds(processor, routine, LAYERS[2], SETTINGS[3]) is None
    predicted = costs.seconds(processor, routine, LAYERS[0], SETTINGS[3])
    assert predicted == pytest.approx(truth(LAYERS[0], SETTINGS[3]), rel=0.5)
    assert costs.seconds(processor, routine, conv(512, 512, 90, 3), SETTINGS[3]) is None
    errors = costs.errors(processor)
    assert errors is not None
    assert errors.all.count > 100


def test_what_is_measured_after_it_was_predicted_is_believed(tmp_path: Path, processor: CpuProcessor) -> None:
    store, routine = ProfileStore(tmp_path / "p.sqlite"), direct(processor)
    fill(store, processor, samples(LAYERS[1:]))
    costs = LearnedCosts(store, Estimates(), folder=tmp_path / "trees").in_network(0)
    layer, candidate = LAYERS[0], Candidate(routine, SETTINGS[3])
    (predicted,) = costs.compare(processor, layer, [candidate])
    assert predicted is not None
    store.put(processor.fingerprint, layer.workload, DIRECT, SETTINGS[3], Measurement(2 * predicted, (2 * predicted,)))
    assert costs.compare(processor, layer, [candidate]) == [predicted]
    costs.measured_now(processor, layer, [candidate])
    assert costs.compare(processor, layer, [candidate]) == [2 * predicted]


def test_costs_are_those_of_the_network_s_cache_state(tmp_path: Path, processor: CpuProcessor) -> None:
    store, routine, layer = ProfileStore(tmp_path / "p.sqlite"), direct(processor), LAYERS[-1]
    warm = samples(LAYERS[:-1])
    fill(store, processor, [*warm, *(replace(s, seconds=3 * s.seconds, state="memory") for s in warm)])
    costs = LearnedCosts(store, Estimates(), folder=tmp_path / "trees")

    def seconds(network: int) -> float:
        found = costs.in_network(network).seconds(processor, routine, layer, SETTINGS[3])
        assert found is not None
        return found

    assert seconds(1 << 40) / seconds(0) == pytest.approx(3, rel=0.3)


def test_what_nothing_can_be_learned_of_is_left_out(tmp_path: Path) -> None:
    store, text = ProfileStore(tmp_path / "p.sqlite"), LAYERS[0].workload
    store.put("p", text, DIRECT, {"a": 1}, Measurement(1.0, (1.0,), interval=(0.9, 1.1), state="l3"))
    store.put("p", text, DIRECT, {"a": 2}, Measurement(1.0, (1.0,), interval=(0.9, 9.0)))
    store.put("p", text, DIRECT, {"a": 3}, Measurement(None, failure="wrong answer"))
    store.put("p", f"{text} in 0123456789abcdef", DIRECT, {"a": 1}, Measurement(1.0, (1.0,)))
    store.put("q", text, DIRECT, {"a": 1}, Measurement(1.0, (1.0,)))
    store.put("p", text, DIRECT, {"a": 4}, Measurement(2.0, (2.0,), interval=(1.5, 2.5)))  # just narrow enough
    store.put("p", f"{text} in 0123456789abcdeF", DIRECT, {"a": 1}, Measurement(3.0, (3.0,)))
    assert [sample.seconds for sample in stored_samples(store, "p")] == [1.0, 2.0, 3.0]
    assert stored_samples(store, "p")[0] == Sample(text, DIRECT, {"a": 1}, 1.0, "l3")
    assert count_stored(store, "p") == 3


def test_trees_are_kept_until_the_store_has_grown(tmp_path: Path, processor: CpuProcessor) -> None:
    store, folder = ProfileStore(tmp_path / "p.sqlite"), tmp_path / "trees"
    fill(store, processor, samples(LAYERS, each=5))

    def known() -> int:
        trees = LearnedCosts(store, Estimates(), folder=folder).trees(processor)
        assert trees is not None
        return trees.samples

    first = known()
    assert first == 5 * len(LAYERS)
    fill(store, processor, samples(LAYERS[:1], seed=1, each=3))
    assert known() == first
    fill(store, processor, samples(LAYERS, seed=2, each=9))
    assert known() > first


def test_what_a_search_found_is_remembered(tmp_path: Path, processor: CpuProcessor) -> None:
    store, routine, layer = ProfileStore(tmp_path / "p.sqlite"), direct(processor), conv(64, 64, 28)
    usual, space = list(routine.parameter_space(layer)), list(routine.search_space(layer))
    assert list(all_settings(processor, routine, layer)) == space
    best = next(setting for setting in space if setting not in usual)
    stale = {"of": 1, "another": 2, "version": 3}
    for parameters, seconds in ((usual[0], 2.0), (best, 1.0)):
        store.put(processor.fingerprint, layer.workload, DIRECT, parameters, Measurement(seconds, (seconds,)))
    assert list(remembered_settings(store)(processor, routine, layer)) == [*usual, best]
    store.put(processor.fingerprint, layer.workload, DIRECT, stale, Measurement(0.5, (0.5,)))
    assert list(remembered_settings(store)(processor, routine, layer)) == usual


# -- search ----------------------------------------------------------------------------------------------------------


def explored(layers: Sequence[Layer], schedule: Schedule, seed: int = 0, fails: bool = False) -> Exploration:
    """A search on the synthetic machine, where a measurement takes 50 ms."""
    now, asked = [0.0], set()

    def measure(task: int, number: int) -> float | None:
        assert (task, number) not in asked, "nothing is measured twice"
        asked.add((task, number))
        now[0] += 0.05
        return None if fails or SETTINGS[number]["reg_n"] == 14 else truth(layers[task], SETTINGS[number])

    tasks = [SearchTask(tuple(Point(layer.workload, DIRECT, s, "warm") for s in SETTINGS), 2) for layer in layers]
    found = Explorer(tasks, measure, MACHINE, schedule=schedule, seed=seed, clock=lambda: now[0]).run()
    assert set(found.measured) == asked
    return found


def test_a_search_stops_when_a_round_is_not_worth_its_time() -> None:
    counts = [len(explored(LAYERS, Schedule(runs=runs)).measured) for runs in (1, 10_000, 10_000_000)]
    assert counts == sorted(counts)
    assert counts[0] <= 60 < counts[-1]
    assert len(explored(LAYERS[:4], Schedule(initial=20, runs=10_000_000, most=30)).measured) == 30


def test_failures_are_no_answers() -> None:
    found = explored(LAYERS[:2], Schedule(initial=4), fails=True)
    assert found.best == (None, None)
    assert len(found.measured) == 2 * len(SETTINGS)


class Machines(Estimates):
    """The synthetic machine as a cost model that records its queries."""

    measured = True

    def __init__(self) -> None:
        self.asked: list[tuple[Layer, list[Candidate]]] = []
        self.working_sets: list[int] = []

    def in_network(self, working_set: int) -> Machines:
        self.working_sets.append(working_set)
        return self

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        if routine.descriptor.algorithm != "direct":
            return 1.0
        return truth(layer, parameters)

    def compare(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[float | None]:
        self.asked.append((layer, list(candidates)))
        return super().compare(processor, layer, candidates)


def test_a_network_is_searched_beside_the_fastest_so_far() -> None:
    found = build_processors(f"cpu:{usable_cores()[0]}")
    pool = queue_pool(found.named, found.host)
    graph = unit_graph(optimize(RandomNetwork(5, processors=0, nodes=8).graph()), is_native(pool))
    costs = Machines()
    explored = explore(graph, pool, costs, lambda _: None, Schedule(initial=12, most=30))
    assert costs.working_sets == [working_set(graph)]
    assert explored.explorations[found.named[0].name].candidates > 40
    best: dict[str, float] = {}
    for layer, candidates in costs.asked:
        times = [costs.seconds(found.named[0], c.routine, layer, c.parameters) or 0.0 for c in candidates]
        key = layer.workload + str(candidates[-1].routine.layouts(layer, candidates[-1].parameters))
        assert len(candidates) == (2 if key in best else 1)
        assert times[0] == best.get(key, times[0])
        best[key] = min(times)
    offering = costs.with_settings(explored.settings)
    for layer, candidates in costs.asked:
        for c in candidates:
            assert c.parameters in offering.settings(found.named[0], c.routine, layer)
    asked = {(layer.workload, str(cs[-1].routine.descriptor), str(cs[-1].parameters)) for layer, cs in costs.asked}
    assert len(asked) == len(explored.explorations[found.named[0].name].measured)
