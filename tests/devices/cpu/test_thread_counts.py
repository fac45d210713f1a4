"""Work is divided among all threads of a processor, also among more than four."""

from __future__ import annotations

import pytest

from nnstretch.devices.base.routine import USUAL_THREADS
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.cpu.routines import native_routines
from nnstretch.graph.layer import Layer, fused_pair
from tests.kits.kernels.convolution_parity import conv_layer
from tests.kits.kernels.emulated_kernels import TARGET, Case, units_of
from tests.kits.kernels.fused_shapes import block_layer

LAYERS = {
    "direct": conv_layer((1, 64, 28, 28), 256, (1, 1), pads=(0, 0, 0, 0)),
    "winograd": conv_layer((1, 128, 7, 7), 256),
    "strassen": conv_layer((1, 256, 14, 14), 256, (1, 1), pads=(0, 0, 0, 0)),
    "planar": conv_layer((1, 3, 64, 64), 32, (3, 3), (2, 2)),
    "depthwise_project": fused_pair(
        conv_layer((1, 64, 28, 28), 64, groups=64), conv_layer((1, 64, 28, 28), 32, (1, 1), pads=(0, 0, 0, 0))
    ),
    "expand_depthwise": fused_pair(
        conv_layer((1, 16, 28, 28), 64, (1, 1), pads=(0, 0, 0, 0)), conv_layer((1, 64, 28, 28), 64, groups=64)
    ),
    "inverted_residual": block_layer(
        conv_layer((1, 16, 28, 28), 64, (1, 1), pads=(0, 0, 0, 0)),
        conv_layer((1, 64, 28, 28), 64, groups=64),
        conv_layer((1, 64, 28, 28), 32, (1, 1), pads=(0, 0, 0, 0)),
    ),
}
"""Layers of networks by the algorithm that is asked."""


def case_of(algorithm: str, layer: Layer, threads: int) -> Case:
    """The untuned setting of a routine for this number of threads."""
    routines = native_routines(TARGET.isa, threads)
    routine = next(one for one in routines if one.descriptor.algorithm == algorithm and one.supports(layer))
    parameters = routine.parameter_space(layer)[0]
    return Case(routine, layer, parameters)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", LAYERS)
def test_every_thread_of_sixteen_gets_work(algorithm: str) -> None:
    layer = LAYERS[algorithm]
    for threads in (8, 16):
        assert units_of(case_of(algorithm, layer, threads)) >= threads


@pytest.mark.parametrize("algorithm", LAYERS)
def test_up_to_four_threads_have_the_same_settings(algorithm: str) -> None:
    """Measurements that users have stay valid."""
    layer = LAYERS[algorithm]
    settings = [case_of(algorithm, layer, threads).parameters for threads in (1, 2, USUAL_THREADS)]
    assert settings[1:] == settings[:-1]


def test_a_processor_divides_work_among_its_cores() -> None:
    for cores in (2, 6):
        processor = CpuProcessor(ProcessorSpec("cpu", cores=tuple(range(cores))), TARGET.isa)
        assert {routine.threads for routine in processor.routines} == {max(cores, USUAL_THREADS)}
