"""Networks without batch norm: VGG and SqueezeNet.

VGG: configurations A, B, D and E of Simonyan and Zisserman, 2014, arXiv:1409.1556.
SqueezeNet: 1.0 as published (Iandola et al., 2016, arXiv:1602.07360), and its lighter revision 1.1.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from nnstretch.zoo.blocks import Chain, Parallel, conv_relu

_WIDTHS = (64, 128, 256, 512, 512)
_HIDDEN = 4096
_GRID = 7  # side of the first dense layer's input map at 224 x 224


def _vgg(depths: tuple[int, ...], num_classes: int, in_channels: int, small_images: bool) -> Chain:
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


vgg11 = partial(_vgg, (1, 1, 2, 2, 2))  # configuration A
vgg13 = partial(_vgg, (2, 2, 2, 2, 2))  # B
vgg16 = partial(_vgg, (2, 2, 3, 3, 3))  # D
vgg19 = partial(_vgg, (2, 2, 4, 4, 4))  # E


_EXPANSION = 4


def _fire(in_channels: int, squeeze: int) -> nn.Sequential:
    expand = squeeze * _EXPANSION
    return nn.Sequential(
        conv_relu(in_channels, squeeze, 1),
        Parallel(conv_relu(squeeze, expand, 1), conv_relu(squeeze, expand, 3, padding=1)),
    )


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _squeezenet(
    width: int,
    kernel: int,
    squeezes: tuple[tuple[int, ...], ...],
    num_classes: int,
    in_channels: int,
    small_images: bool,
) -> Chain:
    """The stem has ``width`` channels. For small images it is 3x3/2 without a pool."""
    if small_images:
        stem = conv_relu(in_channels, width, 3, stride=2, padding=1)
    else:
        stem = nn.Sequential(*conv_relu(in_channels, width, kernel, stride=2), _pool())
    stages: list[nn.Sequential] = []
    for index, stage in enumerate(squeezes):
        blocks: list[nn.Module] = [] if index == 0 else [_pool()]
        for squeeze in stage:
            blocks.append(_fire(width, squeeze))
            width = 2 * squeeze * _EXPANSION
        stages.append(nn.Sequential(*blocks))
    head = nn.Sequential(
        nn.Dropout(0.5), nn.Conv2d(width, num_classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return Chain(stem, stages, head)


# Width and kernel of the stem, and squeeze widths of the fire modules per stage; each of a module's two expansions is four
# times as wide.
squeezenet1_0 = partial(_squeezenet, 96, 7, ((16, 16, 32), (32, 48, 48, 64), (64,)))
squeezenet1_1 = partial(_squeezenet, 64, 3, ((16, 16), (32, 32), (48, 48, 64, 64)))
