"""The CPU processor: what it offers, and what identifies its measurements."""

from __future__ import annotations

import numpy as np
import pytest

from nnstretch.devices.base.routine import NO_PARAMETERS, REORDER, Layout, reorder_layer
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu import manifest
from nnstretch.devices.cpu.manifest import manifest_text, read_families
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.cpu.queues import HOST
from nnstretch.devices.cpu.routines.convolution import dense
from nnstretch.devices.cpu.routines.convolution.dense import Dense
from nnstretch.devices.cpu.routines.convolution.direct import DirectConvolution
from nnstretch.devices.cpu.routines.convolution.planar import PlanarConvolution
from nnstretch.devices.engine.binding.library import Engine, engine
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.kernels.cpu_routines import compute_bound_routines

WEIGHTS = np.ones((9, 20), np.float32)


def test_it_is_what_the_engine_is_built_for() -> None:
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(0,)))
    assert processor.name == "cpu:0"
    assert processor.blocked == Layout(engine().block)
    assert processor.backend is HOST


def test_the_fingerprint_tells_cores_and_engines_apart() -> None:
    one, two = (CpuProcessor(ProcessorSpec("cpu", cores=cores)) for cores in ((0,), (0, 1)))
    other = CpuProcessor(ProcessorSpec("cpu", cores=(1,)))
    assert one.fingerprint != two.fingerprint
    assert one.fingerprint == other.fingerprint, "which cores they are does not matter, only how many"
    assert engine().path.stem in one.fingerprint


def test_measurements_without_features_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(0,)))
    whole = processor.fingerprint
    monkeypatch.setenv("NNSTRETCH_CPU_FEATURES", "-fma,-avx512_vnni")
    assert processor.fingerprint == f"{whole} -avx512_vnni -fma"


def test_measurements_on_slow_cores_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    zero, one, both = (CpuProcessor(ProcessorSpec("cpu", cores=cores)) for cores in ((0,), (1,), (0, 1)))
    before = [processor.fingerprint for processor in (zero, one, both)]
    monkeypatch.setenv("NNSTRETCH_CORE_SPEEDS", "1:0.5")
    assert [processor.fingerprint for processor in (zero, one, both)] == [
        before[0],
        f"{before[1]} at 0.5",
        f"{before[2]} at 1:0.5",
    ]


def test_descriptors_are_distinct_and_say_what_they_are() -> None:
    descriptors = [str(routine.descriptor) for routine in CpuProcessor(ProcessorSpec("cpu", cores=(0,))).routines]
    assert len(set(descriptors)) == len(descriptors)
    for algorithm in ("direct", "planar", "depthwise", "dense", "dense_int16"):
        assert f"cpu:float32/{algorithm}" in descriptors


def test_it_changes_layouts() -> None:
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(0,)))
    layer = reorder_layer(TensorType((1, 5, 3, 3)), Layout(0), processor.blocked)
    assert layer.op == REORDER
    assert processor.reorder.supports(layer)


def test_dense_takes_any_number_of_tiles(isa: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tile needs no parameter; with several each is measured and names its own kernel."""
    layer = Layer(
        "dense", "Dense", (TensorType((3, 20)), TensorType((9, 20))), (TensorType((3, 9)),), constants={1: WEIGHTS}
    )
    (given,) = (routine for routine in compute_bound_routines(isa) if type(routine) is Dense)
    one = Dense(isa)
    one.tiles = given.tiles[:1]
    assert one.parameter_space(layer) == (NO_PARAMETERS,)
    row = 'K(another, "dense_another", ANY, 5, 3)'
    text = manifest_text().replace("#define KERNELS_dense(K)", f"#define KERNELS_dense(K) {row}")
    families = read_families(text)
    for module in (dense, manifest):
        monkeypatch.setattr(module, "family", families.__getitem__)
    monkeypatch.setattr(manifest, "kernels", lambda: {kernel.name: kernel for kernel in families["dense"].kernels})
    (several,) = (routine for routine in compute_bound_routines(isa) if type(routine) is Dense)
    space = several.parameter_space(layer)
    kernels = [several.lower(layer, parameters).calls[0].kernel for parameters in space]
    assert kernels[:2] == ["dense_another", one.lower(layer, NO_PARAMETERS).calls[0].kernel]
    assert len(kernels) == 1 + len(given.tiles)


def test_every_register_tile_is_a_kernel_of_the_engine(isa: Isa) -> None:
    tiles = set()
    for routine in compute_bound_routines(isa):
        if isinstance(routine, DirectConvolution):
            tiles |= {tile.kernel(isa.block) for tile in routine.tiles}
        elif isinstance(routine, PlanarConvolution):
            tiles |= {f"conv_planar_p{pixels}v{vectors}" for pixels, vectors in routine.tiles}
    names = Engine(engine_library.build_engine(isa)).kernel_names()
    assert tiles == {name for name in names if name.startswith(("conv_direct", "conv_planar"))}
