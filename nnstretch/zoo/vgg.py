"""VGG, configurations A, B, D and E (Simonyan and Zisserman, 2014, arXiv:1409.1556), without batch norm."""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, conv_relu

_WIDTHS = (64, 128, 256, 512, 512)
_HIDDEN = 4096
_GRID = 7  # side of the first dense layer's input map at 224 x 224


def _vgg(depths: tuple[int, ...], num_classes: int, in_channels: int, *, small_images: bool) -> Chain:
    """``depths`` are the convolutions per resolution; the first convolution is the stem.

    For small images the dense layers read 512 pooled features instead of a 7x7 map. If the stem is alone at
    full resolution, the first stage starts with a pool like the others.
    """
    width = _WIDTHS[0]
    stem = conv_relu(in_channels, width, 3, padding=1)
    stages: list[nn.Sequential] = []
    for index, (depth, out) in enumerate(zip(depths, _WIDTHS, strict=True)):
        blocks: list[nn.Module] = [] if index == 0 else [nn.MaxPool2d(2)]
        for _ in range(depth - 1 if index == 0 else depth):
            blocks.append(conv_relu(width, out, 3, padding=1))
            width = out
        if blocks:
            stages.append(nn.Sequential(*blocks))
    grid = 1 if small_images else _GRID
    head = nn.Sequential(
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(grid),
        nn.Flatten(),
        nn.Linear(width * grid * grid, _HIDDEN),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(_HIDDEN, _HIDDEN),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(_HIDDEN, num_classes),
    )
    return Chain(stem, stages, head)


def vgg11(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """VGG-11, configuration A."""
    return _vgg((1, 1, 2, 2, 2), num_classes, in_channels, small_images=small_images)


def vgg13(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """VGG-13, configuration B."""
    return _vgg((2, 2, 2, 2, 2), num_classes, in_channels, small_images=small_images)


def vgg16(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """VGG-16, configuration D."""
    return _vgg((2, 2, 3, 3, 3), num_classes, in_channels, small_images=small_images)


def vgg19(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """VGG-19, configuration E."""
    return _vgg((2, 2, 4, 4, 4), num_classes, in_channels, small_images=small_images)
