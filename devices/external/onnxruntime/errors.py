"""Exceptions of ONNX Runtime."""

from __future__ import annotations


def refusals() -> tuple[type[Exception], ...]:
    """Exceptions that ONNX Runtime raises when loading or running a model fails; they have no common base class.

    Raises:
        ImportError: ONNX Runtime is not installed.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return tuple(kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception))


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return str(error).strip().splitlines()[0]
