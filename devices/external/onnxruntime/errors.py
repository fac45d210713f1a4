"""What ONNX Runtime raises."""

from __future__ import annotations


def refusals() -> tuple[type[Exception], ...]:
    """The exceptions with which ONNX Runtime refuses a model or fails to run it; they have no base of their own.

    Raises:
        ImportError: it is not installed.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return tuple(kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception))


def first_line(error: Exception) -> str:
    """The part of its message that a user needs."""
    return str(error).strip().splitlines()[0]
