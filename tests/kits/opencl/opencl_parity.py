"""Layers for tests of OpenCL routines, and comparison with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from hypothesis import HealthCheck, settings

from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines import Traits, routines
from nnstretch.devices.opencl.routines.base import INT8
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import FLOAT16
from nnstretch.graph.layer import Attribute, Layer, TensorType
from tests.kits.kernels.convolution_parity import ROUNDED_TOLERANCE, TOLERANCE, reference
from tests.kits.opencl.opencl_driver import run_lowering

RELU = Activation(ActivationKind.RELU)
ACTIVATIONS = (
    NO_ACTIVATION,
    RELU,
    Activation(ActivationKind.CLIP, 0.0, 6.0),
    Activation(ActivationKind.SIGMOID),
    Activation(ActivationKind.SILU),
    Activation(ActivationKind.HARD_SIGMOID, 0.2, 0.5),
    Activation(ActivationKind.HARD_SWISH),
    Activation(ActivationKind.LEAKY_RELU, 0.1),
    Activation(ActivationKind.TANH),
    Activation(ActivationKind.EXP),
    Activation(ActivationKind.GELU),
    Activation(ActivationKind.GELU_TANH),
    Activation(ActivationKind.SWISH, 1.702),
    Activation(ActivationKind.MISH),
    Activation(ActivationKind.SOFTPLUS),
    Activation(ActivationKind.ELU, 0.5, 2.0),
    Activation(ActivationKind.SELU, 1.6732632, 1.050701),
    Activation(ActivationKind.ERF),
)

HALF_TOLERANCE = 1e-3
"""Of the range of the reference: inputs, weights and outputs are each rounded to 11 bits."""
HALF_WINOGRAD_TOLERANCE = 3e-3
"""The same of Winograd's: decoding makes the rounding of encoded weights larger."""

_IN_GROUPS = {"direct": "implicit_gemm", "planar": "planar_gemm"}
"""What replaces an algorithm on devices whose work groups share operands."""

some = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_layer(
    op: str,
    inputs: Sequence[np.ndarray | tuple[int, ...] | None],
    output: tuple[int, ...],
    attributes: Mapping[str, Attribute] | None = None,
    activation: Activation = NO_ACTIVATION,
) -> Layer:
    """A layer whose array inputs are constants and whose tuples are shapes of run-time inputs."""
    types = tuple(None if i is None else TensorType(i.shape if isinstance(i, np.ndarray) else i) for i in inputs)
    constants = {index: value for index, value in enumerate(inputs) if isinstance(value, np.ndarray)}
    return Layer(
        "layer", op, types, (TensorType(output),), MappingProxyType(dict(attributes or {})), activation, constants
    )


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def feeds_of(layer: Layer) -> list[np.ndarray]:
    """Random inputs, in the order of `layer.activations`; integers over the whole range if they are int8."""
    types = {index: layer.type_of(index) for index in layer.activations}
    return [
        numbers(kind.shape, seed=index + 1)
        if kind.dtype != INT8
        else np.random.default_rng(index + 1).integers(-128, 128, kind.shape, np.int8)
        for index, kind in types.items()
    ]


def check(
    processor: OpenCLProcessor,
    layer: Layer,
    algorithms: set[str],
    first_settings: int = 6,
    traits: Traits | None = None,
) -> None:
    """All routines that support the layer agree with ONNX Runtime.

    Their algorithms are `algorithms`, or also Winograd's; products of work groups replace them on devices with local memory.
    """
    wanted = reference(layer, feeds_of(layer))
    known = routines(traits) if traits else processor.routines
    supporting = [routine for routine in known if routine.supports(layer)]
    found = {routine.descriptor.algorithm for routine in supporting}
    in_groups = (traits or processor.runtime.traits).works_in_groups
    if in_groups and layer.op == "Conv" and layer.integer("groups", 1) == 1:
        assert found - {"winograd_gemm"} == {_IN_GROUPS[name] for name in algorithms if name in _IN_GROUPS}
    else:
        # Strides and other kernels have Winograd's where it is worth it.
        assert algorithms <= found <= algorithms | {"winograd", "winograd_int16"}
    for routine in supporting:
        for parameters in routine.parameter_space(layer)[:first_settings]:
            check_setting(processor, routine, layer, parameters, wanted, tolerance_of(routine))


def tolerance_of(routine: Routine) -> float:
    """Error that an untuned routine may have, relative to the range of the reference."""
    descriptor = routine.descriptor
    if descriptor.dtype == FLOAT16:
        return HALF_WINOGRAD_TOLERANCE if descriptor.algorithm.startswith("winograd") else HALF_TOLERANCE
    return ROUNDED_TOLERANCE if "int16" in descriptor.algorithm else TOLERANCE


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, relative to the range of `wanted` with zero; of arrays of the same shape.

    A step of int8 is no difference: ONNX Runtime rounds elsewhere.
    """
    assert (found.shape, found.dtype == np.int8) == (wanted.shape, wanted.dtype == np.int8)
    steps = 1.0 if found.dtype == np.int8 else 0.0
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    scale = max(float(np.ptp(wanted)), float(np.abs(wanted).max()), 1e-6)
    return max(0.0, float(np.abs(found - wanted).max()) - steps) / scale


def check_setting(
    processor: OpenCLProcessor,
    routine: Routine,
    layer: Layer,
    parameters: Parameters,
    wanted: np.ndarray | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """A routine with these parameters gives `wanted`, or what ONNX Runtime gives, as far as its range goes."""
    if wanted is None:
        wanted = reference(layer, feeds_of(layer))
    layouts = routine.layouts(layer, parameters)
    (found,) = run_lowering(processor.runtime, routine.lower(layer, parameters), layer, feeds_of(layer), *layouts)
    error = relative_error(found, wanted)
    assert error <= tolerance, f"{routine.descriptor} {dict(parameters)} {layer.workload}: {error:.1e} of the range"
