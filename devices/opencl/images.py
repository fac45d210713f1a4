"""Images that kernels read constants from, made from their buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nnstretch.devices.base.routine import PIXEL_NUMBERS
from nnstretch.graph.dtypes import FLOAT16, element_type

if TYPE_CHECKING:
    import pyopencl


class Pixels(NamedTuple):
    """A part of a buffer that a kernel reads as an image; it begins and ends with whole pixels.

    Attributes:
        buffer: the buffer.
        begin: first byte.
        size: bytes.
        item_bytes: of an element: 4 for float32, 2 for float16.
    """

    buffer: pyopencl.Buffer
    begin: int
    size: int
    item_bytes: int


def make_image(context: pyopencl.Context, pixels: Pixels, most: int) -> tuple[pyopencl.Image, int, pyopencl.Buffer]:
    """An image; the offset of the pixels in it, in elements; and the buffer that it is made of, which must be kept with it.

    It is an image of the whole buffer, which many drivers alone make, or of hardly more than the part if the buffer has more
    than `most` pixels.

    Raises:
        pyopencl.Error: the device makes no such image.
    """
    import pyopencl as cl

    kind = cl.channel_type.HALF_FLOAT if pixels.item_bytes == element_type(FLOAT16).bytes else cl.channel_type.FLOAT
    buffer, begin, bytes_each = pixels.buffer, pixels.begin, PIXEL_NUMBERS * pixels.item_bytes
    if buffer.size // bytes_each > most:
        alignment = max(*(int(device.mem_base_addr_align) // 8 for device in context.devices), 1)  # stated in bits
        first = begin // alignment * alignment
        begin -= first
        buffer = buffer.get_sub_region(first, begin + pixels.size, cl.mem_flags.READ_ONLY)
    form, shape = cl.ImageFormat(cl.channel_order.RGBA, kind), (buffer.size // bytes_each,)
    image = cl.create_image(context, cl.mem_flags.READ_ONLY, form, shape=shape, buffer=buffer)
    return image, begin // pixels.item_bytes, buffer
