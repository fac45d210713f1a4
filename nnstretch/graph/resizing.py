"""Coordinates of a Resize layer: where in the source a pixel of the result lies."""

from __future__ import annotations

COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
"""Of layers that copy the nearest pixel, as ONNX names them."""
INTERPOLATED_COORDINATES = (*COORDINATES, "half_pixel_symmetric")
"""Of layers that interpolate. With symmetric ones, which pixel is nearest would depend on the order of roundings."""
