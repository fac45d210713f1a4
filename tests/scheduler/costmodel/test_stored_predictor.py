"""Predictions for remote processors: measured, learned, or refused without measurements."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from nnstretch.compiler.profile_files import open_profiles
from nnstretch.devices.base.description import Description
from nnstretch.devices.remote import ProfiledProcessor
from nnstretch.errors import DeviceError, MissingExtraError, UsageError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.predictor import default_candidates
from nnstretch.scheduler.costmodel.stored_predictor import StoredPredictor, StoredTransfers
from nnstretch.scheduler.measurement.store.profiles_file import Profiles, write_profiles
from nnstretch.scheduler.measurement.store.rows import Measurement, Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from tests.scheduler.costmodel.test_costmodel import conv

OTHER_CORES = Description("arm|4 cores", "cpu:0-3", "cpu", "an ARM", 4, cores=(0, 1, 2, 3), isa="aarch64")
ARM = Description("arm|2 cores", "cpu:4-5", "cpu", "an ARM", 4, cores=(4, 5), isa="aarch64", caches=(1 << 18, 1 << 20))
GPU = Description("opencl|gpu", "opencl:0", "opencl", "a GPU", 4, compute_units=8, registers=16)
MEASURED = [conv(16 * a, 16 * b, size) for a in (1, 2, 4) for b in (1, 3, 4) for size in (7, 14, 28)]
BETWEEN, FAR = conv(32, 32, 14), conv(4096, 4096, 112)


def truth(layer: Layer) -> float:
    return layer.macs / 20e9 + 3e-6


def rows(processor: ProfiledProcessor, layers: list[Layer]) -> list[Row]:
    """Every routine measured on every layer; the first is the fastest."""
    found = []
    for layer in layers:
        for rank, candidate in enumerate(default_candidates(layer, processor)):
            seconds = truth(layer) * (1 + rank)
            measurement = Measurement(seconds, (seconds,) * 3, interval=(seconds, seconds), state="l3", when=7.0)
            routine = str(candidate.routine.descriptor)
            found.append(Row(processor.fingerprint, layer.workload, routine, candidate.parameters, measurement))
    return found


def transfer(tensor: TensorType, seconds: float) -> Row:
    return Row(GPU.fingerprint, f"transfer {tensor}", ARM.fingerprint, {}, Measurement(seconds, (seconds,)))


def predictor(tmp_path: Path, contention_factors: tuple[float, ...] | None = None) -> StoredPredictor:
    cpu, store = ProfiledProcessor(ARM), ProfileStore(Path(":memory:"))
    store.put_all(rows(cpu, MEASURED))
    transfers = StoredTransfers(store, [cpu], cpu)
    learned = LearnedCosts(store, transfers, folder=tmp_path)
    return StoredPredictor([cpu, cpu], store, learned, transfers, lambda _: contention_factors)


def test_measured_layers_take_what_they_took_and_others_what_is_learned(tmp_path: Path) -> None:
    pytest.importorskip("xgboost", reason="the cost model's trees are xgboost's")
    found = predictor(tmp_path)
    assert found.seconds(MEASURED[:3], 1) == pytest.approx(sum(map(truth, MEASURED[:3])))
    assert found.guess(MEASURED[0], 0) is None
    assert found.seconds([BETWEEN], 0) == pytest.approx(truth(BETWEEN), rel=0.6)
    spread = found.guess(BETWEEN, 0)
    assert spread is not None
    assert 0 < spread.median <= spread.p90
    errors = found.error(0)
    assert errors is not None
    assert spread in (errors.all, *errors.routines.values())
    assert not found.confirm([BETWEEN], 0)
    with pytest.raises(DeviceError, match=r"too little like Conv of .*4096.* on cpu:4-5 .* export the profiles again"):
        found.seconds([FAR], 0)


def test_faster_parameters_that_were_measured_count(tmp_path: Path) -> None:
    found, layer = predictor(tmp_path), MEASURED[5]
    candidate = default_candidates(layer, ProfiledProcessor(ARM))[0]
    setting = {**candidate.parameters, "tiles": 77}
    seconds = truth(layer) / 2
    better = Measurement(seconds, (seconds,), state="l3")
    found.store.put(ARM.fingerprint, layer.workload, str(candidate.routine.descriptor), setting, better)
    assert found.seconds([layer], 0) == pytest.approx(seconds)


def test_what_cannot_be_learned_without_xgboost_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("xgboost"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    found = predictor(tmp_path)
    assert found.seconds([MEASURED[0]], 0) == pytest.approx(truth(MEASURED[0]))
    with pytest.raises(MissingExtraError, match=r"Conv of .* on cpu:4-5.*xgboost; install nnstretch\[tune\]"):
        found.seconds([BETWEEN], 0)


def test_unmeasured_contention_factors_are_reported(tmp_path: Path) -> None:
    assert predictor(tmp_path, (1.1, 1.3)).contention_factor(1, frozenset({0})) == 1.3
    found = predictor(tmp_path)
    assert found.contention_factor(1, frozenset({0})) == 1.0
    assert found.unknown_contention_factors == {("cpu:4-5", "cpu:4-5")}


def test_transfers_lie_on_a_line_through_those_measured() -> None:
    cpu, gpu, store = ProfiledProcessor(ARM), ProfiledProcessor(GPU), ProfileStore(Path(":memory:"))
    with pytest.raises(DeviceError, match="no transfers between cpu:4-5 and opencl:0"):
        StoredTransfers(store, [cpu, gpu], cpu)
    assert StoredTransfers(store, [cpu, cpu], cpu).transfer(cpu, cpu, TensorType((1, 9, 9, 9))) == 0.0
    tensors = [TensorType((1, channels, 8, 8)) for channels in (4, 16, 64)]
    store.put_all([transfer(tensor, 2e-5 + 1e-10 * 4 * tensor.elements) for tensor in tensors])
    found = StoredTransfers(store, [cpu, gpu], cpu)
    assert found.transfer(cpu, gpu, TensorType((1, 32, 8, 8))) == pytest.approx(2e-5 + 1e-10 * 4 * 2048)
    store.put_all([transfer(tensor, 3e-5 - 1e-10 * tensor.elements) for tensor in tensors])
    falling = StoredTransfers(store, [cpu, gpu], cpu)
    assert falling.transfer(cpu, gpu, tensors[0]) == falling.transfer(gpu, cpu, tensors[2]) > 0.0


def test_transfers_between_cores_leave_out_what_other_programs_delayed() -> None:
    cpu, other = ProfiledProcessor(ARM), ProfiledProcessor(OTHER_CORES)
    tensor, store = TensorType((1, 16, 8, 8)), ProfileStore(Path(":memory:"))
    for seconds, counted in ((5e-3, 20e-6 + 4096e-9), (3e-6, 3e-6)):
        row = Row(other.fingerprint, f"transfer {tensor}", ARM.fingerprint, {}, Measurement(seconds, (seconds,)))
        store.put_all([row])
        assert StoredTransfers(store, [cpu, other], cpu).transfer(other, cpu, tensor) == pytest.approx(counted)


def test_processors_of_a_file_by_name(tmp_path: Path) -> None:
    other = Description("arm|1 core", "cpu:0", "cpu", "an ARM", 4, cores=(0,), isa="aarch64")
    newer = Description("arm|2 cores, newer", "cpu:4-5", "cpu", "an ARM", 4, cores=(4, 5), isa="aarch64")
    cpu, path = ProfiledProcessor(ARM), tmp_path / "p.json"
    measured = [*rows(cpu, MEASURED[:2]), transfer(TensorType((1, 4, 8, 8)), 1e-5)]
    write_profiles(Profiles(measured, [ARM, newer, other, GPU]), path)
    opened = open_profiles(path, "cpu:2-3,opencl")
    assert opened.names == ("cpu:2-3", "opencl:0")
    assert [one.fingerprint for one in opened.processors] == [ARM.fingerprint, GPU.fingerprint]  # measured last
    assert opened.block == 4
    assert opened.predictor.seconds([MEASURED[0]], 0) == pytest.approx(truth(MEASURED[0]))
    assert open_profiles(path, "cpu:0,cpu:7").names == ("cpu:0", "cpu:7")
    for text, says in [
        ("cpu,opencl", "several processors cpu; write one of cpu:0,cpu:4-5,opencl:0"),
        ("cpu:0-3,opencl", "no processors cpu:0-3"),
        ("opencl:1,cpu:0", "no processors opencl:1"),
        ("cpu:0", "names 1 processor"),
        ("gpu,cpu:0", "unknown processor"),
    ]:
        with pytest.raises(UsageError, match=says) as caught:
            open_profiles(path, text)
        assert "\n" not in str(caught.value)
    write_profiles(Profiles(measured), path)
    with pytest.raises(UsageError, match="does not say which processors"):
        open_profiles(path, "cpu:0,opencl")
    write_profiles(Profiles(measured, [Description("x", "cpu:0", "cpu", "x", 8, cores=(0,), isa="vax")] * 2), path)
    with pytest.raises(DeviceError, match="'vax'"):
        open_profiles(path, "cpu:0,cpu:1")
