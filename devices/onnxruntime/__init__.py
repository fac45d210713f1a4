"""The fallback: ONNX Runtime computes the layers that no native routine covers."""

from nnstretch.devices.onnxruntime.fallback import FallbackModel

__all__ = ["FallbackModel"]
