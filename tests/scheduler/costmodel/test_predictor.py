"""Predictions for the branching search: measured, estimated and free layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.graph.layer import Layer, TensorType, fused_pair
from nnstretch.scheduler.costmodel.costs import Candidate, Estimates
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.predictor import ProfilePredictor, default_candidates
from nnstretch.scheduler.measurement.caches import cache_sizes
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.store.rows import Measurement
from nnstretch.scheduler.measurement.store.store import ProfileStore
from tests.kits.kernels.convolution_parity import conv_layer


class Guesses(LearnedCosts):
    """A second for everything."""

    def compare_all(self, processor: Processor, wanted: Sequence[tuple[Layer, Candidate]]) -> list[float | None]:
        return [1.0 for _ in wanted]


@pytest.mark.parametrize("pixels", [(4, 4), (4,), ()])
@pytest.mark.parametrize("channels", [16, 5])
def test_a_concat_whose_parts_lie_in_its_memory_costs_nothing_even_where_it_could_be_guessed(
    tmp_path: Path, channels: int, pixels: tuple[int, ...]
) -> None:
    """Images lie in blocks of channels, and other tensors in rows."""
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(min(usable_cores()),)))
    store = ProfileStore(tmp_path / "profiles.sqlite")
    part, whole = TensorType((1, channels, *pixels)), TensorType((1, 2 * channels, *pixels))
    concat = Layer("concat", "Concat", (part, part), (whole,), {"axis": 1})
    with Profiler(store, processor) as profiler:
        learned = Guesses(store, Estimates(), folder=tmp_path)
        predictor = ProfilePredictor([processor], profiler, lambda group: [1.0] * len(group), learned)
        assert predictor.seconds([concat], 0) == (1.0 if channels == 5 and len(pixels) == 2 else 0.0)
    store.close()


def test_nothing_is_guessed_to_be_faster_than_the_best_that_was_measured(tmp_path: Path) -> None:
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(min(usable_cores()),)))
    store = ProfileStore(tmp_path / "profiles.sqlite")
    layer = conv_layer((1, 32, 14, 14), 32)
    candidates = default_candidates(layer, processor)
    assert len(candidates) > 1
    measured = candidates[0]
    found = Measurement(5.0, (5.0,), state="l3")
    store.put(processor.fingerprint, layer.workload, str(measured.routine.descriptor), measured.parameters, found)
    with Profiler(store, processor) as profiler:
        learned = Guesses(store, Estimates(), folder=tmp_path).in_network(4 * cache_sizes().own)
        predictor = ProfilePredictor([processor], profiler, lambda group: [1.0] * len(group), learned)
        assert predictor.costs.compare(processor, layer, candidates[1:]) == [1.0] * (len(candidates) - 1)
        assert predictor.costs.compare(processor, layer, candidates) == [1.0] + [5.0] * (len(candidates) - 1)
    store.close()


def test_pairs_are_predicted_where_a_routine_computes_both(tmp_path: Path) -> None:
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(min(usable_cores()),)))
    store = ProfileStore(tmp_path / "profiles.sqlite")
    expand = conv_layer((1, 32, 14, 14), 96, (1, 1), pads=(0, 0, 0, 0))
    depthwise = conv_layer((1, 96, 14, 14), 96, groups=96)
    with Profiler(store, processor) as profiler:
        predictor = ProfilePredictor([processor], profiler, lambda group: [1.0] * len(group))
        together = predictor.fused_seconds(fused_pair(expand, depthwise), 0)
        apart = predictor.seconds([expand, depthwise], 0)
        assert 0 < together < 10 * apart
        assert predictor.fused_seconds(fused_pair(expand, conv_layer((1, 96, 14, 14), 32)), 0) == math.inf
    store.close()


def test_a_reader_of_a_meeting_point_fetches_what_the_other_writers_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(min(usable_cores()),)))
    asked: list[int] = []

    def transfer(_profiler: Profiler, _one: Processor, _other: Processor, tensor: TensorType) -> float:
        asked.append(tensor.elements)
        return 1e-6 * tensor.elements

    monkeypatch.setattr(Profiler, "transfer", transfer)
    tensor = TensorType((1, 6, 2, 5))
    store = ProfileStore(tmp_path / "profiles.sqlite")
    with Profiler(store, processor) as profiler:
        predictor = ProfilePredictor([processor] * 3, profiler, lambda group: [1.0] * len(group))
        for writers, readers, elements in (
            ((0,), (0, 1), 60), ((0,), (1,), 60), ((0, 1), (0, 1), 30), ((0, 1), (2,), 60), ((0, 1, 2), (1,), 40),
            ((1,), (1,), 0),
        ):  # fmt: skip
            assert predictor.meeting_seconds(tensor, writers, readers) == pytest.approx(1e-6 * elements)
            assert predictor.fetch_seconds(tensor, writers, readers) <= 1e-6 * elements
    store.close()
    assert max(asked) == 60
