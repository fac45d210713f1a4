"""Activations in numpy, for tables of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from nnstretch.graph.activation import Activation, ActivationKind


def activate(activation: Activation, values: np.ndarray) -> np.ndarray:
    """The activation of each value, as float64."""
    kind, a, b, x = activation.kind, activation.a, activation.b, np.asarray(values, np.float64)
    with np.errstate(over="ignore"):
        if kind in _OF_VALUE:
            return _OF_VALUE[kind](x)
        return _OF_ONE_CONSTANT[kind](x, a) if kind in _OF_ONE_CONSTANT else _OF_TWO_CONSTANTS[kind](x, a, b)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(0, x))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(value) for value in x.reshape(-1)]).reshape(x.shape)


def _hard_sigmoid(x: np.ndarray, a: float, b: float) -> np.ndarray:
    return np.clip(a * x + b, 0, 1)


def _elu(x: np.ndarray, a: float, b: float) -> np.ndarray:
    return np.where(x < 0, a * np.expm1(b * np.minimum(x, 0)), x)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2)


_OF_VALUE: Mapping[ActivationKind, Callable[[np.ndarray], np.ndarray]] = {
    ActivationKind.NONE: lambda x: x,
    ActivationKind.RELU: lambda x: np.maximum(x, 0),
    ActivationKind.SIGMOID: _sigmoid,
    ActivationKind.SILU: lambda x: x * _sigmoid(x),
    ActivationKind.HARD_SWISH: lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5),
    ActivationKind.TANH: np.tanh,
    ActivationKind.EXP: np.exp,
    ActivationKind.GELU: lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    ActivationKind.GELU_TANH: _gelu_tanh,
    ActivationKind.MISH: lambda x: x * np.tanh(_softplus(x)),
    ActivationKind.SOFTPLUS: _softplus,
    ActivationKind.ERF: _erf,
}
_OF_ONE_CONSTANT: Mapping[ActivationKind, Callable[[np.ndarray, float], np.ndarray]] = {
    ActivationKind.LEAKY_RELU: lambda x, a: np.where(x < 0, a * x, x),
    ActivationKind.SWISH: lambda x, a: x * _sigmoid(a * x),
}
_OF_TWO_CONSTANTS: Mapping[ActivationKind, Callable[[np.ndarray, float, float], np.ndarray]] = {
    ActivationKind.CLIP: lambda x, a, b: np.minimum(np.maximum(x, a), b),
    ActivationKind.HARD_SIGMOID: _hard_sigmoid,
    ActivationKind.ELU: _elu,
    ActivationKind.SELU: lambda x, a, b: b * _elu(x, a, 1),
}
