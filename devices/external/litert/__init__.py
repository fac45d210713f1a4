"""LiteRT as an external engine, and conversion of graphs to TFLite files in float32 and int8."""

from nnstretch.devices.external.litert.engine import KIND
from nnstretch.devices.registry import ALIASES

__all__ = ["KIND", "NAMES"]

NAMES = (KIND.name, *(name for name, current in ALIASES.items() if current == KIND.name))
"""The engine's names in processors."""
