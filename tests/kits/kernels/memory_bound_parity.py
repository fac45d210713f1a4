"""Layers that memory bounds, and the comparison of their routines with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnxruntime
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Parameters
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.cpu.routines.memory_bound import MemoryBoundRoutine
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.expand import expand
from nnstretch.graph.layer import Attribute, Layer, TensorType
from tests.kits.boards.cores import OWN_CORE
from tests.kits.kernels.convolution_parity import ACTIVATIONS
from tests.kits.kernels.cpu_routines import memory_bound_routines
from tests.kits.kernels.kernel_driver import run_lowering

BLOCKS = (4, 8, 16)
MEMORY_BOUND_ROUTINES = memory_bound_routines(local_isa().block)
CORES = ((OWN_CORE,), (OWN_CORE, OWN_CORE))
TWO_CORES = tuple(usable_cores()[:2])
Shape = tuple[int, ...]

WITH_EXP = (*ACTIVATIONS, Activation(ActivationKind.EXP))


def make_layer(
    op: str,
    inputs: Sequence[Shape],
    output: Shape,
    attributes: Mapping[str, Attribute] | None = None,
    activation: Activation = NO_ACTIVATION,
    constants: Mapping[int, np.ndarray] | None = None,
) -> Layer:
    return Layer(
        "tested",
        op,
        tuple(map(TensorType, inputs)),
        (TensorType(output),),
        MappingProxyType(dict(attributes or {})),
        activation,
        MappingProxyType(dict(constants or {})),
    )


def values(shape: Shape, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-3, 3, shape).astype(np.float32)


def reference(layer: Layer, feeds: Sequence[np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        expand(layer).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (result,) = session.run(None, {f"x{i}": feed for i, feed in enumerate(feeds)})
    assert isinstance(result, np.ndarray)
    return result


def settings_of(
    layer: Layer, routines: Sequence[MemoryBoundRoutine] = MEMORY_BOUND_ROUTINES
) -> list[tuple[MemoryBoundRoutine, Parameters]]:
    """All settings of the routines that support `layer`."""
    found = [(r, parameters) for r in routines if r.supports(layer) for parameters in r.parameter_space(layer)]
    assert found
    return found


def check(
    layer: Layer,
    *,
    exact: bool = False,
    blocked: bool = True,
    blocks: Sequence[int] = BLOCKS,
    threads: Sequence[tuple[int, ...]] = CORES,
    tolerance: float = 2e-6,
) -> np.ndarray:
    """Compares all settings of the routines that support `layer` with the reference, which is returned.

    Two threads that share a core take turns, whatever else runs; `threads` may name cores on which they run at the same time.
    """
    feeds = [values(layer.type_of(i).shape, 7 + i) for i in layer.activations]
    wanted = reference(layer, feeds)
    assert wanted.shape == layer.outputs[0].shape
    for block in blocks:
        tested = settings_of(layer, memory_bound_routines(block))
        assert [p["block"] for p in tested[0][0].parameter_space(layer)] == ([block, 0] if blocked else [0])
        for routine, parameters in tested:
            lowering = routine.lower(layer, parameters)
            for cores in threads:
                inputs, outputs = routine.layouts(layer, parameters)
                (found,) = run_lowering(lowering, layer, feeds, inputs, outputs, cores)
                where = f"{routine.descriptor} {parameters} {cores}"
                if exact:
                    np.testing.assert_array_equal(found, wanted, where)
                else:
                    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance, err_msg=where)
    return wanted


batches, channels, activations = st.integers(1, 3), st.integers(1, 35), st.sampled_from(WITH_EXP)
