"""Convolutions for tests of routines, and comparison with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import onnxruntime
from hypothesis import strategies as st

from nnstretch.api.options import BFLOAT16_TOLERANCE, FLOAT16_TOLERANCE
from nnstretch.devices.algorithms.winograd import INT16_GROUP
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import BFLOAT16, FLOAT16
from nnstretch.graph.expand import expand
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.boards.cores import OWN_CORE
from tests.kits.kernels.kernel_driver import run_lowering

TOLERANCE = 1e-4
"""Error that untuned routines may have, relative to the largest output."""
ROUNDED_TOLERANCE = 5e-4
"""The same with encoded weights rounded to int16; what a network may use is decided when it is tuned."""

ACTIVATIONS = (
    NO_ACTIVATION,
    Activation(ActivationKind.RELU),
    Activation(ActivationKind.CLIP, -0.5, 0.75),
    Activation(ActivationKind.SIGMOID),
    Activation(ActivationKind.SILU),
    Activation(ActivationKind.HARD_SIGMOID, 0.2, 0.5),
    Activation(ActivationKind.HARD_SWISH),
    Activation(ActivationKind.LEAKY_RELU, 0.1),
    Activation(ActivationKind.TANH),
    Activation(ActivationKind.GELU),
    Activation(ActivationKind.GELU_TANH),
    Activation(ActivationKind.SWISH, 1.702),
    Activation(ActivationKind.MISH),
    Activation(ActivationKind.SOFTPLUS),
    Activation(ActivationKind.ELU, 0.5, 2.0),
    Activation(ActivationKind.SELU, 1.6732632, 1.050701),
    Activation(ActivationKind.ERF),
)
"""Activations of convolutions and dense layers."""

activations = st.sampled_from(ACTIVATIONS)
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
pads = st.tuples(*[st.integers(0, 3)] * 4)


def random(shape: Sequence[int], seed: int, scale: float = 1.0) -> np.ndarray:
    """Normal float32 noise with deviation `scale`."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def exact_in_int16(weight: np.ndarray) -> np.ndarray:
    """The nearest weights that int16 with a scale for each output keeps exactly."""
    steps = np.abs(weight).max(axis=tuple(range(1, weight.ndim)), keepdims=True) / 32767
    return np.asarray(np.rint(weight / steps) * steps, np.float32)


def conv_layer(
    shape: tuple[int, int, int, int],
    outputs: int,
    kernel: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    dilations: tuple[int, int] = (1, 1),
    groups: int = 1,
    *,
    bias: bool = True,
    residual: bool = False,
    activation: Activation = NO_ACTIVATION,
    weight: np.ndarray | None = None,
) -> Layer:
    """A convolution of an input of `shape`; its weights are random unless given."""
    batch, channels, *extents = shape
    sizes = [
        (extent + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1
        for axis, extent in enumerate(extents)
    ]
    output = TensorType((batch, outputs, *sizes))
    if weight is None:
        weight = random((outputs, channels // groups, *kernel), 1, (channels // groups * np.prod(kernel)) ** -0.5)
        weight = exact_in_int16(weight)
    constants = {1: weight} | ({2: random((outputs,), 2)} if bias else {})
    return Layer(
        "tested",
        "Conv",
        (
            TensorType(shape),
            TensorType(weight.shape),
            TensorType((outputs,)) if bias else None,
            output if residual else None,
        ),
        (output,),
        MappingProxyType({"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}),
        activation,
        MappingProxyType(constants),
    )


def kept_by_int16(layer: Layer) -> Layer:
    """The layer with weights that int16 keeps exactly once encoded: one tap per output, ± one value per group of channels."""
    outputs, inputs, *taps = layer.constants[1].shape
    draws = np.random.default_rng(3)
    groups = -(-inputs // INT16_GROUP)
    values = np.repeat(draws.uniform(0.5, 2, (outputs, groups)), INT16_GROUP, axis=1)[:, :inputs]
    weight = np.zeros((outputs, inputs, taps[0] * taps[1]), np.float32)
    signed = values * draws.choice([-1, 1], values.shape) * inputs**-0.5
    np.put_along_axis(weight, draws.integers(0, weight.shape[2], (outputs, 1, 1)), signed[..., None], axis=2)
    return replace(layer, constants={**layer.constants, 1: weight.reshape(outputs, inputs, *taps)})


ONE = st.just((1, 1))
"""No strides."""


@st.composite
def pointwise_layers(
    draw: st.DrawFn,
    channels: st.SearchStrategy[int],
    outputs: st.SearchStrategy[int],
    ends: st.SearchStrategy[Activation],
    strides: st.SearchStrategy[tuple[int, int]] = ONE,
) -> Layer:
    """1 × 1 convolutions of small planes, for Strassen's algorithm.

    Covers odd and even channels, and outputs that fill pairs of panels or leave single vectors.
    """
    results = draw(st.integers(2, 9)), draw(st.integers(3, 15))
    steps = draw(strides)
    height, width = ((r - 1) * step + draw(st.integers(1, step)) for r, step in zip(results, steps, strict=True))
    return conv_layer(
        (draw(st.integers(1, 2)), draw(channels), height, width),
        draw(outputs),
        (1, 1),
        pads=(0, 0, 0, 0),
        strides=steps,
        bias=draw(st.booleans()),
        residual=draw(st.booleans()),
        activation=draw(ends),
    )


FOR_STRASSEN = conv_layer((1, 128, 8, 8), 128, (1, 1), pads=(0, 0, 0, 0))
NOT_FOR_STRASSEN = (
    conv_layer((1, 128, 8, 8), 128, (3, 3)),
    conv_layer((1, 128, 8, 8), 128, (1, 1), pads=(1, 1, 1, 1)),
    conv_layer((1, 128, 8, 8), 128, (1, 1), pads=(0, 0, 0, 0), groups=2),
    conv_layer((1, 16, 8, 8), 128, (1, 1), pads=(0, 0, 0, 0)),
    conv_layer((1, 128, 1, 1), 128, (1, 1), pads=(0, 0, 0, 0)),
)
"""Too large a kernel, pads, groups, too few channels, too few pixels."""


def feeds_of(layer: Layer) -> list[np.ndarray]:
    """Random inputs, in the order of `layer.activations`, which cannot be written."""
    return [_feed(layer.type_of(i), 5 + i) for i in layer.activations]


@lru_cache(8)
def _feed(tensor: TensorType, seed: int) -> np.ndarray:
    """Drawn once for all settings of a layer."""
    feed = random(tensor.shape, seed)
    if tensor.dtype != "float32" and tensor.quantization is None:
        feed = np.abs(64 * feed).astype(tensor.element.storage)
    feed.flags.writeable = False
    return feed


def reference(layer: Layer, feeds: Sequence[np.ndarray]) -> np.ndarray:
    """The output as ONNX Runtime computes it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # Without it, sums of int8 products saturate on CPUs without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        expand(layer).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (result,) = session.run(None, {f"x{i}": feed for i, feed in enumerate(feeds)})
    assert isinstance(result, np.ndarray)
    return result


def tolerance_of(routine: Routine) -> float:
    """Error that an untuned routine may have, relative to the largest output."""
    if routine.rounds_to is not None:
        return {BFLOAT16: BFLOAT16_TOLERANCE, FLOAT16: FLOAT16_TOLERANCE}[routine.rounds_to]
    return ROUNDED_TOLERANCE if routine.descriptor.algorithm == "winograd_int16" else TOLERANCE


def check_setting(
    routine: Routine,
    layer: Layer,
    parameters: Parameters,
    wanted: np.ndarray,
    *,
    tolerance: float | None = None,
    least_span: float = 1e-3,
    in_place: bool = False,
) -> None:
    """Compares a routine on `feeds_of(layer)` with `wanted`, with two threads.

    Errors are relative to the largest wanted output, or to `least_span` if that is larger; they are below `tolerance`, that of
    the routine if None.
    """
    layouts = routine.layouts(layer, parameters)
    lowering = routine.lower(layer, parameters)
    (found,) = run_lowering(lowering, layer, feeds_of(layer), *layouts, cores=(OWN_CORE, OWN_CORE), in_place=in_place)
    error = float(np.abs(found - wanted).max()) / max(float(np.abs(wanted).max()), least_span)
    allowed = tolerance_of(routine) if tolerance is None else tolerance
    assert error < allowed, f"{routine.descriptor} {dict(parameters)}: {error:.1e}"


def variants(routine: Routine, layer: Layer) -> list[Parameters]:
    """The routine's settings and others: small units, sums in several passes."""
    space = list(routine.parameter_space(layer))
    if routine.descriptor.algorithm == "direct":
        offered = (*space[:2], space[-1])
        space += [{**p, "tiles": 2, "order": 1, "ic_bn": 1} for p in offered]
        space += [{**p, "tiles": 3, "order": 0, "ic_bn": 32} for p in offered]
    of_image = not routine.descriptor.algorithm.startswith("dense")  # whose rows are those of a tile
    if "rows" in space[0] and of_image:
        space += [{**p, "rows": rows} for p in space[:2] for rows in (1, 3)]
    return space


def check(
    routines: Sequence[Routine], layer: Layer, wanted_routines: set[str] | None = None, *, in_place: bool = False
) -> None:
    """Compares all settings of the routines that support `layer`, which are `wanted_routines`, with the reference."""
    wanted = reference(layer, feeds_of(layer))
    assert wanted.shape == layer.outputs[0].shape
    supporting = [routine for routine in routines if routine.supports(layer)]
    assert supporting
    if wanted_routines is not None:
        # What is worth a fast algorithm's sums depends on the block.
        algorithms = {routine.descriptor.algorithm for routine in supporting}
        assert algorithms - {"strassen", "strassen_rows", "winograd", "winograd_int16"} == wanted_routines
    for routine in supporting:
        for parameters in variants(routine, layer):
            check_setting(routine, layer, parameters, wanted, in_place=in_place)
