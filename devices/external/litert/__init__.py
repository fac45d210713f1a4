"""LiteRT as an external engine, and conversion of graphs to TFLite files in float32 and int8."""

from nnstretch.devices.external.litert.engine import KIND

__all__ = ["KIND"]
