"""Post-training quantisation of ONNX graphs: int8 as QuantizeLinear and DequantizeLinear say it.

ONNX Runtime's tools fold the float graph and write the quantised one. What they are given comes from here: ranges of the
activations (`ranges`), layers that stay in float32 (`keep_float`, `heads`, `sensitivity`), and weights that lose less
by rounding (`equalization`, `bias_correction`, `adaptive_rounding`).
"""

from nnstretch.quantization.adaptive_rounding import RoundedLayer
from nnstretch.quantization.examples import Examples, examples_of
from nnstretch.quantization.feeds import Feeds, read_feeds
from nnstretch.quantization.keep_float import KeepFloat
from nnstretch.quantization.pipeline import (
    METHODS,
    ROUNDINGS,
    QuantizationOptions,
    Quantized,
    RoundingName,
    is_trained,
    quantize,
    write_trained,
)
from nnstretch.quantization.ranges import Method
from nnstretch.quantization.sensitivity import LayerError, signal_to_noise

__all__ = [
    "METHODS",
    "ROUNDINGS",
    "Examples",
    "Feeds",
    "KeepFloat",
    "LayerError",
    "Method",
    "QuantizationOptions",
    "Quantized",
    "RoundedLayer",
    "RoundingName",
    "examples_of",
    "is_trained",
    "quantize",
    "read_feeds",
    "signal_to_noise",
    "write_trained",
]
