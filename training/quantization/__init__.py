"""Quantisation-aware training: networks whose forward pass rounds as their int8 files do."""

from nnstretch.training.quantization.building import quantization_aware
from nnstretch.training.quantization.network import QuantizedNetwork

__all__ = ["QuantizedNetwork", "quantization_aware"]
