"""The exceptions of ONNX Runtime, which have no common base class."""


def refusals() -> tuple[type[Exception], ...]:
    """Exceptions that ONNX Runtime raises when loading or running a model fails.

    Raises:
        ImportError: ONNX Runtime is not installed.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    # Values that it cannot pass on raise RuntimeError itself.
    return (RuntimeError, *own)
