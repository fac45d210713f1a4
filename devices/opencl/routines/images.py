"""Weights in images: another storage for those that GPUs read, through the caches of their texture units.

An image is made from the buffer of a device's constants, so that plans place and copy weights as they do without. The macro
NNS_IMAGES tells both the kernels and who sets their arguments (`Launch.images`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnstretch.devices.base.routine import IMAGES_MACRO, PIXEL_NUMBERS, Parameters
from nnstretch.devices.opencl.routines.base import Traits

STORAGE = "storage"
"""The parameter: BUFFER or IMAGE."""
BUFFER, IMAGE = 0, 1
_WEIGHTS = 1 << 1  # read 1 of a layer with weights
_ALIGNMENT_PIXELS = 512
"""Pixels between the begin of weights and that of the part of a buffer that an image is made from: 4096 bytes of float16."""


def with_storages(
    traits: Traits, settings: Sequence[Parameters], numbers: Callable[[Parameters], int]
) -> tuple[Parameters, ...]:
    """Settings with their weights in buffers, then those whose weights fit an image with them in one.

    They are `settings` unchanged for devices without images, and for layers whose weights no image holds.

    Args:
        traits: of the device.
        settings: without storage.
        numbers: number of weights of a setting.
    """
    most = (traits.image_buffer - _ALIGNMENT_PIXELS) * PIXEL_NUMBERS if traits.block == PIXEL_NUMBERS else 0
    fitting = [setting for setting in settings if numbers(setting) <= most]
    if not fitting:
        return tuple(settings)
    return (*({**one, STORAGE: BUFFER} for one in settings), *({**one, STORAGE: IMAGE} for one in fitting))


def reads_image(parameters: Parameters) -> bool:
    """Whether the weights of a setting are an image."""
    return parameters.get(STORAGE, BUFFER) == IMAGE


def image_macros(parameters: Parameters) -> tuple[tuple[str, int], ...]:
    """The macros of a kernel with weights for the storage of a setting."""
    return ((IMAGES_MACRO, _WEIGHTS),) if reads_image(parameters) else ()
